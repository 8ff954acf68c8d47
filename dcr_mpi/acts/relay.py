"""Relay: every part crosses the wide-area link once per site, then goes down a tree of the ranks that need it.

Roots are spread over all ranks, part by part. Each rank works on a bounded window of the parts it has a place for,
in increasing order: the smallest unfinished part of the job is in everybody's window, so it moves, and so does the
rest. Store-and-forward per part: a rank passes a part to its children as soon as it has it whole, while a worker
thread consumes it (numba and the digests leave the interpreter's lock) and the main thread alone talks MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import numpy as np

from ..comm import Comm, Transfer
from ..errors import DcrError, PeerFailed
from ..tree import Route, route

Consume = Callable[[int, Any], None]


class Entry(Protocol):
    """What the relay must know of a part: its index, and its size in bytes where that is known already."""

    @property
    def index(self) -> int: ...

    @property
    def size(self) -> int | None: ...


E = TypeVar("E", bound=Entry)


def relay(
    comm: Comm,
    entries: Sequence[E],
    needed: Sequence[bool],
    fetch: Callable[[E], bytes],
    consume: Consume,
    *,
    degree: int,
    window: int,
    wait_s: float = 0.0,
    moved: Callable[[int], None] = lambda _: None,
) -> dict[str, int]:
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
    wait_s
        How long ``fetch`` may wait for a part that is not there yet, besides.
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
    plans = comm.allgather(np.packbits(np.asarray(needed, bool)).tobytes(), "relay plan")
    bits = np.array([np.frombuffer(plan, np.uint8) for plan in plans])
    members = np.unpackbits(bits, axis=1)[:, : len(entries)].astype(bool)
    ahead = ((k, place) for k in range(len(entries)) if (place := _place(comm, k, members[:, k], degree)) is not None)
    fetchers, consumer = ThreadPoolExecutor(window, "fetch"), ThreadPoolExecutor(1, "consume")
    orderly = False
    try:
        tally = _Job(comm, entries, needed, fetch, consume, fetchers, consumer).run(ahead, window, wait_s, moved)
        orderly = True
        return tally
    finally:
        # An error is everybody's at once: it does not wait for the slowest fetch under way.
        for pool in (fetchers, consumer):
            pool.shutdown(wait=orderly, cancel_futures=True)


def _place(comm: Comm, index: int, wanted: np.ndarray, degree: int) -> Route | None:
    owners = [int(rank) for rank in np.flatnonzero(wanted)]
    return route(comm.rank, index % comm.size, owners, degree, index) if owners else None


class _Job:
    """Everything in hand on this rank."""

    def __init__(
        self,
        comm: Comm,
        entries: Sequence[Any],
        needed: Sequence[bool],
        fetch: Callable[[Any], bytes],
        consume: Consume,
        fetchers: ThreadPoolExecutor,
        consumer: ThreadPoolExecutor,
    ) -> None:
        self.comm, self.entries, self.needed = comm, entries, needed
        self.fetch, self.consume, self.fetchers, self.consumer = fetch, consume, fetchers, consumer
        self.tally = {"fetched": 0, "received": 0, "sent": 0}
        self._active: list[_Passage] = []
        self._finished = 0

    def run(
        self, ahead: Iterator[tuple[int, Route]], window: int, wait_s: float, moved: Callable[[int], None]
    ) -> dict[str, int]:
        self._fill(ahead, window)
        while self._active:
            # The time-out is for silence: each poll waits for the next part to leave, not for all of them.
            what = f"relay of part {self.entries[self._active[0].index].index}"
            self.comm.poll(lambda: self._turn(moved), what, wait_s)
            self._fill(ahead, window)
        return self.tally

    def _fill(self, ahead: Iterator[tuple[int, Route]], window: int) -> None:
        while len(self._active) < window and (following := next(ahead, None)) is not None:
            self._active.append(_Passage(self, *following))

    def _turn(self, moved: Callable[[int], None]) -> bool:
        """One look at everything in hand; True when a part left."""
        gone = [passage for passage in self._active if passage.advance()]
        for passage in gone:
            self._active.remove(passage)
            moved(passage.size)
        return bool(gone)


class _Passage:
    """One part on its way through this rank."""

    def __init__(self, job: _Job, index: int, place: Route) -> None:
        self._job, self.index, self._place, self._entry = job, index, place, job.entries[index]
        self.size = 0
        self._fetching: Future[bytes] | None = None
        self._receiving: Transfer | None = None
        if place.parent is None:
            self._fetching = job.fetchers.submit(job.fetch, self._entry)
        else:
            self._receiving = job.comm.receive(place.parent, self._entry.index, self._entry.size)
        self._sending: list[Transfer] = []
        self._consuming: Future[None] | None = None

    def advance(self) -> bool:
        """Do what can be done now; True once the part has left this rank."""
        if (self._fetching or self._receiving) and not self._arrive():
            return False
        moved = [sending.test() for sending in self._sending]  # all of them: a test is what makes MPI move
        if not all(moved):
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
            self._job.tally["fetched"] += len(data)
        else:
            assert self._receiving is not None
            if not self._receiving.test():
                return False
            data = self._receiving.data
            self._job.tally["received"] += len(data)
        self.size = len(data)
        self._sending = [self._job.comm.send(child, self._entry.index, data) for child in self._place.children]
        self._job.tally["sent"] += len(data) * len(self._sending)
        if self._job.needed[self.index]:
            self._consuming = self._job.consumer.submit(self._job.consume, self.index, data)
        self._fetching = self._receiving = None
        return True


def _result(future: Future[Any], entry: Entry) -> Any:
    """A worker's result; its error is raised with the part's name in it."""
    try:
        return future.result()
    except DcrError as error:
        if not isinstance(error, PeerFailed) and f"part {entry.index}" not in str(error):
            error.args = (f"part {entry.index}: {error}",)
        raise
