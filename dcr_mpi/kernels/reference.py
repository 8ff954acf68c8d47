"""The kernels in numpy: short, readable, and the definition that every other room is held against."""

from __future__ import annotations

import numpy as np

from ..digest import MIX_A, MIX_B, MIX_C, MIX_D, MIX_E
from ..dtypes import DType
from ..errors import CorruptInput
from .api import GAP_ESCAPE, HOST_LOT, Changes, ValueScheme
from .reference_hazard import ReferenceHazard


def bad_gaps(what: str) -> CorruptInput:
    return CorruptInput("gap stream", found=what, expected="increasing positions inside each block")


class ReferenceKernels(ReferenceHazard):
    """See :class:`dcr_mpi.kernels.api.Kernels`."""

    name = "numpy"
    device = "cpu"
    lot = HOST_LOT

    def changes(self, base: np.ndarray, new: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> Changes:
        per_block = [np.flatnonzero(base[o : o + n] != new[o : o + n]) for o, n in zip(offsets, sizes, strict=True)]
        counts = np.array([len(p) for p in per_block], np.int64)
        positions = _join(per_block, np.uint32)
        at = _absolute(offsets, counts, positions)
        return Changes(counts, positions, base[at], new[at])

    def gather(self, words: np.ndarray, offsets: np.ndarray, counts: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return words[_absolute(offsets, counts, positions)]

    def scatter(
        self,
        words: np.ndarray,
        offsets: np.ndarray,
        counts: np.ndarray,
        positions: np.ndarray,
        values: np.ndarray,
    ) -> None:
        words[_absolute(offsets, counts, positions)] = values

    def pack_gaps(self, positions: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        previous = np.empty(len(positions), np.int64)
        previous[1:] = positions[:-1]
        previous[_firsts(counts)] = -1
        gaps = positions.astype(np.int64) - previous - 1
        escapes = gaps[gaps >= GAP_ESCAPE].astype(np.uint32)
        return np.minimum(gaps, GAP_ESCAPE).astype(np.uint8), escapes

    def unpack_gaps(self, gaps: np.ndarray, escapes: np.ndarray, counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        if int(counts.sum()) != len(gaps):
            raise bad_gaps(f"{len(gaps)} gaps for {int(counts.sum())} changes")
        steps = gaps.astype(np.int64)
        escaped = steps == GAP_ESCAPE
        if int(escaped.sum()) != len(escapes):
            raise bad_gaps(f"{len(escapes)} escapes for {int(escaped.sum())} escape bytes")
        if len(escapes) and int(escapes.min()) < GAP_ESCAPE:
            raise bad_gaps(f"an escape of {int(escapes.min())}")
        steps[escaped] = escapes
        ends = np.cumsum(steps + 1)
        before = np.concatenate(([0], ends))[np.cumsum(counts) - counts]
        positions = ends - np.repeat(before, counts) - 1
        if len(positions) and bool((positions >= np.repeat(sizes, counts)).any()):
            raise bad_gaps("a position past the end of its block")
        return positions.astype(np.uint32)

    def difference(self, scheme: ValueScheme, old: np.ndarray, new: np.ndarray, dtype: DType) -> np.ndarray:
        if scheme == "overwrite":
            return new
        if scheme == "xor":
            return old ^ new
        d = _order(new, dtype) - _order(old, dtype)
        top = d >> _scalar(d, 8 * d.itemsize - 1)  # 1 where the difference is negative
        zigzag = (d << _scalar(d, 1)) ^ (~top + _scalar(d, 1))
        return zigzag - _scalar(d, 1)

    def restore(self, scheme: ValueScheme, old: np.ndarray, coded: np.ndarray, dtype: DType) -> np.ndarray:
        if scheme == "overwrite":
            return coded
        if scheme == "xor":
            return old ^ coded
        one = _scalar(coded, 1)
        zigzag = coded + one
        d = (zigzag >> one) ^ (~(zigzag & one) + one)
        return _unorder(_order(old, dtype) + d, dtype)

    def state_changes(
        self, geometry: np.ndarray, counts: np.ndarray, positions: np.ndarray, old: np.ndarray, new: np.ndarray
    ) -> np.ndarray:
        out = np.zeros((len(counts), 2), np.uint64)
        at = 0
        for block, count in enumerate(counts):
            here = slice(at, at + int(count))
            index = _canonical(geometry[block], positions[here])
            for lane, (after, before) in enumerate(zip(_mix(index, new[here]), _mix(index, old[here]), strict=True)):
                out[block, lane] = (after - before).sum(dtype=np.uint64)
            at += int(count)
        return out

    def state_words(
        self, geometry: np.ndarray, words: np.ndarray, offsets: np.ndarray, sizes: np.ndarray
    ) -> np.ndarray:
        out = np.zeros((len(sizes), 2), np.uint64)
        for block, (o, n) in enumerate(zip(offsets, sizes, strict=True)):
            index = _canonical(geometry[block], np.arange(n, dtype=np.int64))
            for lane, mixed in enumerate(_mix(index, words[o : o + n])):
                out[block, lane] = mixed.sum(dtype=np.uint64)
        return out


def _scalar(like: np.ndarray, value: int) -> np.generic:
    return like.dtype.type(value)


def _join(arrays: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(arrays).astype(dtype) if arrays else np.empty(0, dtype)


def _firsts(counts: np.ndarray) -> np.ndarray:
    """Index of each non-empty block's first change."""
    return (np.cumsum(counts) - counts)[counts > 0]


def _absolute(offsets: np.ndarray, counts: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.repeat(offsets, counts) + positions.astype(np.int64)


def _order(words: np.ndarray, dtype: DType) -> np.ndarray:
    if not dtype.is_float:
        return words
    sign = _scalar(words, 1 << (8 * words.itemsize - 1))
    return np.where(words & sign, ~words, words | sign)


def _unorder(ordered: np.ndarray, dtype: DType) -> np.ndarray:
    if not dtype.is_float:
        return ordered
    sign = _scalar(ordered, 1 << (8 * ordered.itemsize - 1))
    return np.where(ordered & sign, ordered ^ sign, ~ordered)


def _canonical(geometry: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Canonical flat word index of words at ``positions`` of a block."""
    dims = (len(geometry) - 2) // 2
    k = positions.astype(np.int64) + geometry[0]
    index = np.full(len(positions), geometry[1], np.int64)
    for extent, stride in zip(geometry[2 : 2 + dims][::-1], geometry[2 + dims :][::-1], strict=True):
        k, i = np.divmod(k, extent)
        index += i * stride
    return index.astype(np.uint64)


def _mix(index: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    u = np.uint64
    x = index * u(MIX_A) + words.astype(np.uint64) * u(MIX_B)
    x ^= x >> u(32)
    x *= u(MIX_C)
    x ^= x >> u(29)
    x *= u(MIX_D)
    x ^= x >> u(32)
    return x, (x ^ (x >> u(31))) * u(MIX_E)
