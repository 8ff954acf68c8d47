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
_CHUNK, _WINDOW = 4096, 16  # words summed at a time, and searched at a time
CUT, PAST, BEHIND = -1, -2, -3  # faults: code ends early, positions past the last block, or inside what was skipped


class JitHazard:
    """See :class:`dcr_mpi.kernels.api.Kernels`, the class coder's methods."""

    def exponents(
        self, words: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, shift: int, mask: int, step: int
    ) -> np.ndarray:
        out = np.zeros(mask + 1, np.int64)
        _exponents(words, offsets, sizes, shift, mask, step, out)
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
        escapes = int((hazards // axis.end).sum())
        room = 2 * len(coded) + 5 * int((coded >= DIRECT).sum()) + escapes
        start, size, scale = np.empty(room, np.uint32), np.empty(room, np.uint32), np.empty(room, np.uint8)
        count = _intervals(
            hazards,
            old,
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
        out = np.empty(count + 4, np.uint32)
        return out[_rans(start, size, scale, count, out) :]

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
            *_lookup(model, base),
            model.shift,
            model.mask,
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


def _lookup(model: Model, base: np.ndarray) -> tuple[np.ndarray, int]:
    """Rates by ``word >> drop``, sign bit and all: one shift and one look-up per word."""
    bits = 8 * base.itemsize
    drop = model.shift if model.mask else bits - 1
    return model.rate[np.arange(1 << (bits - drop)) & model.mask], drop


@jit
def _sums(base, at, count, rates, drop, sums):  # type: ignore[no-untyped-def]
    """Hazard before each of ``count`` words, and after the last: a branch-free pass, so that the walk over changes
    that follows pays for its mispredicted branches alone."""
    x = np.int64(0)
    for i in range(count):
        sums[i] = x
        x += rates[_u64(base[at + i]) >> _u64(drop)]
    sums[count] = x


@jit
def _hazards(base, offsets, sizes, counts, positions, rates, drop, out):  # type: ignore[no-untyped-def]
    sums = np.empty(_CHUNK + 1, np.int64)
    k, carry = 0, np.int64(0)
    for block in range(len(sizes)):
        end = k + counts[block]
        for low in range(0, sizes[block], _CHUNK):
            count = min(_CHUNK, sizes[block] - low)
            _sums(base, offsets[block] + low, count, rates, drop, sums)
            since = np.int64(0)
            while k < end:
                i = np.int64(positions[k]) - low
                if i >= count:
                    break
                out[k] = carry + sums[i] - since
                carry, since = np.int64(0), sums[i + 1]
                k += 1
            carry += sums[count] - since


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
    hazards,
    old,
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
    n = 0
    last = _below(halving, log2, end)
    for k in range(len(hazards)):
        exponent = np.int64((_u64(old[k]) >> _u64(shift)) & _u64(mask))
        x = hazards[k]
        while x >= end:
            start[n], size[n], scale[n] = last, ONE - last, SCALE
            n += 1
            x -= end
        low = _below(halving, log2, x)
        high = _below(halving, log2, min(x + rate[exponent], end))
        start[n], size[n], scale[n] = low, high - low, SCALE
        n += 1
        value = _u64(coded[k])
        token, bits = np.int64(value), 0
        if value >= _u64(DIRECT):
            length = 4
            while (value >> _u64(length + 1)) != _u64(0):
                length += 1
            token = DIRECT + 2 * (length - 4) + np.int64((value >> _u64(length - 1)) & _u64(1))
            bits = length - 1
        row = context[exponent]
        start[n], size[n], scale[n] = vstart[row, token], vsize[row, token], VALUE_SCALE
        n += 1
        while bits > 0:
            step = min(bits, 16)
            bits -= step
            start[n] = (value >> _u64(bits)) & ((_u64(1) << _u64(step)) - _u64(1))
            size[n], scale[n] = 1, step
            n += 1
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
    rates,
    drop,
    shift,
    mask,
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
    # A chunk of words at a time is summed: words ``low`` to ``low + count`` of ``block``, ``i`` words of it are done.
    sums = np.empty(_CHUNK + 1 + _WINDOW, np.int64)
    block, low, count, i = -1, np.int64(0), np.int64(0), np.int64(0)
    hazard, skipped = np.int64(0), np.int64(0)  # since the last change: before the word ``i``, and of that, escaped
    if x < _LOW:
        return CUT  # no coder leaves such a state, and none of the steps below would be bounded by the code
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
        while True:
            goal = target - hazard + sums[i]
            if count > 0 and sums[count] > goal:
                break
            hazard += sums[count] - sums[i] if count > 0 else 0
            low += count
            if block < 0 or low >= sizes[block]:
                block, low = block + 1, np.int64(0)
                if block >= len(sizes):
                    return PAST
            count, i = min(np.int64(_CHUNK), sizes[block] - low), np.int64(0)
            _sums(base, offsets[block] + low, count, rates, drop, sums)
            for j in range(count + 1, count + 1 + _WINDOW):
                sums[j] = np.int64(1) << 62
        # The first word whose sum passes the goal: whole windows by comparison, the last by counting, branch-free.
        first = i
        while sums[first + _WINDOW] <= goal:
            first += _WINDOW
        passed = np.int64(0)
        for j in range(1, _WINDOW + 1):
            passed += sums[first + j] <= goal
        word = first + passed
        own = sums[word + 1] - sums[word]
        exponent = np.int64((_u64(base[offsets[block] + low + word]) >> _u64(shift)) & _u64(mask))
        hazard += sums[word] - sums[i]
        before = hazard - skipped
        if before < 0:
            return BEHIND
        first = _below(halving, log2, before)
        after = _below(halving, log2, min(before + own, end))
        x = _u64(after - first) * (x >> _u64(SCALE)) + _u64(slot - first)
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
        positions[k], coded[k] = low + word, value
        counts[block] += 1
        k += 1
        i = word + 1
    return w if x == _LOW else CUT
