"""Parts of a version that is still being encoded: announced one by one, and fetched before there is a manifest.

An *announcement* is the manifest's entry of a part, put once under a key that its index alone gives, so that nobody has
to list. It is a hint: the first publisher's stands, whoever seals the version, and it is not signed, as only rank 0 of
a job has keys. What was taken by announcements is held against the sealed manifest before it counts for anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

from ..catalog import Catalog
from ..errors import CorruptInput, NotReady, Overtaken
from ..jsonable import dumps, loads
from ..model import PartEntry

_LIMIT = 4096  # bytes of an announcement
_ASIDE_S = 1.0  # between two looks for a part that is not the next one, or whether the version was aborted


@dataclass(frozen=True)
class Awaited:
    """A part of which nothing but its index is known; for the relay, in place of its entry."""

    index: int
    size: int | None = None


class Turn:
    """Who looks for parts: they come about in order, so of the threads that wait, the one with the lowest index looks
    again and again, and the others now and then."""

    def __init__(self) -> None:
        self._changed, self._wanted = Condition(), set[int]()
        self._missed = False  # the next one was looked for in vain, and none was found since

    @contextmanager
    def wanted(self, index: int) -> Iterator[None]:
        """A thread waits for a part while the block lasts."""
        with self._changed:
            self._wanted.add(index)
        try:
            yield
        finally:
            with self._changed:
                self._wanted.discard(index)
                self._changed.notify_all()

    def is_dry(self) -> bool:
        """Whether the next part was looked for in vain, and none was found since; others are hardly there then."""
        return self._missed

    def looked(self, index: int, found: bool) -> None:
        """A wanted part was looked for."""
        with self._changed:
            if found or index == min(self._wanted):
                self._missed = not found

    def rest(self, index: int, pause_s: float, most_s: float) -> bool:
        """Sleep between two looks; False where another part was the next one."""
        with self._changed:
            if index != min(self._wanted):
                self._changed.wait_for(lambda: index == min(self._wanted), min(_ASIDE_S, most_s))
                return False
        time.sleep(pause_s)
        return True


def announce(catalog: Catalog, version: int, entry: PartEntry) -> None:
    """Say that a part is in the store, unless another publisher, or an earlier try, has said so of its own."""
    catalog.store.put_once(_key(catalog, version, entry.index), dumps(entry))


def announced(catalog: Catalog, version: int, index: int) -> PartEntry | None:
    """The announced entry of a part, None where there is none yet.

    Raises
    ------
    CorruptInput
        It says something that no encoder would.
    """
    key = _key(catalog, version, index)
    raw = catalog.store.get(key, limit=_LIMIT)
    if raw is None:
        return None
    entry = loads(PartEntry, raw, key)
    catalog.contents.check_entry(entry, version, index, key)
    return entry


def is_announced(catalog: Catalog, version: int, index: int) -> bool:
    """Whether a part has an announcement, whatever it says."""
    return catalog.store.stat(_key(catalog, version, index)) is not None


def fetch(
    catalog: Catalog, version: int, index: int, limit: int, wait_s: float, poll_s: tuple[float, float], turn: Turn
) -> bytes:
    """A part's bytes, as its announcement says them, as soon as there is one.

    ``limit``: bytes that a part of what this one covers can have; an announcement is nobody's word.
    ``turn``: of all threads that wait for parts of this version.

    Raises
    ------
    CorruptInput
        It is announced with more.
    NotReady
        None within ``wait_s``: its publisher is slow, or gone.
    Overtaken
        The version was decided on before the part was announced: aborted, that is.
    CorruptInput
        As :meth:`Contents.part`.
    """
    what = f"part {index} of version {version}"
    give_up, decided = time.monotonic() + wait_s, time.monotonic() + _ASIDE_S  # most parts come sooner

    def look(ask: bool) -> PartEntry | None:
        nonlocal decided
        entry = announced(catalog, version, index) if not ask or is_announced(catalog, version, index) else None
        if entry is not None or time.monotonic() < decided:
            return entry
        decided = time.monotonic() + _ASIDE_S
        if catalog.store.stat(catalog.version_key(version, "decision.json")) is None:
            return None
        # Whoever decides to commit has seen the manifest, which comes after all announcements.
        entry = announced(catalog, version, index)
        if entry is None:
            raise decided_on(what)
        return entry

    with turn.wanted(index):
        # Asking whether it is there takes half the work of asking for what is not; whatever a store says to that, it is
        # asked for itself as often as for a decision.
        entry, pause, ask = None, poll_s[0], turn.is_dry()
        while True:
            entry = look(ask)
            turn.looked(index, entry is not None)
            if entry is not None or (left := give_up - time.monotonic()) <= 0:
                break
            pause = min(pause * 1.5, poll_s[1]) if turn.rest(index, min(pause, left), left) else poll_s[0]
            ask = time.monotonic() < decided
    if entry is None:
        decided = 0.0
        entry = look(ask=False)
    if entry is None:
        raise NotReady(
            what,
            found=f"not announced for {wait_s:g} s, and the version is not sealed",
            expected="parts as they are encoded",
            remedy="look whether dcr encode runs; run it again and then this, or dcr commit --abort; what came is kept",
        )
    if entry.size > limit:
        raise CorruptInput(
            what,
            found=f"announced with {entry.size} bytes",
            expected=f"at most {limit}",
            remedy="it was not taken: run dcr refit again once the version is sealed, and look at who may write to the "
            "store",
        )
    return catalog.contents.part(entry, wait_s, poll_s)


def decided_on(what: str) -> Overtaken:
    """The error of who follows a version that there is a decision on, and does not get all of its parts."""
    return Overtaken(
        what,
        found="a decision on the version, and no such part",
        expected="a version that is being encoded",
        remedy="it was aborted, or committed long ago: run dcr refit again, it takes what comes next",
    )


def other_than_sealed(taken: Iterable[tuple[int, str]], sealed: Sequence[PartEntry], version: int) -> Overtaken | None:
    """None where every (part, SHA-256 of what was taken for it) is as the manifest says."""
    for part, digest in sorted(taken):
        if digest != sealed[part].sha256:
            return Overtaken(
                f"part {part} of version {version}",
                found=f"announced, and taken, with sha256 {digest[:16]}",
                expected=f"{sealed[part].sha256[:16]}, as the manifest says that was sealed since",
                remedy="an earlier try announced it, or another publisher: run dcr refit again, which goes by the "
                "manifest and fetches what differs",
            )
    return None


def _key(catalog: Catalog, version: int, index: int) -> str:
    return catalog.version_key(version, f"stream/{index:06d}.json")
