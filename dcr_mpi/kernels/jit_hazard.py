"""The class coder's kernels in numba: hazards, intervals, and the range asymmetric coder (rANS) under them.

rANS is Jarek Duda's (arXiv:1311.2540), with a 64-bit state that moves by 32-bit words. The encoder walks forward to
find intervals and then codes them backwards, so that the decoder reads forward.
"""

from __future__ import annotations

import numpy as np

from .api import Changes
from .hazard import DIRECT, LOW, ONE, SCALE, VALUE_SCALE, Axis, Model, tokens
from .jitting import inline, jit

_u64 = np.uint64
_LOW, _WORD = _u64(LOW), _u64(32)
_MASK32 = _u64(0xFFFFFFFF)
_CHUNK, _WINDOW = 4096, 16  # words summed at a time (no rate is over 2^18.6, so 32 bits hold the sum), and searched
_NEVER = np.int32((1 << 31) - 1)  # past every sum
# By the highest 8 bits of a mass less one: how often it doubles until it is over a half, as far as they tell.
_DOUBLINGS = np.array([8 - k.bit_length() for k in range(256)], np.int64)
_COMMON = 4  # value tokens told apart without a branch
CUT, PAST, BEHIND = -1, -2, -3  # faults: code ends early, positions past the last block, or inside what was skipped


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
            _ends(model),
            _DOUBLINGS,
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
    """Where each token's interval ends, int32 (contexts, tokens); at least ``_COMMON`` tokens."""
    out = np.full((len(model.size), max(model.size.shape[1], _COMMON)), 1 << VALUE_SCALE, np.int32)
    out[:, : model.size.shape[1]] = model.start + model.size
    return out


# Indices are unsigned throughout: a signed one is checked for being negative, as Python has it, at every access.


@jit
def _sums(base, at, count, rates, drop, sums):  # type: ignore[no-untyped-def]
    """Hazard before each of ``count`` words, and after the last: a branch-free pass, so that the walk over changes
    that follows pays for its mispredicted branches alone."""
    x, first = np.int32(0), _u64(at)
    for i in range(_u64(count)):
        sums[i] = x
        x += rates[_u64(base[first + i]) >> _u64(drop)]
    sums[_u64(count)] = x


@jit
def _hazards(base, offsets, sizes, counts, positions, rates, drop, out):  # type: ignore[no-untyped-def]
    sums = np.empty(_CHUNK + 1, np.int32)
    k, carry = _u64(0), np.int64(0)
    for block in range(len(sizes)):
        end = k + _u64(counts[block])
        for low in range(0, sizes[block], _CHUNK):
            count = min(_CHUNK, sizes[block] - low)
            _sums(base, offsets[block] + low, count, rates, drop, sums)
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
    for block in range(len(sizes)):
        at = offsets[block]
        for i in range(0, sizes[block], step):
            out[(np.int64(words[at + i]) >> shift) & mask] += 1


@inline
def _token(value):  # type: ignore[no-untyped-def]
    """A value's token, and how many bits follow it."""
    if value < _u64(DIRECT):
        return np.int64(value), 0
    length = 4
    while (value >> _u64(length + 1)) != _u64(0):
        length += 1
    return DIRECT + 2 * (length - 4) + np.int64((value >> _u64(length - 1)) & _u64(1)), length - 1


@jit
def _tallies(old, coded, shift, mask, out):  # type: ignore[no-untyped-def]
    for k in range(_u64(len(old))):
        token, _ = _token(_u64(coded[k]))
        out[(_u64(old[k]) >> _u64(shift)) & _u64(mask), _u64(token)] += 1


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
        token, bits = _token(value)
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


@inline
def _leave(x, w, code, start, size, bits):  # type: ignore[no-untyped-def]
    """Leave an interval; whether the state then takes a word of code is a coin toss, so it is no branch. ``w`` past
    the code says that there was none."""
    x = size * (x >> bits) + ((x & ((_u64(1) << bits) - _u64(1))) - start)
    short = x < _LOW
    more = (x << _WORD) | _u64(code[min(w, _u64(len(code) - 1))])
    return (more if short else x), w + _u64(short)


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
    vend,
    doublings,
    halving,
    inverse,
    log2,
    end,
    counts,
    positions,
    coded,
):
    x = (_u64(code[0]) << _WORD) | _u64(code[1])
    w, limit, k = _u64(2), _u64(len(code)), _u64(0)
    top = (1 << log2) - 1
    left = np.int64(ONE) >> (end >> log2)  # mass past the axis' end
    # A chunk of words at a time is summed: words ``low`` to ``low + count`` of ``block``, ``i`` words of it are done.
    sums = np.zeros(_CHUNK + 1 + _WINDOW, np.int32)
    block, low, count, i = -1, np.int64(0), np.int64(0), _u64(0)
    hazard, skipped = np.int64(0), np.int64(0)  # since the last change: before the word ``i``, and of that, escaped
    if x < _LOW:
        return CUT  # no coder leaves such a state, and none of the steps below would be bounded by the code
    while k < _u64(total):
        mass = np.int64(ONE) - np.int64(x & _u64(ONE - 1))
        if mass <= left:
            x, w = _leave(x, w, code, _u64(ONE - left), _u64(left), _u64(SCALE))
            if w > limit:
                return CUT
            skipped += end
            if skipped > np.int64(1) << 60:
                return PAST
            continue
        # The hazard that the state points at. What a coin decides is no branch here; the loops are for rare cases.
        halvings = doublings[_u64(mass - 1) >> _u64(SCALE - 8)]
        mass <<= halvings
        while mass <= ONE >> 1:
            mass <<= 1
            halvings += 1
        j = np.int64(inverse[_u64(ONE - mass) >> _u64(SCALE - 1 - log2)])
        j += j < top and np.int64(halving[_u64(min(j + 1, top))]) >= mass
        j += j < top and np.int64(halving[_u64(min(j + 1, top))]) >= mass
        while j < top and np.int64(halving[_u64(j + 1)]) >= mass:
            j += 1
        target = (halvings << log2) + j + skipped
        while True:
            goal = target - hazard + np.int64(sums[i])
            rest = np.int64(sums[_u64(count)])
            if rest > goal:
                break
            hazard += rest - np.int64(sums[i])
            low += count
            if block < 0 or low >= sizes[block]:
                block, low = block + 1, np.int64(0)
                if block >= len(sizes):
                    return PAST
            count, i = min(np.int64(_CHUNK), sizes[block] - low), _u64(0)
            _sums(base, offsets[block] + low, count, rates, drop, sums)
            sums[count + 1 : count + 1 + _WINDOW] = _NEVER
        # The first word whose sum passes the goal: whole windows by comparison, the last by counting, branch-free.
        word, reach = i, np.int32(goal)
        while sums[word + _u64(_WINDOW)] <= reach:
            word += _u64(_WINDOW)
        passed = np.int32(0)
        for near in range(1, _WINDOW + 1):
            passed += np.int32(sums[word + _u64(near)] <= reach)
        word += _u64(passed)
        own = np.int64(sums[word + _u64(1)]) - np.int64(sums[word])
        before = hazard + np.int64(sums[word]) - np.int64(sums[i]) - skipped
        if before < 0:
            return BEHIND
        start = _below(halving, log2, before)
        size = _below(halving, log2, min(before + own, end)) - start
        x, w = _leave(x, w, code, _u64(start), _u64(size), _u64(SCALE))
        if w > limit:
            return CUT
        skipped = hazard = np.int64(0)
        exponent = (_u64(base[_u64(offsets[block] + low) + word]) >> _u64(shift)) & _u64(mask)
        row = _u64(context[exponent])
        slot, token = np.int32(x & _u64((1 << VALUE_SCALE) - 1)), _u64(0)
        for common in range(_COMMON):
            token += _u64(slot >= vend[row, _u64(common)])
        while slot >= vend[row, token]:
            token += _u64(1)
        if vsize[row, token] != 1 << VALUE_SCALE:
            x, w = _leave(x, w, code, _u64(vstart[row, token]), _u64(vsize[row, token]), _u64(VALUE_SCALE))
            if w > limit:
                return CUT
        value = token
        if token >= _u64(DIRECT):
            bits = 3 + int(np.int64(token) - DIRECT) // 2
            value = _u64(2) + (token - _u64(DIRECT)) % _u64(2)
            while bits > 0:
                step = _u64(min(bits, 16))
                bits -= min(bits, 16)
                low_bits = x & ((_u64(1) << step) - _u64(1))
                value = (value << step) | low_bits
                x, w = _leave(x, w, code, low_bits, _u64(1), step)
                if w > limit:
                    return CUT
        positions[k], coded[k] = _u64(low) + word, value
        counts[block] += 1
        k += _u64(1)
        i = word + _u64(1)
    return np.int64(w) if x == _LOW else CUT
