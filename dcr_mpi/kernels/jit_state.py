"""The state digest's kernels in numba."""

from __future__ import annotations

import numpy as np

from ..digest import MIX_A, MIX_B, MIX_C, MIX_D, MIX_E
from .jitting import inline, jit

_u64 = np.uint64
_A, _B, _C, _D, _E = map(_u64, (MIX_A, MIX_B, MIX_C, MIX_D, MIX_E))
_S32, _S29, _S31 = map(_u64, (32, 29, 31))


class JitState:
    """See :class:`dcr_mpi.kernels.api.Kernels`, the state digest's methods."""

    def state_changes(
        self, geometry: np.ndarray, counts: np.ndarray, positions: np.ndarray, old: np.ndarray, new: np.ndarray
    ) -> np.ndarray:
        out = np.zeros((len(counts), 2), _u64)
        _state_changes(geometry, counts, positions, old, new, out)
        return out

    def state_words(
        self, geometry: np.ndarray, words: np.ndarray, offsets: np.ndarray, sizes: np.ndarray
    ) -> np.ndarray:
        out = np.zeros((len(sizes), 2), _u64)
        _state_words(geometry, words, offsets, sizes, out)
        return out


@inline
def _mix(index, word):  # type: ignore[no-untyped-def]
    x = _u64(index) * _A + _u64(word) * _B
    x ^= x >> _S32
    x *= _C
    x ^= x >> _S29
    x *= _D
    x ^= x >> _S32
    return x, (x ^ (x >> _S31)) * _E


@inline
def _canonical(row, dims, k):  # type: ignore[no-untyped-def]
    index = row[1]
    for d in range(dims - 1, -1, -1):
        extent = row[2 + d]
        index += (k % extent) * row[2 + dims + d]
        k //= extent
    return index


@jit
def _state_changes(geometry, counts, positions, old, new, out):  # type: ignore[no-untyped-def]
    dims = (geometry.shape[1] - 2) // 2
    k = 0
    for block in range(len(counts)):
        row = geometry[block]
        lane0, lane1 = _u64(0), _u64(0)
        end = k + counts[block]
        while k < end:
            # One run of the innermost dimension at a time: its changes come one after another, so that the inner loop
            # has no division, and the compiler makes wide instructions of it.
            here = row[0] + np.int64(positions[k])
            start = here - here % row[1 + dims]
            last, run = end, row[1 + dims] + start - row[0]
            if np.int64(positions[end - 1]) >= run:
                last = k + 1
                while np.int64(positions[last]) < run:
                    last += 1
            step = _u64(row[1 + 2 * dims])
            index = _u64(_canonical(row, dims, start)) - _u64(start - row[0]) * step
            for j in range(k, last):
                at = index + _u64(positions[j]) * step
                a0, a1 = _mix(at, new[j])
                b0, b1 = _mix(at, old[j])
                lane0 += a0 - b0
                lane1 += a1 - b1
            k = last
        out[block, 0], out[block, 1] = lane0, lane1


@jit
def _state_words(geometry, words, offsets, sizes, out):  # type: ignore[no-untyped-def]
    dims = (geometry.shape[1] - 2) // 2
    for block in range(len(sizes)):
        row, at, size = geometry[block], offsets[block], sizes[block]
        lane0, lane1 = _u64(0), _u64(0)
        done = 0
        while done < size:
            # One run of the innermost dimension at a time, so that the inner loop has no division.
            k = row[0] + done
            run = min(size - done, row[1 + dims] - k % row[1 + dims])
            index, step = _canonical(row, dims, k), row[1 + 2 * dims]
            for i in range(run):
                m0, m1 = _mix(index + i * step, words[at + done + i])
                lane0 += m0
                lane1 += m1
            done += run
        out[block, 0], out[block, 1] = lane0, lane1
