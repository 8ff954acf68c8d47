"""The publisher's baseline in memory, or in mapped files: this rank's words of one version, and room for the next."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import durable
from ..dtypes import dtype
from ..errors import CorruptInput
from ..jsonable import dumps, loads
from ..model import Layout
from .memory import Arrays, host

_ALIGN = 64


@dataclass(frozen=True)
class Slot:
    """What one of the two buffers holds."""

    policy_sha256: str
    version: int
    state: str


class Kept:
    """Two buffers for the words of shard ``rank``: one holds the baseline, the other is filled with the next version.

    Parameters
    ----------
    folder : Path or None
        Where the buffers are files, with a record each of what they hold, so that a restarted job has its baseline.
        On a disk of the node, or one folder for all ranks and policies: files are named after both. None: in memory,
        gone with the process.

    Raises
    ------
    Conflict
        Another process has these files.
    """

    def __init__(self, layout: Layout, rank: int, folder: Path | None, policy_sha256: str) -> None:
        self._layout, self._rank, self._folder = layout, rank, folder
        self._name = f"{policy_sha256[:16]}-rank-{rank:05d}"
        self._lock: int | None = None
        if folder is not None:
            durable.make_dirs(folder)
            self._lock = durable.lock(folder / f"{self._name}.lock", "one program has a kept baseline at a time")
        self._places: dict[str, tuple[int, int]] = {}
        size = 0
        for spec in layout.shards[rank].datasets:
            nbytes = int(np.prod(spec.shape, dtype=np.int64)) * dtype(spec.dtype).itemsize
            self._places[spec.path] = (size, nbytes)
            size += -(-nbytes // _ALIGN) * _ALIGN
        self._size = max(size, _ALIGN)
        self._maps: list[mmap.mmap] = []
        self._buffers = [self._buffer(slot) for slot in (0, 1)]

    def find(self, policy_sha: str, version: int, state: str) -> int | None:
        """The buffer whose record says that it holds a version; its words are still to be verified."""
        wanted = Slot(policy_sha, version, state)
        return next((slot for slot in (0, 1) if self._record(slot) == wanted), None)

    def fill(self, slot: int, arrays: Arrays) -> None:
        """Copy all words into a buffer; it is recorded as nothing's meanwhile."""
        if self._folder is not None:
            durable.remove(self._path(slot, "json"))
        for path, words in arrays.words():
            at, nbytes = self._places[path]
            for low in range(0, len(words), 1 << 24):  # of a device, no more at a time than it takes to copy well
                piece = host(words[low : low + (1 << 24)]).view(np.uint8)
                first = at + low * words.itemsize
                self._buffers[slot][first : first + len(piece)] = piece
            assert len(words) * words.itemsize == nbytes

    def record(self, slot: int, holds: Slot) -> None:
        """Make a buffer durable, and then what it holds."""
        if self._folder is None:
            return
        durable.sync_map(self._maps[slot])
        durable.replace(self._path(slot, "json"), dumps(holds))

    def words(self, slot: int) -> Arrays:
        """A buffer as a checkpoint."""
        arrays: dict[str, np.ndarray] = {}
        for spec in self._layout.shards[self._rank].datasets:
            at, nbytes = self._places[spec.path]
            kind = f"V{dtype(spec.dtype).itemsize}"  # its words are all that is looked at
            arrays[spec.path] = self._buffers[slot][at : at + nbytes].view(kind).reshape(spec.shape)
        return Arrays(self._layout, self._rank, arrays)

    def close(self) -> None:
        """Let another process have the files; the buffers are not to be used any more."""
        if self._lock is not None:
            durable.unlock(self._lock)
            self._lock = None

    def _buffer(self, slot: int) -> np.ndarray:
        if self._folder is None:
            return np.zeros(self._size, np.uint8)
        path = self._path(slot, "words")
        if not path.is_file() or path.stat().st_size != self._size:
            durable.remove(self._path(slot, "json"))
        self._maps.append(durable.map_file(path, self._size))
        return np.frombuffer(self._maps[-1], np.uint8)

    def _record(self, slot: int) -> Slot | None:
        if self._folder is None:
            return None
        path = self._path(slot, "json")
        try:
            return loads(Slot, path.read_bytes(), str(path))
        except (FileNotFoundError, CorruptInput):  # no record: then it is filled anew
            return None

    def _path(self, slot: int, kind: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._name}-{slot}.{kind}"
