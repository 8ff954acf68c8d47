"""The class coder's kernels in numba: what the model is fitted to, hazards, and the calls of :mod:`.jit_rans`."""

from __future__ import annotations

import numpy as np

from .api import Changes
from .hazard import DIRECT, VALUE_SCALE, Axis, Model, tokens
from .jit_rans import CHUNK, COMMON, CUT, decode, encode, sum_rates, token_of
from .jitting import jit

_u64 = np.uint64
_COUNTERS = 4  # of each exponent: neighbours are often alike, and adding to what was just stored has to wait for it


class JitHazard:
    """See :class:`dcr_mpi.kernels.api.Kernels`, the class coder's methods."""

    def exponents(
        self, words: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, shift: int, mask: int, step: int
    ) -> np.ndarray:
        out = np.zeros(mask + 1, np.int64)
        _exponents(words, offsets, sizes, shift, mask, step, out)
        return out

    def tallies(self, old: np.ndarray, coded: np.ndarray, shift: int, mask: int) -> np.ndarray:
        out = np.zeros((mask + 1, tokens(coded.itemsize)), np.int64)
        _tallies(old, coded, shift, mask, out)
        return out

    def hazards(
        self, model: Model, base: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, changes: Changes
    ) -> np.ndarray:
        out = np.empty(len(changes.positions), np.int64)
        _hazards(base, offsets, sizes, changes.counts, changes.positions, *_lookup(model, base), out)
        return out

    def hazard_encode(
        self, model: Model, axis: Axis, hazards: np.ndarray, old: np.ndarray, coded: np.ndarray
    ) -> np.ndarray:
        escapes = int(hazards.sum()) // axis.end
        out = np.empty(2 * len(coded) + 5 * int(np.count_nonzero(coded >= DIRECT)) + escapes + 4, np.uint32)
        reciprocals = _u64((1 << 64) - 1) // np.maximum(model.size, 1).astype(_u64)
        begin = encode(
            hazards,
            old,
            coded,
            model.shift,
            model.mask,
            model.rate,
            model.context,
            model.start,
            model.size,
            reciprocals,
            axis.halving,
            axis.log2,
            axis.end,
            out,
        )
        return out[int(begin) :]

    def hazard_decode(
        self,
        model: Model,
        axis: Axis,
        base: np.ndarray,
        offsets: np.ndarray,
        sizes: np.ndarray,
        total: int,
        code: np.ndarray,
    ) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        counts, positions = np.zeros(len(sizes), np.int64), np.empty(total, np.uint32)
        coded = np.empty(total, base.dtype)
        if len(code) < 2:
            return CUT, counts, positions, coded
        used = decode(
            base,
            offsets,
            sizes,
            total,
            code,
            *_lookup(model, base),
            model.shift,
            model.mask,
            model.context,
            model.start,
            model.size,
            _ends(model),
            axis.halving,
            axis.inverse,
            axis.log2,
            axis.end,
            counts,
            positions,
            coded,
        )
        return used, counts, positions, coded


def _lookup(model: Model, base: np.ndarray) -> tuple[np.ndarray, int]:
    """Rates by ``word >> drop``, sign bit and all: one shift and one look-up per word."""
    bits = 8 * base.itemsize
    drop = model.shift if model.mask else bits - 1
    return model.rate[np.arange(1 << (bits - drop)) & model.mask].astype(np.int32), drop


def _ends(model: Model) -> np.ndarray:
    """Where each token's interval ends, int32 (contexts, tokens); at least ``COMMON`` tokens."""
    out = np.full((len(model.size), max(model.size.shape[1], COMMON)), 1 << VALUE_SCALE, np.int32)
    out[:, : model.size.shape[1]] = model.start + model.size
    return out


@jit
def _hazards(base, offsets, sizes, counts, positions, rates, drop, out):  # type: ignore[no-untyped-def]
    sums = np.empty(CHUNK + 1, np.int32)
    k, carry = _u64(0), np.int64(0)
    for block in range(len(sizes)):
        end = k + _u64(counts[block])
        for low in range(0, sizes[block], CHUNK):
            count = min(CHUNK, sizes[block] - low)
            sum_rates(base, offsets[block] + low, count, rates, drop, sums)
            since = np.int64(0)
            while k < end:
                i = np.int64(positions[k]) - low
                if i >= count:
                    break
                out[k] = carry + np.int64(sums[_u64(i)]) - since
                carry, since = np.int64(0), np.int64(sums[_u64(i + 1)])
                k += _u64(1)
            carry += np.int64(sums[_u64(count)]) - since


@jit
def _exponents(words, offsets, sizes, shift, mask, step, out):  # type: ignore[no-untyped-def]
    seen = np.zeros((_COUNTERS, mask + 1), np.int64)
    for block in range(len(sizes)):
        at = offsets[block]
        for n, i in enumerate(range(0, sizes[block], step)):
            seen[_u64(n) % _u64(_COUNTERS), (_u64(words[_u64(at + i)]) >> _u64(shift)) & _u64(mask)] += 1
    for counter in range(_COUNTERS):
        out += seen[counter]


@jit
def _tallies(old, coded, shift, mask, out):  # type: ignore[no-untyped-def]
    for k in range(_u64(len(old))):
        token, _ = token_of(_u64(coded[k]))
        out[(_u64(old[k]) >> _u64(shift)) & _u64(mask), _u64(token)] += 1
