"""The range asymmetric coder (rANS) of the class coder, in numba.

rANS is Jarek Duda's (arXiv:1311.2540), with a 64-bit state that moves by 32-bit words. The encoder takes changes last
to first, so that the decoder reads first to last. Both are one chain of dependent steps: what can be known off the
chain is computed off it, and what a coin decides is no branch.
"""

from __future__ import annotations

import numpy as np

from .hazard import DIRECT, LOW, ONE, SCALE, VALUE_SCALE
from .jitting import count_up_to, high_product, inline, jit, leading_zeros

_u64 = np.uint64
_LOW, _WORD = _u64(LOW), _u64(32)
_MASK32, _MASK64 = _u64(0xFFFFFFFF), _u64(0xFFFFFFFFFFFFFFFF)
CHUNK = 4096  # words summed at a time: no rate is over 2^18.6, so 32 bits hold the sum
WINDOW = 64  # sums that :func:`count_up_to` looks at
_NEVER = np.int32((1 << 31) - 1)  # past every sum
COMMON = 4  # value tokens told apart without a branch
CUT, PAST, BEHIND = -1, -2, -3  # faults: code ends early, positions past the last block, or inside what was skipped

# Indices are unsigned throughout: a signed one is checked for being negative, as Python has it, at every access.


@jit
def sum_rates(base, at, count, rates, drop, sums):  # type: ignore[no-untyped-def]
    """Hazard before each of ``count`` words, and after the last: a branch-free pass, so that the walk over changes
    that follows pays for its mispredicted branches alone."""
    x, first = np.int32(0), _u64(at)
    for i in range(_u64(count)):
        sums[i] = x
        x += rates[_u64(base[first + i]) >> _u64(drop)]
    sums[_u64(count)] = x


@inline
def token_of(value):  # type: ignore[no-untyped-def]
    """A value's token, and how many bits follow it."""
    if value < _u64(DIRECT):
        return np.int64(value), 0
    length = 63 - np.int64(leading_zeros(value))
    return DIRECT + 2 * (length - 4) + np.int64((value >> _u64(length - 1)) & _u64(1)), length - 1


@jit
def _below(halving, log2, x):  # type: ignore[no-untyped-def]
    """C(x)."""
    return np.int64(ONE) - (np.int64(halving[_u64(x) & _u64((1 << log2) - 1)]) >> (x >> log2))


@inline
def _enter(x, w, out, start, size, bits, reciprocal):  # type: ignore[no-untyped-def]
    """Enter an interval. ``reciprocal`` is (2^64 - 1) div size: its product's upper half is x div size, or one less."""
    full = x >= (size << (_u64(64) - bits))
    out[w - _u64(1)] = x & _MASK32
    y = (x >> _WORD) if full else x
    quotient = high_product(y, reciprocal)
    rest = y - quotient * size
    short = rest >= size
    quotient += _u64(short)
    rest -= size if short else _u64(0)
    return (quotient << bits) + rest + start, w - _u64(full)


@jit
def encode(  # type: ignore[no-untyped-def]
    hazards, old, coded, shift, mask, rate, context, vstart, vsize, vreciprocal, halving, log2, end, out
):
    """The code of all changes at the end of ``out``, which has a place for every interval and some to spare; returns
    where it begins."""
    x, w = _LOW, _u64(len(out))
    last = _u64(_below(halving, log2, end))
    for k in range(len(hazards) - 1, -1, -1):
        exponent = (_u64(old[_u64(k)]) >> _u64(shift)) & _u64(mask)
        value = _u64(coded[_u64(k)])
        token, bits = token_of(value)
        done = 0
        while done < bits:  # the last piece is the short one
            step = (bits - done - 1) % 16 + 1
            piece = (value >> _u64(done)) & ((_u64(1) << _u64(step)) - _u64(1))
            x, w = _enter(x, w, out, piece, _u64(1), _u64(step), _MASK64)
            done += step
        row, column = _u64(context[exponent]), _u64(token)
        size = _u64(vsize[row, column])
        if size != _u64(1 << VALUE_SCALE):  # else certain: costs nothing
            start = _u64(vstart[row, column])
            x, w = _enter(x, w, out, start, size, _u64(VALUE_SCALE), vreciprocal[row, column])
        escaped, hazard = 0, hazards[_u64(k)]
        while hazard >= end:
            hazard -= end
            escaped += 1
        low = _below(halving, log2, hazard)
        size = _u64(_below(halving, log2, min(hazard + rate[exponent], end)) - low)
        x, w = _enter(x, w, out, _u64(low), size, _u64(SCALE), _MASK64 // size)
        for _ in range(escaped):
            x, w = _enter(x, w, out, last, _u64(ONE) - last, _u64(SCALE), _MASK64 // (_u64(ONE) - last))
    out[w - _u64(1)], out[w - _u64(2)] = x & _MASK32, x >> _WORD
    return w - _u64(2)


@inline
def _leave(x, w, code, start, size, bits):  # type: ignore[no-untyped-def]
    """Leave an interval; whether the state then takes a word of code is a coin toss, so it is no branch. ``w`` past
    the code says that there was none."""
    x = size * (x >> bits) + ((x & ((_u64(1) << bits) - _u64(1))) - start)
    short = x < _LOW
    more = (x << _WORD) | _u64(code[min(w, _u64(len(code) - 1))])
    return (more if short else x), w + _u64(short)


@jit
def decode(  # type: ignore[no-untyped-def]
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
    halving,
    inverse,
    log2,
    end,
    counts,
    positions,
    coded,
):
    """Fill counts, positions and coded values; returns the words of code used, or a fault."""
    x = (_u64(code[0]) << _WORD) | _u64(code[1])
    w, limit, k = _u64(2), _u64(len(code)), _u64(0)
    left = np.int64(ONE) >> (end >> log2)  # mass past the axis' end
    # A chunk of words at a time is summed: words ``low`` to ``low + count`` of ``block``, ``i`` words of it are done.
    sums = np.zeros(CHUNK + 1 + WINDOW, np.int32)
    block, low, count, i = -1, np.int64(0), np.int64(0), _u64(0)
    hazard, skipped = np.int64(0), np.int64(0)  # since the last change: before the word ``i``, and of that, escaped
    if x < _LOW:
        return CUT  # no coder leaves such a state, and none of the steps below would be bounded by the code
    while k < _u64(total):
        slot = np.int64(x & _u64(ONE - 1))
        mass = np.int64(ONE) - slot
        if mass <= left:
            x, w = _leave(x, w, code, _u64(ONE - left), _u64(left), _u64(SCALE))
            if w > limit:
                return CUT
            skipped += end
            if skipped > np.int64(1) << 60:
                return PAST
            continue
        # The hazard that the state points at, or a little less: the word found by it is the right one or one before,
        # which its interval shows.
        halvings = leading_zeros(_u64(mass - 1)) - _u64(64 - SCALE)  # until the mass is over a half
        near = inverse[(_u64(ONE) - (_u64(mass) << halvings)) >> _u64(SCALE - 1 - log2)]
        target = (np.int64(halvings) << log2) + np.int64(near) + skipped
        while True:
            goal = target - hazard + np.int64(sums[i])
            rest = np.int64(sums[_u64(count)])
            if rest <= goal:
                hazard += rest - np.int64(sums[i])
                low += count
                if block < 0 or low >= sizes[block]:
                    block, low = block + 1, np.int64(0)
                    if block >= len(sizes):
                        return PAST
                count, i = min(np.int64(CHUNK), sizes[block] - low), _u64(0)
                sum_rates(base, offsets[block] + low, count, rates, drop, sums)
                sums[count + 1 : count + 1 + WINDOW] = _NEVER
                continue
            word, reach = i, np.int32(goal)  # the first word whose sum passes the goal
            while sums[word + _u64(WINDOW)] <= reach:
                word += _u64(WINDOW)
            word += count_up_to(sums, word + _u64(1), reach)
            before = hazard + np.int64(sums[word]) - np.int64(sums[i]) - skipped
            after = hazard + np.int64(sums[word + _u64(1)]) - np.int64(sums[i]) - skipped
            stop = _below(halving, log2, min(after, end))
            if slot < stop:
                break
            target = after + skipped
        if before < 0:
            return BEHIND
        start = _below(halving, log2, before)
        x, w = _leave(x, w, code, _u64(start), _u64(stop - start), _u64(SCALE))
        if w > limit:
            return CUT
        skipped = hazard = np.int64(0)
        exponent = (_u64(base[_u64(offsets[block] + low) + word]) >> _u64(shift)) & _u64(mask)
        row = _u64(context[exponent])
        place, token = np.int32(x & _u64((1 << VALUE_SCALE) - 1)), _u64(0)
        for common in range(COMMON):
            token += _u64(place >= vend[row, _u64(common)])
        while place >= vend[row, token]:
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
