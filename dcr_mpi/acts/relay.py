"""Relay: every part crosses the wide-area link once per site, then goes down a tree of the ranks that need it.

Roots are spread over all ranks, part by part. Each rank works on a bounded window of the parts it has a place for,
in increasing order: the smallest unfinished part of the job is in everybody's window, so it moves, and so does the
rest. Store-and-forward per part: a rank passes a part to its children as soon as it has it whole, while a worker
thread consumes it (numba and the digests leave the interpreter's lock) and the main thread alone talks MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ..comm import Comm, Transfer
from ..errors import DcrError, PeerFailed
from ..model import PartEntry
from ..tree import Route, route

Fetch = Callable[[PartEntry], bytes]
Consume = Callable[[int, Any], None]


def relay(
    comm: Comm, entries: Sequence[PartEntry], needed: Sequence[bool], fetch: Fetch, consume: Consume, *, degree: int, window: int,
    moved: Callable[[int], None] = lambda _: None,
) -> dict[str, int]:  # fmt: skip
    """Bring each part to the ranks that need it.

    Parameters
    ----------
    entries
        All parts of the version, the same on every rank.
    needed
        One bool per entry: whether this rank must get it.
    fetch
        Gets and checks a part from the store; called on the part's root only, from worker threads.
    consume
        Takes (position in ``entries``, bytes) of a needed part; one call at a time, in a worker thread.
    degree, window
        Children per rank; parts in hand per rank at a time (bounds memory together with the part size).
    moved
        Told the size of each part this rank is done with, for progress.

    Returns
    -------
    dict
        Bytes ``fetched``, ``received`` and ``sent`` by this rank.

    Raises
    ------
    DcrError
        What fetch or consume raised, the part named; PeerFailed where another rank failed or fell silent.
    """
    want = np.array(
        [np.frombuffer(bits, np.uint8) for bits in comm.allgather(np.packbits(needed).tobytes(), "relay plan")]
    )
    members = np.unpackbits(want, axis=1)[:, : len(entries)].astype(bool)
    tally = {"fetched": 0, "received": 0, "sent": 0}
    ahead = iter([(i, r) for i in range(len(entries)) if (r := _place(comm, i, members[:, i], degree)) is not None])
    active: list[_Passage] = []
    with ThreadPoolExecutor(window, "fetch") as fetchers, ThreadPoolExecutor(1, "consume") as consumer:

        def turn() -> bool:
            """One look at everything in hand; True when all is done."""
            moving = True
            while moving:
                moving = False
                for passage in list(active):
                    if passage.advance():
                        active.remove(passage)
                        moved(entries[passage.index].size)
                        moving = True
                while len(active) < window and (following := next(ahead, None)) is not None:
                    index, place = following
                    active.append(_Passage(comm, index, entries[index], place, bool(needed[index]), fetchers, consumer, fetch, consume, tally))
                    moving = True
            return not active

        # The time-out is for silence: each poll waits for one part, not for all of them.
        finished = turn()
        while not finished:
            before = len(active), active[0].index
            comm.poll(lambda: turn() or (len(active), active[0].index) != before, f"relay of part {entries[active[0].index].index}")
            finished = not active
    return tally


def _place(comm: Comm, index: int, wanted: np.ndarray, degree: int) -> Route | None:
    owners = [int(rank) for rank in np.flatnonzero(wanted)]
    return route(comm.rank, index % comm.size, owners, degree, index) if owners else None


class _Passage:
    """One part on its way through this rank."""

    def __init__(
        self, comm: Comm, index: int, entry: PartEntry, place: Route, needed: bool, fetchers: ThreadPoolExecutor,
        consumer: ThreadPoolExecutor, fetch: Fetch, consume: Consume, tally: dict[str, int],
    ) -> None:  # fmt: skip
        self.index = index
        self._comm, self._entry, self._place, self._needed = comm, entry, place, needed
        self._consumer, self._consume, self._tally = consumer, consume, tally
        self._fetching: Future[bytes] | None = fetchers.submit(fetch, entry) if place.parent is None else None
        self._receiving = comm.receive(place.parent, entry.index, entry.size) if place.parent is not None else None
        self._sending: list[Transfer] = []
        self._consuming: Future[None] | None = None
        self._arrived = False

    def advance(self) -> bool:
        """Do what can be done now; True once the part has left this rank."""
        if not self._arrived and not self._arrive():
            return False
        if not all([sending.test() for sending in self._sending]):
            return False
        if self._consuming is not None:
            if not self._consuming.done():
                return False
            _result(self._consuming, self._entry)
        return True

    def _arrive(self) -> bool:
        data: Any
        if self._fetching is not None:
            if not self._fetching.done():
                return False
            data = _result(self._fetching, self._entry)
            self._tally["fetched"] += len(data)
        else:
            assert self._receiving is not None
            if not self._receiving.test():
                return False
            data = self._receiving.data
            self._tally["received"] += len(data)
        self._sending = [self._comm.send(child, self._entry.index, data) for child in self._place.children]
        self._tally["sent"] += len(data) * len(self._sending)
        if self._needed:
            self._consuming = self._consumer.submit(self._consume, self.index, data)
        self._arrived, self._fetching, self._receiving = True, None, None
        return True


def _result(future: Future[Any], entry: PartEntry) -> Any:
    """A worker's result; its error is raised with the part's name in it."""
    try:
        return future.result()
    except PeerFailed:
        raise
    except DcrError as error:
        error.args = (f"part {entry.index}: {error}",)
        raise
