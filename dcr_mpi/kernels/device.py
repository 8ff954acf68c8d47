"""The kernels on a device: what runs there, in which pieces, and what happens when its memory is full.

:class:`DeviceKernels` drives the CUDA C of ``cuda_src`` through a small port, :class:`Device`; :mod:`.cuda` is the port
to a real GPU. Packing, values and the entropy coder stay on the host, as they are in :mod:`.jit`. Nothing stays on the
device between calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np

from ..digest import MIX_A, MIX_B, MIX_C, MIX_D, MIX_E
from .api import Changes
from .hazard import Model
from .jit import JitKernels

CHUNK = 64  # words or changes that a thread walks
BINS = 2048  # most exponents that a kernel counts: those of 64-bit floats
T = TypeVar("T")


class DeviceFull(Exception):
    """No memory left on the device for this piece."""


class Device(Protocol):
    """Arrays on a device, of unsigned integers only, and launches of the kernels of ``cuda_src``.

    Every method raises :class:`DeviceFull` where memory is lacking.
    """

    def upload(self, array: np.ndarray) -> Any:
        """A copy on the device; signed integers become unsigned ones of the same bits."""
        ...

    def empty(self, size: int, kind: str) -> Any:
        """An array of ``size`` elements of numpy type ``kind``, with anything in it."""
        ...

    def launch(self, kernel: str, bits: int, threads: int, *args: Any) -> None:
        """Run a kernel for words of ``bits`` bits with at least ``threads`` threads; arguments are arrays and ints."""
        ...

    def scan(self, array: Any) -> Any:
        """Prefix sums modulo 2^64 of a uint64 array, each with its own element."""
        ...

    def download(self, array: Any) -> np.ndarray:
        """A copy on the host."""
        ...

    def free(self) -> None:
        """Give back memory that no array uses."""
        ...


@lru_cache(maxsize=8)
def source(bits: int) -> str:
    """The CUDA C of all kernels, for words of ``bits`` bits."""
    constants = {"WORD_BITS": bits, "CHUNK": CHUNK, "BINS": BINS}
    mixes = {"MIX_A": MIX_A, "MIX_B": MIX_B, "MIX_C": MIX_C, "MIX_D": MIX_D, "MIX_E": MIX_E}
    lines = [f"#define {k} {v}" for k, v in constants.items()] + [f"#define {k} {v:#x}ull" for k, v in mixes.items()]
    text = files(__package__).joinpath("cuda_src/words.cu").read_text("ascii")
    return "\n".join([*lines, text])


@dataclass(frozen=True)
class _Blocks:
    """Some blocks of a bucket, in its words ``low..high``; their table (see ``words.cu``) counts from ``low``."""

    low: int
    high: int
    count: int
    chunks: int
    table: np.ndarray

    @classmethod
    def of(cls, offsets: np.ndarray, sizes: np.ndarray, part: slice) -> _Blocks:
        offset, size = offsets[part], sizes[part]
        low = int(offset.min())
        return cls(low, int((offset + size).max()), len(size), *_table(offset - low, size))


@dataclass(frozen=True)
class _Moves:
    """The changes of some blocks: those at ``here`` of all, in as many pieces as blocks."""

    here: slice
    total: int
    blocks: int
    chunks: int
    table: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray, part: slice) -> _Moves:
        mine, first = counts[part], int(counts[: part.start].sum())
        ends = np.cumsum(mine)
        total = int(ends[-1])
        return cls(slice(first, first + total), total, len(mine), *_table(ends - mine, mine))


def _table(offsets: np.ndarray, sizes: np.ndarray) -> tuple[int, np.ndarray]:
    """Chunks in all, and the table."""
    ends = np.cumsum(-(-sizes // CHUNK))
    return int(ends[-1]), np.concatenate(([0], ends, offsets, sizes)).astype(np.uint64)


def _reach(counts: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Words of each block up to its last position."""
    out, used = np.zeros(len(counts), np.int64), counts > 0
    out[used] = positions[np.cumsum(counts)[used] - 1].astype(np.int64) + 1
    return out


class DeviceKernels(JitKernels):
    """See :class:`dcr_mpi.kernels.api.Kernels`.

    A call that finds the device full is tried once more in two halves of its blocks, and then done on the host.
    """

    name = "cuda"
    device = "cuda"
    lot = 1 << 30  # any bucket is one

    def __init__(self, device: Device) -> None:
        self._on = device

    def changes(self, base: np.ndarray, new: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> Changes:
        on, bits = self._on, 8 * base.itemsize

        def run(part: slice) -> tuple[np.ndarray, ...]:
            b = _Blocks.of(offsets, sizes, part)
            old, fresh, table = on.upload(base[b.low : b.high]), on.upload(new[b.low : b.high]), on.upload(b.table)
            counts = on.empty(b.chunks, "u8")
            on.launch("count_changes", bits, b.chunks, old, fresh, table, b.count, b.chunks, counts)
            ends = on.scan(counts)
            per_block = self._by_block(bits, ends, table, b.count).astype(np.int64)
            total = int(per_block.sum())
            found = on.empty(total, "u4"), on.empty(total, base.dtype.str), on.empty(total, base.dtype.str)
            on.launch("emit_changes", bits, b.chunks, old, fresh, table, b.count, b.chunks, ends, *found)
            return per_block, *map(on.download, found)

        parts = self._tried(sizes, run)
        if parts is None:
            return super().changes(base, new, offsets, sizes)
        return Changes(*map(np.concatenate, zip(*parts, strict=True)))

    def gather(self, words: np.ndarray, offsets: np.ndarray, counts: np.ndarray, positions: np.ndarray) -> np.ndarray:
        on, reach = self._on, _reach(counts, positions)

        def run(part: slice) -> np.ndarray:
            b, m = _Blocks.of(offsets, reach, part), _Moves.of(counts, part)
            out = on.empty(m.total, words.dtype.str)
            arrays = on.upload(words[b.low : b.high]), on.upload(b.table), on.upload(m.table)
            on.launch(
                "gather", 8 * words.itemsize, m.chunks, *arrays, b.count, m.chunks, on.upload(positions[m.here]), out
            )
            return on.download(out)

        parts = self._tried(counts, run)
        return super().gather(words, offsets, counts, positions) if parts is None else np.concatenate(parts)

    def scatter(
        self,
        words: np.ndarray,
        offsets: np.ndarray,
        counts: np.ndarray,
        positions: np.ndarray,
        values: np.ndarray,
    ) -> None:
        on, reach = self._on, _reach(counts, positions)

        def run(part: slice) -> None:
            b, m = _Blocks.of(offsets, reach, part), _Moves.of(counts, part)
            target, table, moves = on.upload(words[b.low : b.high]), on.upload(b.table), on.upload(m.table)
            where, what = on.upload(positions[m.here]), on.upload(values[m.here])
            on.launch("scatter", 8 * words.itemsize, m.chunks, target, table, moves, b.count, m.chunks, where, what)
            words[b.low : b.high] = on.download(target)

        if self._tried(counts, run) is None:  # whatever was written already is written again
            super().scatter(words, offsets, counts, positions, values)

    def exponents(
        self, words: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, shift: int, mask: int, step: int
    ) -> np.ndarray:
        on = self._on

        def run(part: slice) -> np.ndarray:
            b = _Blocks.of(offsets, sizes, part)
            out, table = on.upload(np.zeros(mask + 1, np.uint64)), on.upload(b.table)
            here = on.upload(words[b.low : b.high])
            on.launch("exponents", 8 * words.itemsize, b.chunks, here, table, b.count, b.chunks, shift, mask, step, out)
            return on.download(out).astype(np.int64)

        parts = self._tried(sizes, run) if mask < BINS else None
        return super().exponents(words, offsets, sizes, shift, mask, step) if parts is None else np.sum(parts, axis=0)

    def hazards(
        self, model: Model, base: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, changes: Changes
    ) -> np.ndarray:
        on, bits = self._on, 8 * base.itemsize

        def run(part: slice) -> np.ndarray:
            """Hazards of the part's changes from its beginning on, and of its end."""
            b, m = _Blocks.of(offsets, sizes, part), _Moves.of(changes.counts, part)
            words, table, rate = on.upload(base[b.low : b.high]), on.upload(b.table), on.upload(model.rate)
            sums = on.empty(b.chunks, "u8")
            on.launch("sum_rates", bits, b.chunks, words, table, b.count, b.chunks, rate, model.shift, model.mask, sums)
            ends = on.scan(sums)
            if not m.total:
                return on.download(ends)[-1:].astype(np.int64)
            out, moves, where = on.empty(m.total + 1, "u8"), on.upload(m.table), on.upload(changes.positions[m.here])
            on.launch(
                "hazards", bits, m.chunks, words, table, moves, b.count, m.chunks, ends, where, rate, model.shift,
                model.mask, out,
            )  # fmt: skip
            return on.download(out).astype(np.int64)

        parts = self._tried(changes.counts, run)
        if parts is None:
            return super().hazards(model, base, offsets, sizes, changes)
        for this, following in pairwise(parts):
            following[0] += this[-1]
        return np.concatenate([part[:-1] for part in parts])

    def state_changes(
        self, geometry: np.ndarray, counts: np.ndarray, positions: np.ndarray, old: np.ndarray, new: np.ndarray
    ) -> np.ndarray:
        on, bits, dims = self._on, 8 * old.itemsize, (geometry.shape[1] - 2) // 2

        def run(part: slice) -> np.ndarray:
            m = _Moves.of(counts, part)
            rows, table = on.upload(geometry[part]), on.upload(m.table)
            arrays = [on.upload(a[m.here]) for a in (positions, old, new)]
            lanes = on.empty(m.chunks, "u8"), on.empty(m.chunks, "u8")
            on.launch("state_changes", bits, m.chunks, rows, dims, table, m.blocks, m.chunks, *arrays, *lanes)
            return np.stack([self._by_block(bits, on.scan(lane), table, m.blocks) for lane in lanes], axis=1)

        parts = self._tried(counts, run)
        return super().state_changes(geometry, counts, positions, old, new) if parts is None else np.concatenate(parts)

    def state_words(
        self, geometry: np.ndarray, words: np.ndarray, offsets: np.ndarray, sizes: np.ndarray
    ) -> np.ndarray:
        on, bits, dims = self._on, 8 * words.itemsize, (geometry.shape[1] - 2) // 2

        def run(part: slice) -> np.ndarray:
            b = _Blocks.of(offsets, sizes, part)
            rows, here, table = on.upload(geometry[part]), on.upload(words[b.low : b.high]), on.upload(b.table)
            lanes = on.empty(b.chunks, "u8"), on.empty(b.chunks, "u8")
            on.launch("state_words", bits, b.chunks, rows, dims, here, table, b.count, b.chunks, *lanes)
            return np.stack([self._by_block(bits, on.scan(lane), table, b.count) for lane in lanes], axis=1)

        parts = self._tried(sizes, run)
        return super().state_words(geometry, words, offsets, sizes) if parts is None else np.concatenate(parts)

    def _by_block(self, bits: int, ends: Any, table: Any, blocks: int) -> np.ndarray:
        """What chunks sum up to in each block, uint64, from their prefix sums."""
        sums = self._on.empty(blocks, "u8")
        self._on.launch("block_sums", bits, blocks, ends, table, blocks, sums)
        return self._on.download(sums)

    def _tried(self, amounts: np.ndarray, run: Callable[[slice], T]) -> list[T] | None:
        """``run`` over all blocks, or else over both halves of them; None where the host has to do it (nothing to do
        is the host's, too)."""
        blocks = len(amounts)
        if not amounts.any():
            return None
        for cuts in ((0, blocks), (0, blocks // 2, blocks))[: 1 + (blocks > 1)]:
            with suppress(DeviceFull):
                return [run(slice(a, b)) for a, b in pairwise(cuts)]
            self._on.free()  # only now: until the exception is gone, so are not the arrays that it met
        return None
