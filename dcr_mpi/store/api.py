"""The store's contract: what sites may rely on, and nothing more.

A store maps keys to immutable byte objects. Three properties carry the whole protocol:

1. *Put-once.* ``put_once`` creates a key if and only if nobody created it before, atomically: readers see the
   whole object or none. Of any number of racing writers exactly one creates it. An implementation resolves its
   own lost replies: where the key turns out to hold exactly the bytes that were being put, the put succeeded.
2. *Read your writes.* Once ``put_once`` returned, every later ``get`` and ``stat`` by anybody sees the object.
   (A store behind a delayed cache breaks this for other readers; they treat absence as "not yet" and wait.)
3. *No listing on the hot path.* Manifests name every key. ``sweep``, ``walk`` and ``delete`` are for cleaning alone:
   a store that grants them to nobody but the collector's account does all the rest as well.

Keys are ASCII, made of ``[A-Za-z0-9._-]`` segments joined by ``/``; a segment is never empty, never begins with a
dot (so ``.``, ``..`` and temporary files cannot be named) and has at most 255 characters, a key at most 512. Anything
else is refused with :class:`~dcr_mpi.errors.UsageError` before any I/O: tensor names never become keys. A key that is
an object is never also the folder of others: what a store does with ``a`` beside ``a/b`` is not part of the contract.

Error classes are part of the contract: absence is ``None``, never an error; :class:`StoreUnavailable` is for
failures that usually pass (and has been retried already, once, in one bounded layer); :class:`StoreDenied` is for
credentials and permissions; :class:`ResourceError` for a full or broken medium; :class:`CorruptInput` for a body
that stays shorter or longer than the store says it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..errors import CorruptInput, UsageError

Buffer = bytes | bytearray | memoryview
_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")


@dataclass(frozen=True)
class Stat:
    """What is known of an object without its body: its length in bytes."""

    size: int


@dataclass(frozen=True)
class Entry:
    """An object as a listing shows it: its key, its bytes, and its age in seconds by the store's own clock."""

    key: str
    size: int
    age_s: float


class Store(Protocol):
    """A store of immutable objects. All methods are safe to call from several threads."""

    url: str

    def put_once(self, key: str, data: Buffer) -> bool:
        """Create ``key`` with ``data``.

        Returns
        -------
        bool
            True: the key now holds exactly ``data`` (created now, or earlier with the same bytes: idempotent).
            False: the key exists with *other* bytes; they are untouched and the caller reads the winner.

        Raises
        ------
        StoreUnavailable, StoreDenied, ResourceError
            The object is not visible, or it is whole: never a part of it.
        """
        ...

    def get(self, key: str, start: int = 0, stop: int | None = None, *, limit: int | None = None) -> bytes | None:
        """Bytes ``[start, stop)`` of an object (to its end when ``stop`` is None), or None where no such key is.

        A range past the end is cut at the end. An empty range (``start == stop``) makes no request and is ``b""``
        whether or not the key exists; a negative or backward one is a :class:`UsageError`. ``limit`` bounds what
        the caller is ready to hold: a longer answer raises :class:`CorruptInput` before it is read into memory.
        A body cut short is resumed with a ranged read from where it ended, within the bounded retries.
        """
        ...

    def stat(self, key: str) -> Stat | None:
        """Length of an object, or None where no such key is."""
        ...

    def sweep(self, prefix: str, older_than_s: float) -> int:
        """Drop unfinished uploads under ``prefix`` that were begun more than ``older_than_s`` seconds ago.

        ``prefix`` is ``""`` for the whole store, or a key: the folder of that name. Returns the number dropped.
        Finished objects are never touched.
        """
        ...

    def walk(self, prefix: str) -> Iterator[Entry]:
        """Every object under the folder ``prefix`` (a key, or ``""`` for all), in no particular order.

        Names that cannot be keys (other programs' files) are passed over. An object that is put or deleted while
        the walk goes on may be shown or not.
        """
        ...

    def ahead_s(self, key: str) -> float:
        """Seconds by which the store's clock is ahead of this machine's, to about a second.

        ``key`` is an object of the caller's own, as its age may begin anew.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object durably; an absent one is fine. A reader meanwhile gets it whole or not at all."""
        ...


def check_key(key: str) -> str:
    """Return ``key`` if it keeps the contract.

    Raises
    ------
    UsageError
        Empty, too long, absolute, with a segment that is empty, too long or begins with a dot, or with a
        character outside the set.
    """
    if not is_key(key):
        raise UsageError(
            "store key",
            found=f"{key[:80]!r} ({len(key)} characters)",
            expected="at most 512 characters in [A-Za-z0-9._-] segments joined by '/', none begun by '.'",
        )
    return key


def is_key(key: str) -> bool:
    """Whether a name keeps the contract."""
    return len(key) <= 512 and all(_SEGMENT.fullmatch(segment) for segment in key.split("/"))


def check_range(start: int, stop: int | None) -> None:
    """Refuse a negative or backward byte range with :class:`UsageError`."""
    if start < 0 or (stop is not None and stop < start):
        raise UsageError("byte range", found=f"[{start}, {stop})", expected="0 <= start <= stop")


def check_limit(what: str, size: int, limit: int | None) -> None:
    """Refuse an answer of ``size`` bytes that is over ``limit`` with :class:`CorruptInput`."""
    if limit is not None and size > limit:
        raise CorruptInput(what, found=f"{size} bytes", expected=f"at most {limit}")
