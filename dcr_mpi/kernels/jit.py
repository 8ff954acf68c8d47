"""The kernels in numba: one pass each, compiled once per word width, without the interpreter's lock."""

from __future__ import annotations

import threading

import numpy as np

from ..dtypes import DType
from .api import GAP_ESCAPE, HOST_LOT, Changes, ValueScheme
from .jit_hazard import JitHazard
from .jit_state import JitState
from .jitting import inline, jit
from .reference import bad_gaps

_u64 = np.uint64
_CHUNK = 4096  # words compared at a time
_AT_ONCE = HOST_LOT  # words whose changes all have room, whatever changed


class _Columns(threading.local):
    """Room of each thread for changes: positions, and words before and after, by the bytes of a word."""

    def __init__(self) -> None:
        self._rooms: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def columns(self, room: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Three arrays of at least ``room`` entries, with anything in them; good until this thread asks again."""
        found = self._rooms.get(width)
        if found is None or len(found[0]) < room:
            kind = f"<u{width}"
            found = np.empty(room, np.uint32), np.empty(room, kind), np.empty(room, kind)
            self._rooms[width] = found
        return found


class JitKernels(JitHazard, JitState):
    """See :class:`dcr_mpi.kernels.api.Kernels`."""

    name = "numba"
    device = "cpu"
    lot = HOST_LOT
    _scratch = _Columns()

    def changes(self, base: np.ndarray, new: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> Changes:
        blocks = len(sizes)
        counts = np.zeros(blocks, np.int64)
        if len(base) <= _AT_ONCE:
            out = self._scratch.columns(_AT_ONCE + 1, base.itemsize)
            _, used = _changes(base, new, offsets, sizes, 0, counts, *out)
            return Changes(counts, out[0][:used].copy(), out[1][:used].copy(), out[2][:used].copy())
        parts: list[tuple[np.ndarray, ...]] = []
        block = 0
        while block < blocks:
            # Outputs have room for an eighth of what is left, and at least one whole block: dense data takes
            # a few rounds, sparse data one, and memory stays bounded by the bucket.
            room = max(int(sizes[block:].sum()) // 8, int(sizes[block:].max())) + 1
            out = self._scratch.columns(room, base.itemsize)
            block, used = _changes(base, new, offsets, sizes, block, counts, *out)
            parts.append(tuple(column[:used].copy() for column in out))
        if len(parts) == 1:
            return Changes(counts, *parts[0])
        empty = np.empty(0, np.uint32), np.empty(0, base.dtype), np.empty(0, base.dtype)
        return Changes(counts, *(np.concatenate(column) for column in zip(empty, *parts, strict=True)))

    def gather(self, words: np.ndarray, offsets: np.ndarray, counts: np.ndarray, positions: np.ndarray) -> np.ndarray:
        out = np.empty(len(positions), words.dtype)
        _gather(words, offsets, counts, positions, out)
        return out

    def scatter(
        self,
        words: np.ndarray,
        offsets: np.ndarray,
        counts: np.ndarray,
        positions: np.ndarray,
        values: np.ndarray,
    ) -> None:
        _scatter(words, offsets, counts, positions, values)

    def pack_gaps(self, positions: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gaps = np.empty(len(positions), np.uint8)
        escapes = np.empty(_pack_gaps(positions, counts, gaps, np.empty(0, np.uint32)), np.uint32)
        if len(escapes):
            _pack_gaps(positions, counts, gaps, escapes)
        return gaps, escapes

    def unpack_gaps(self, gaps: np.ndarray, escapes: np.ndarray, counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        if int(counts.sum()) != len(gaps):
            raise bad_gaps(f"{len(gaps)} gaps for {int(counts.sum())} changes")
        positions = np.empty(len(gaps), np.uint32)
        fault = _unpack_gaps(gaps, escapes, counts, sizes, positions)
        if fault:
            raise bad_gaps(
                (
                    "",
                    "escapes that do not match the escape bytes",
                    "an escape under 255",
                    "a position past the end of its block",
                )[fault]
            )
        return positions

    def difference(self, scheme: ValueScheme, old: np.ndarray, new: np.ndarray, dtype: DType) -> np.ndarray:
        if scheme == "overwrite":
            return new
        if scheme == "xor":
            return old ^ new
        out = np.empty_like(new)
        _ulp(old, new, _sign(old, dtype), 8 * old.itemsize - 1, out)
        return out

    def restore(self, scheme: ValueScheme, old: np.ndarray, coded: np.ndarray, dtype: DType) -> np.ndarray:
        if scheme == "overwrite":
            return coded
        if scheme == "xor":
            return old ^ coded
        out = np.empty_like(coded)
        _unulp(old, coded, _sign(old, dtype), out)
        return out


def _sign(words: np.ndarray, dtype: DType) -> np.uint64:
    """The sign bit for floats; 0 tells the kernels to take words as plain integers."""
    return _u64(1 << (8 * words.itemsize - 1) if dtype.is_float else 0)


@inline
def _lowest(eight):  # type: ignore[no-untyped-def]
    """The index of the lowest byte that is 1, of bytes of 0 and 1; 0 where none is.

    The lowest set bit is 2^(8 i): times this number, it shifts i into the highest byte.
    """
    return ((eight & (_u64(0) - eight)) * _u64(0x0001020304050607)) >> _u64(56)


@jit
def _changes(base, new, offsets, sizes, block, counts, positions, old, val):  # type: ignore[no-untyped-def]
    # A chunk at a time is compared into bytes of 0 and 1, which the compiler makes wide instructions of. Then eights of
    # them that have a 1 are listed, and the changes in those emitted, two at a time whether there is a second or not:
    # a branch that a change decides is mispredicted, and costs more than the rest. Outputs have one place to spare.
    flags = np.zeros(_CHUNK, np.uint8)
    eights = flags.view(_u64)
    found = np.empty(_CHUNK // 8 + 1, np.uint32)
    k = _u64(0)
    while block < len(sizes):
        size, at = sizes[block], offsets[block]
        if len(positions) - np.int64(k) <= size:
            break
        first = k
        for low in range(0, size, _CHUNK):
            count = min(_CHUNK, size - low)
            a, b = base[at + low : at + low + count], new[at + low : at + low + count]
            for i in range(count):
                flags[i] = a[i] != b[i]
            flags[count : (count + 7) // 8 * 8] = 0
            some = _u64(0)
            for g in range(_u64((count + 7) // 8)):
                found[some] = g
                some += _u64(eights[g] != _u64(0))
            for f in range(some):
                eight, near = eights[_u64(found[f])], _u64(found[f]) << _u64(3)
                here = near + _lowest(eight)
                positions[k], old[k], val[k] = _u64(low) + here, a[here], b[here]
                k += _u64(1)
                eight &= eight - _u64(1)
                here = near + _lowest(eight)
                positions[k], old[k], val[k] = _u64(low) + here, a[here], b[here]
                k += _u64(eight != _u64(0))
                eight &= eight - _u64(1)
                while eight != _u64(0):
                    here = near + _lowest(eight)
                    positions[k], old[k], val[k] = _u64(low) + here, a[here], b[here]
                    k += _u64(1)
                    eight &= eight - _u64(1)
        counts[block] = k - first
        block += 1
    return block, np.int64(k)


@jit
def _gather(words, offsets, counts, positions, out):  # type: ignore[no-untyped-def]
    k = 0
    for block in range(len(counts)):
        at = offsets[block]
        for _ in range(counts[block]):
            out[k] = words[at + positions[k]]
            k += 1


@jit
def _scatter(words, offsets, counts, positions, values):  # type: ignore[no-untyped-def]
    k = 0
    for block in range(len(counts)):
        at = offsets[block]
        for _ in range(counts[block]):
            words[at + positions[k]] = values[k]
            k += 1


@jit
def _pack_gaps(positions, counts, gaps, escapes):  # type: ignore[no-untyped-def]
    k, e = 0, 0
    for block in range(len(counts)):
        previous = np.int64(-1)
        for _ in range(counts[block]):
            here = np.int64(positions[k])
            gap = here - previous - 1
            if gap < GAP_ESCAPE:
                gaps[k] = gap
            else:
                gaps[k] = GAP_ESCAPE
                if e < len(escapes):
                    escapes[e] = gap
                e += 1
            previous = here
            k += 1
    return e


@jit
def _unpack_gaps(gaps, escapes, counts, sizes, positions):  # type: ignore[no-untyped-def]
    k, e, fault = 0, 0, 0
    for block in range(len(counts)):
        here = np.int64(-1)
        size = sizes[block]
        for _ in range(counts[block]):
            gap = np.int64(gaps[k])
            if gap == GAP_ESCAPE:
                if e == len(escapes):
                    return 1
                gap = np.int64(escapes[e])
                e += 1
                if gap < GAP_ESCAPE:
                    return 2
            here += gap + 1
            if here >= size:
                fault = 3
            positions[k] = here
            k += 1
    return fault if e == len(escapes) else 1


@jit
def _ulp(old, new, sign, top, out):  # type: ignore[no-untyped-def]
    # In 64 bits and cut to the word on store: only the difference's low bits matter.
    mask = (_u64(2) << _u64(top)) - _u64(1)
    for k in range(len(old)):
        a, b = _u64(old[k]), _u64(new[k])
        if sign:
            a = (a ^ mask) if a & sign else a | sign
            b = (b ^ mask) if b & sign else b | sign
        d = b - a
        negative = (d >> _u64(top)) & _u64(1)
        out[k] = (((d << _u64(1)) ^ (_u64(0) - negative)) - _u64(1)) & mask


@jit
def _unulp(old, coded, sign, out):  # type: ignore[no-untyped-def]
    mask = (_u64(2) << _u64(8 * old.itemsize - 1)) - _u64(1)
    for k in range(len(old)):
        a = _u64(old[k])
        if sign:
            a = (a ^ mask) if a & sign else a | sign
        zigzag = (_u64(coded[k]) + _u64(1)) & mask
        b = a + ((zigzag >> _u64(1)) ^ (_u64(0) - (zigzag & _u64(1))))
        if sign:
            b = (b ^ sign) if b & sign else b ^ mask
        out[k] = b & mask
