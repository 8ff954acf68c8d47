"""The class coder's kernels in numba: hazards, intervals, and the range asymmetric coder (rANS) under them.

rANS is Jarek Duda's (arXiv:1311.2540), with a 64-bit state that moves by 32-bit words. The encoder walks forward to
find intervals and then codes them backwards, so that the decoder reads forward.
"""

from __future__ import annotations

import numpy as np

from .api import Changes
from .hazard import DIRECT, LOW, ONE, SCALE, VALUE_SCALE, Axis, Model
from .jitting import jit

_u64 = np.uint64
_LOW, _WORD = _u64(LOW), _u64(32)
_MASK32 = _u64(0xFFFFFFFF)
CUT, PAST, BEHIND = -1, -2, -3  # faults: code ends early, positions past the last block, or inside what was skipped


class JitHazard:
    """See :class:`dcr_mpi.kernels.api.Kernels`, the class coder's methods."""

    def exponents(
        self, words: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, shift: int, mask: int, step: int
    ) -> np.ndarray:
        out = np.zeros(mask + 1, np.int64)
        _exponents(words, offsets, sizes, shift, mask, step, out)
        return out

    def hazard_encode(
        self,
        model: Model,
        axis: Axis,
        base: np.ndarray,
        offsets: np.ndarray,
        sizes: np.ndarray,
        changes: Changes,
        coded: np.ndarray,
    ) -> np.ndarray:
        room = 3 * len(coded) + 6 * int((coded >= DIRECT).sum()) + len(sizes) + 64
        while True:
            start, size, scale = np.empty(room, np.uint32), np.empty(room, np.uint32), np.empty(room, np.uint8)
            count = _intervals(
                base,
                offsets,
                sizes,
                changes.counts,
                changes.positions,
                coded,
                model.shift,
                model.mask,
                model.rate,
                model.context,
                model.start,
                model.size,
                axis.halving,
                axis.log2,
                axis.end,
                start,
                size,
                scale,
            )
            if count <= room:
                break
            room = count  # very many escapes: make room for what it said
        out = np.empty(count + 4, np.uint32)
        at = _rans(start, size, scale, count, out)
        return out[at:]

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
        used = _decode(
            base,
            offsets,
            sizes,
            total,
            code,
            model.shift,
            model.mask,
            model.rate,
            model.context,
            model.start,
            model.size,
            axis.halving,
            axis.inverse,
            axis.log2,
            axis.end,
            counts,
            positions,
            coded,
        )
        return used, counts, positions, coded


@jit
def _exponents(words, offsets, sizes, shift, mask, step, out):  # type: ignore[no-untyped-def]
    for block in range(len(sizes)):
        at = offsets[block]
        for i in range(0, sizes[block], step):
            out[(np.int64(words[at + i]) >> shift) & mask] += 1


@jit
def _below(halving, log2, x):  # type: ignore[no-untyped-def]
    """C(x)."""
    return np.int64(ONE) - (np.int64(halving[x & ((1 << log2) - 1)]) >> (x >> log2))


@jit
def _intervals(  # type: ignore[no-untyped-def]
    base,
    offsets,
    sizes,
    counts,
    positions,
    coded,
    shift,
    mask,
    rate,
    context,
    vstart,
    vsize,
    halving,
    log2,
    end,
    start,
    size,
    scale,
):
    k, n, room = 0, 0, len(start)
    x = np.int64(0)
    last = _below(halving, log2, end)
    for block in range(len(sizes)):
        at, i = offsets[block], np.int64(0)
        for _ in range(counts[block]):
            position = np.int64(positions[k])
            while i < position:
                x += rate[(np.int64(base[at + i]) >> shift) & mask]
                i += 1
            exponent = (np.int64(base[at + position]) >> shift) & mask
            while x >= end:
                if n < room:
                    start[n], size[n], scale[n] = last, ONE - last, SCALE
                n += 1
                x -= end
            low = _below(halving, log2, x)
            high = _below(halving, log2, min(x + rate[exponent], end))
            if n < room:
                start[n], size[n], scale[n] = low, high - low, SCALE
            n += 1
            x, i = np.int64(0), position + 1
            value = _u64(coded[k])
            token, bits = np.int64(value), 0
            if value >= _u64(DIRECT):
                length = 4
                while (value >> _u64(length + 1)) != _u64(0):
                    length += 1
                token = DIRECT + 2 * (length - 4) + np.int64((value >> _u64(length - 1)) & _u64(1))
                bits = length - 1
            if n < room:
                row = context[exponent]
                start[n], size[n], scale[n] = vstart[row, token], vsize[row, token], VALUE_SCALE
            n += 1
            while bits > 0:
                step = min(bits, 16)
                bits -= step
                if n < room:
                    start[n] = (value >> _u64(bits)) & ((_u64(1) << _u64(step)) - _u64(1))
                    size[n], scale[n] = 1, step
                n += 1
            k += 1
        while i < sizes[block]:
            x += rate[(np.int64(base[at + i]) >> shift) & mask]
            i += 1
    return n


@jit
def _rans(start, size, scale, count, out):  # type: ignore[no-untyped-def]
    x, w = _LOW, len(out)
    for k in range(count - 1, -1, -1):
        f, s = _u64(size[k]), _u64(scale[k])
        if f == (_u64(1) << s):
            continue  # certain: costs nothing
        if x >= (f << (_u64(64) - s)):
            w -= 1
            out[w] = x & _MASK32
            x >>= _WORD
        quotient = x // f
        x = (quotient << s) + (x - quotient * f) + _u64(start[k])
    out[w - 1], out[w - 2] = x & _MASK32, x >> _WORD
    return w - 2


@jit
def _decode(  # type: ignore[no-untyped-def]
    base,
    offsets,
    sizes,
    total,
    code,
    shift,
    mask,
    rate,
    context,
    vstart,
    vsize,
    halving,
    inverse,
    log2,
    end,
    counts,
    positions,
    coded,
):
    x = (_u64(code[0]) << _WORD) | _u64(code[1])
    w, k = 2, 0
    top = (1 << log2) - 1
    left = np.int64(ONE) >> (end >> log2)  # mass past the axis' end
    slots, values = _u64(ONE - 1), _u64((1 << VALUE_SCALE) - 1)
    block, i, hazard, skipped = 0, np.int64(0), np.int64(0), np.int64(0)
    if x < _LOW:
        return CUT  # no coder leaves such a state, and none of the steps below would be bounded by the code
    if len(sizes) == 0 and total > 0:
        return PAST
    while k < total:
        slot = np.int64(x & slots)
        mass = np.int64(ONE) - slot
        if mass <= left:
            x = _u64(left) * (x >> _u64(SCALE)) + _u64(slot - (np.int64(ONE) - left))
            if x < _LOW:
                if w >= len(code):
                    return CUT
                x, w = (x << _WORD) | _u64(code[w]), w + 1
            skipped += end
            if skipped > np.int64(1) << 60:
                return PAST
            continue
        halvings = 0
        while mass <= ONE >> 1:
            mass <<= 1
            halvings += 1
        j = inverse[(np.int64(ONE) - mass) >> (SCALE - 1 - log2)]
        while j < top and np.int64(halving[j + 1]) >= mass:
            j += 1
        target = (halvings << log2) + np.int64(j) + skipped
        own, exponent = np.int64(0), np.int64(0)
        while True:
            at, size, hit = offsets[block], sizes[block], False
            while i < size:
                exponent = (np.int64(base[at + i]) >> shift) & mask
                own = rate[exponent]
                if hazard + own > target:
                    hit = True
                    break
                hazard += own
                i += 1
            if hit:
                break
            block, i = block + 1, np.int64(0)
            if block == len(sizes):
                return PAST
        before = hazard - skipped
        if before < 0:
            return BEHIND
        low = _below(halving, log2, before)
        high = _below(halving, log2, min(before + own, end))
        x = _u64(high - low) * (x >> _u64(SCALE)) + _u64(slot - low)
        if x < _LOW:
            if w >= len(code):
                return CUT
            x, w = (x << _WORD) | _u64(code[w]), w + 1
        skipped = hazard = np.int64(0)
        row = context[exponent]
        slot, token = np.int64(x & values), 0
        while slot >= vstart[row, token] + vsize[row, token]:
            token += 1
        if vsize[row, token] != 1 << VALUE_SCALE:
            x = _u64(vsize[row, token]) * (x >> _u64(VALUE_SCALE)) + _u64(slot - vstart[row, token])
            if x < _LOW:
                if w >= len(code):
                    return CUT
                x, w = (x << _WORD) | _u64(code[w]), w + 1
        value = _u64(token)
        if token >= DIRECT:
            bits = 4 + (token - DIRECT) // 2 - 1
            value = _u64(2 + (token - DIRECT) % 2)
            while bits > 0:
                step = _u64(min(bits, 16))
                bits -= min(bits, 16)
                value = (value << step) | (x & ((_u64(1) << step) - _u64(1)))
                x >>= step
                if x < _LOW:
                    if w >= len(code):
                        return CUT
                    x, w = (x << _WORD) | _u64(code[w]), w + 1
        positions[k], coded[k] = i, value
        counts[block] += 1
        k += 1
        i += 1
    return w if x == _LOW else CUT
