"""The store's contract: what sites may rely on, and nothing more.

A store maps keys to immutable byte objects. Three properties carry the whole protocol:

1. *Put-once.* ``put_once`` creates a key if and only if nobody created it before, atomically: readers see the
   whole object or none. Of any number of racing writers exactly one creates it. An implementation resolves its
   own lost replies: where the key turns out to hold exactly the bytes that were being put, the put succeeded.
2. *Read your writes.* Once ``put_once`` returned, every later ``get`` and ``stat`` by anybody sees the object.
   (A store behind a delayed cache breaks this for other readers; they treat absence as "not yet" and wait.)
3. *No listing on the hot path.* Manifests name every key. ``sweep`` alone may list, to drop a dead writer's leavings.

Keys are ASCII, made of ``[A-Za-z0-9._-]`` segments joined by ``/``; a segment is never empty, ``.`` or ``..``,
and a key has at most 512 characters. Anything else is refused with :class:`~dcr_mpi.errors.UsageError` before any
I/O: tensor names never become keys.

Error classes are part of the contract: absence is ``None``, never an error; :class:`StoreUnavailable` is for
failures that usually pass (and has been retried already, once, in one bounded layer); :class:`StoreDenied` is for
credentials and permissions; :class:`ResourceError` for a full or broken medium; :class:`CorruptInput` for a body
that stays shorter or longer than the store says it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from ..errors import UsageError

Buffer = bytes | bytearray | memoryview
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Stat:
    """What is known of an object without its body: its length in bytes."""

    size: int


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

        A range past the end is cut at the end, and an empty range makes no request. ``limit`` bounds what the
        caller is ready to hold: a longer answer raises :class:`CorruptInput` before it is read into memory.
        A body cut short is resumed with a ranged read from where it ended, within the bounded retries.
        """
        ...

    def stat(self, key: str) -> Stat | None:
        """Length of an object, or None where no such key is."""
        ...

    def sweep(self, prefix: str, older_than_s: float) -> int:
        """Drop unfinished uploads under ``prefix`` that were begun more than ``older_than_s`` seconds ago.

        Returns the number dropped. Finished objects are never touched.
        """
        ...


def check_key(key: str) -> str:
    """Return ``key`` if it keeps the contract.

    Raises
    ------
    UsageError
        Empty, too long, absolute, with an empty, ``.`` or ``..`` segment, or with a character outside the set.
    """
    segments = key.split("/")
    if len(key) > 512 or any(not _SEGMENT.fullmatch(s) or s in (".", "..") for s in segments):
        raise UsageError("store key", found=repr(key[:80]), expected="[A-Za-z0-9._-] segments joined by '/'")
    return key
