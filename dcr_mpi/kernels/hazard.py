"""The hazard axis: how positions become intervals that an entropy coder can code exactly.

Every word has a *rate*, a whole number of its class (class: the exponent of its baseline word). Walking from one
change to the next, the rates of the words passed add up to a hazard *x*; the next change lies at the word whose
interval ``[x, x + rate)`` an exponentially distributed point falls into. With

    C(x) = 2^30 - (E[x mod H] >> (x div H)),   E[j] = floor(2^30 * 2^(-j / H)),   H = 2^log2

a word's interval has the size C(x + rate) - C(x) out of 2^30: just the probability that a Bernoulli model with
p = 1 - 2^(-rate / H) gives to "nothing until here, then a change". The axis ends after 28 - log2 halvings; a gap that
runs past it is coded as an *escape* (the interval that is left) and goes on from there.

E is made of integer square roots, so that every machine has the same table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

SCALE = 30  # bits of an interval of positions
VALUE_SCALE = 12  # bits of an interval of value tokens
ONE = 1 << SCALE
LOW = 1 << 32  # the coder's state stays in [LOW, 2^64) and moves by 32-bit words
MIN_LOG2, MAX_LOG2 = 4, 16
DIRECT = 16  # value tokens below it are the value itself
_PRECISION = 96


@dataclass(frozen=True)
class Axis:
    """Tables of one resolution: ``halving`` E, uint32 (H,); ``inverse`` a first guess for j by mass, int32 (H,);
    ``end`` the hazard where the axis ends."""

    log2: int
    halving: np.ndarray
    inverse: np.ndarray
    end: int


@lru_cache(maxsize=MAX_LOG2 + 1)
def axis(log2: int) -> Axis:
    """The axis with ``2^log2`` steps per halving."""
    root, roots = 1 << (_PRECISION - 1), []
    for _ in range(log2):
        root = math.isqrt(root << _PRECISION)
        roots.append(root)
    powers = [1 << _PRECISION]
    for root in reversed(roots):  # 2^(-1/H), 2^(-2/H), 2^(-4/H), ...: each doubles the table
        powers += [(p * root) >> _PRECISION for p in powers]
    halving = np.array([p >> (_PRECISION - SCALE) for p in powers], np.uint32)
    steps = 1 << log2
    least = ONE - (np.arange(steps, dtype=np.int64) << (SCALE - 1 - log2))
    inverse = steps - 1 - np.searchsorted(halving[::-1].astype(np.int64), least, side="left")
    return Axis(log2, halving, inverse.astype(np.int32), (28 - log2) << log2)


def tokens(width: int) -> int:
    """Value tokens for words of ``width`` bytes: 16 direct ones, then two per doubling."""
    return DIRECT + 2 * (8 * width - 4)


def value_tokens(values: np.ndarray) -> np.ndarray:
    """The token of each value, int64: itself below 16, else its bit length and its second highest bit."""
    wide = values.astype(np.uint64)
    out = np.minimum(wide, DIRECT).astype(np.int64)
    large = np.flatnonzero(wide >= DIRECT)
    if len(large):
        rest = wide[large]
        length = np.zeros(len(large), np.int64)  # index of the highest bit
        for step in (32, 16, 8, 4, 2, 1):
            more = (rest >> np.uint64(step)) > 0
            length += step * more
            rest = np.where(more, rest >> np.uint64(step), rest)
        second = (wide[large] >> (length - 1).astype(np.uint64)) & np.uint64(1)
        out[large] = DIRECT + 2 * (length - 4) + second.astype(np.int64)
    return out


@dataclass(frozen=True)
class Model:
    """What coder and decoder agree on.

    ``rate`` and ``context`` are int64 by exponent field ``(word >> shift) & mask``; ``start`` and ``size`` are int64
    (contexts, tokens): cumulative and own frequency of each value token, out of 2^12.
    """

    shift: int
    mask: int
    log2: int
    rate: np.ndarray
    context: np.ndarray
    start: np.ndarray
    size: np.ndarray
