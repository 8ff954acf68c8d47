"""New shards of a layout, filled from words of canonical boxes; they get their names once they are whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import durable
from ..checkpoint import by_name
from ..dtypes import dtype
from ..errors import CorruptInput, from_os_error
from ..hdf5 import create_shard, region
from ..layout import to_local, word_box
from ..model import Box, Layout, Policy
from ..region import Region, region_of


class ShardTarget:
    """This rank's new shards: takes words of tiles and puts them wherever the layout keeps them."""

    def __init__(
        self, directory: Path, layout: Layout, policy: Policy, mine: Sequence[int], step: int | None = None
    ) -> None:
        self._directory, self._layout, self._policy, self._mine = directory, layout, policy, list(mine)
        self._fds: dict[int, int] = {}
        self._datasets = {}
        for shard in mine:
            path = directory / layout.shards[shard].file
            try:
                path.unlink(missing_ok=True)
                found = create_shard(path, layout.shards[shard], step=step)
                self._fds[shard] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise from_os_error(error, f"creating {path}") from error
            self._datasets.update({(shard, name): d for name, d in by_name(found).items()})
        self._pieces: dict[str, list[tuple[int, Any, Any]]] = {}
        for shard in mine:
            for dataset in layout.shards[shard].datasets:
                for piece in dataset.pieces:
                    self._pieces.setdefault(piece.tensor, []).append((shard, dataset, piece))

    def needs(self, tensor: int, box: Box) -> bool:
        return any(
            p.canonical.meet(box) is not None for _, _, p in self._pieces.get(self._policy.tensors[tensor].name, [])
        )

    def put(self, tensor: int, box: Box, start: int, words: np.ndarray) -> None:
        """Put words ``start...`` of a tensor's box (in its row-major order) into every piece that meets it."""
        spec = self._policy.tensors[tensor]
        per = dtype(spec.dtype).words
        for shard, layout, piece in self._pieces.get(spec.name, []):
            common = piece.canonical.meet(box)
            if common is None:
                continue
            inside = Box(
                tuple(a - o for a, o in zip(common.start, box.start, strict=True)),
                tuple(b - o for b, o in zip(common.stop, box.start, strict=True)),
            )
            source = region_of(word_box(inside, per), box.shape if per == 1 else (*box.shape, per))
            low, high = first_at(source, start), first_at(source, start + len(words))
            if low >= high:
                continue
            first, last = source.span(low, high)
            picked = np.empty(high - low, words.dtype)
            source.gather(words[first - start : last - start], low, high, picked)
            dataset = self._datasets[shard, layout.path]
            where = region(dataset, to_local(piece, common))
            assert dataset.offset is not None
            _write_region(self._fds[shard], dataset.offset, where, low, picked)

    def sync(self) -> None:
        for shard, fd in self._fds.items():
            try:
                durable.sync(fd)
            except OSError as error:
                raise from_os_error(error, f"fsync of {self._layout.shards[shard].file}") from error

    def publish(self, layout: Layout, allowed: Callable[[], None] = lambda: None) -> None:
        """Give the shards their names; ``allowed`` is called before each, and raises where that must not be."""
        self._close()
        for shard in self._mine:
            allowed()
            durable.rename(
                str(self._directory / self._layout.shards[shard].file), str(self._directory / layout.shards[shard].file)
            )

    def discard(self) -> None:
        self._close()
        for shard in self._mine:
            durable.remove(str(self._directory / self._layout.shards[shard].file))

    def _close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


def first_at(where: Region, offset: int) -> int:
    """The first word of a region that lies at ``offset`` or later (its size where none does): offsets grow with it."""
    low, high = 0, where.size
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if where.locate(middle) < offset else (low, middle)
    return low


def _write_region(fd: int, at: int, where: Region, start: int, words: np.ndarray) -> None:
    """Write words of a strided region of a new file, keeping what lies between them."""
    width = words.itemsize
    try:
        for a, b in where.windows(start, start + len(words), 1 << 22):
            first, last = where.span(a, b)
            window = np.empty(last - first, words.dtype)
            if last - first != b - a:
                _exactly(os.preadv(fd, [window.view(np.uint8)], at + first * width), window.nbytes)
            if last - first == b - a and not words[a - start : b - start].any():
                continue  # a new file reads as zeros already
            where.put(window, a, b, words[a - start : b - start])
            view = memoryview(window).cast("B")
            done = 0
            while done < len(view):
                done += os.pwrite(fd, view[done:], at + first * width + done)
    except OSError as error:
        raise from_os_error(error, "writing a new shard") from error


def _exactly(have: int, want: int) -> None:
    if have != want:
        raise CorruptInput("new shard", found=f"{have} bytes", expected=str(want), remedy="somebody cut it: run again")
