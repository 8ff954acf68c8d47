"""The parts that a rank has built, until every site has them: the newest in memory, the rest in a nameless file."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from ..errors import from_os_error
from ..model import PartEntry


class Shelf:
    """Filled by one thread, read by any number.

    Parameters
    ----------
    indices
        The parts that will come.
    hold_bytes : int
        Bytes in memory at most; what is older goes to the file.
    spool : Path
        Directory of the file. It has no name there, so nothing is left of it whatever becomes of the process.
    """

    def __init__(self, indices: Iterable[int], hold_bytes: int, spool: Path) -> None:
        self._expected, self._hold, self._folder = frozenset(indices), hold_bytes, spool
        self._entries: dict[int, PartEntry] = {}
        self._memory: dict[int, bytes] = {}
        self._places: dict[int, int] = {}  # of parts in the file: where they begin
        self._held = self._end = 0
        self._file: IO[bytes] | None = None
        self._changed = threading.Condition()
        self._closed = False

    def expects(self, index: int) -> bool:
        """Whether this rank builds that part."""
        return index in self._expected

    @property
    def held_bytes(self) -> int:
        """Bytes in memory."""
        return self._held

    @property
    def entries(self) -> list[PartEntry]:
        """The parts that are there, by index."""
        with self._changed:
            return sorted(self._entries.values(), key=lambda entry: entry.index)

    def put(self, entry: PartEntry, data: bytes) -> None:
        """Add a part.

        Raises
        ------
        ResourceError
            There is no room in the directory for what goes to the file.
        """
        with self._changed:
            self._entries[entry.index], self._memory[entry.index] = entry, data
            self._held += len(data)
            self._changed.notify_all()
        while self._held > self._hold:
            oldest = next(iter(self._memory))
            self._spool(oldest, self._memory[oldest])

    def get(self, index: int, wait_s: float) -> PartEntry | None:
        """A part's entry, waited for; None if it is not there by then."""
        with self._changed:
            self._changed.wait_for(lambda: index in self._entries or self._closed, wait_s)
            return self._entries.get(index)

    def read(self, index: int, start: int, stop: int) -> bytes | memoryview:
        """Bytes ``start`` to ``stop`` of a part that is there."""
        with self._changed:
            if (data := self._memory.get(index)) is not None:
                return memoryview(data)[start:stop]
            if self._file is None:
                raise OSError("the shelf is closed")
            stop = min(stop, self._entries[index].size)
            return os.pread(self._file.fileno(), stop - start, self._places[index] + start)

    def close(self) -> None:
        """Let go of everything, and of whoever waits for a part."""
        with self._changed:
            self._closed = True
            self._memory.clear()
            self._held = 0
            if self._file is not None:
                self._file.close()
            self._file = None
            self._changed.notify_all()

    def _spool(self, index: int, data: bytes) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 (closed with the shelf)
            view, at = memoryview(data), self._end
            while view:
                done = os.pwrite(self._file.fileno(), view, at)
                view, at = view[done:], at + done
        except OSError as error:
            raise from_os_error(error, f"parts that wait for sites in {self._folder} (direct.spool)") from error
        with self._changed:
            self._places[index], self._end = self._end, at
            del self._memory[index]
            self._held -= len(data)
