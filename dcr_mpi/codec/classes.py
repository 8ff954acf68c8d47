"""The class coder's model: how likely words of each exponent are to change, and what they change by.

An optimiser's step has about one size for all weights while a unit in the last place halves with every exponent, so
the chance to change doubles with each step down. Classes are runs of neighbouring exponents of the *baseline*, which
both sides have; every class has a rate and a table of value tokens. Neighbours are merged while that saves more in
tables than it costs in fit, so data without any such law ends in one class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..dtypes import DType
from ..errors import CorruptInput
from ..kernels.api import Changes, Kernels
from ..kernels.hazard import DIRECT, MAX_LOG2, MIN_LOG2, VALUE_SCALE, Axis, Model, axis, tokens
from .table import BlockTable
from .varints import pack_varints, unpack_varints

_PIECE = 512  # words
_CLASS_BITS, _TOKEN_BITS = 40, 14  # what a class and a token of its table cost on the wire, about


@dataclass
class _Group:
    """A class in the making: exponents ``first..last``, their words, changes, and changes by token."""

    first: int
    last: int
    words: float
    changes: int
    tokens: np.ndarray

    def join(self, other: _Group) -> _Group:
        return _Group(
            self.first, other.last, self.words + other.words, self.changes + other.changes, self.tokens + other.tokens
        )

    def bits(self) -> float:
        """Ideal size of the positions and tokens, and the size of the tables."""
        if not self.changes:
            return float(_CLASS_BITS)
        p = min(self.changes / self.words, 1 - 1e-9)
        still = self.words - self.changes
        positions = -self.changes * math.log2(p) - (still * math.log2(1 - p) if still else 0.0)
        used = self.tokens[self.tokens > 0]
        values = -float((used * np.log2(used / self.changes)).sum())
        return positions + values + _CLASS_BITS + _TOKEN_BITS * len(used)


def field(kind: DType) -> tuple[int, int]:
    """(shift, mask) of the exponent in a word; (0, 0), one class, where there is none."""
    return (kind.mantissa, (1 << kind.exponent) - 1) if kind.is_float else (0, 0)


def most_code(kind: DType, total: int, words: int) -> int:
    """Bytes of code that a reader takes for ``total`` changes among ``words``.

    A change takes under 32 bits for its position, 12 for its token and a word's bits for its value; the words between
    changes take at most what the axis' finest rate does, 2^-15 bits each, beyond what the changes pay for.
    """
    return 64 + (6 + kind.word_bytes) * total + (words >> 12)


def fit(
    kind: DType, base: np.ndarray, table: BlockTable, changes: Changes, coded: np.ndarray, kernels: Kernels, step: int
) -> tuple[Model, float]:
    """The model of a bucket's changes and the size in bits that it promises.

    ``table`` and ``changes`` are those of the blocks to be coded, of which there is at least one change. One of
    ``step`` pieces of the words tells how many words each exponent has; only with 1 does the promise always hold.
    """
    shift, mask = field(kind)
    words = kernels.exponents(base, *_sample(table, step), shift, mask, 1).astype(np.float64)
    words *= float(table.size.sum()) / max(words.sum(), 1)
    seen = kernels.tallies(changes.old, coded, shift, mask)
    width = int(np.flatnonzero(seen.any(axis=0))[-1]) + 1
    seen = seen[:, :width]
    changed = seen.sum(axis=1)
    words = np.maximum(words, changed)
    groups = [_Group(e, e, float(words[e]), int(changed[e]), seen[e]) for e in np.flatnonzero(words).tolist()]
    groups, bits = _merge(groups)
    raw = np.maximum(np.arange(width) - DIRECT + 6, 0) // 2 * (np.arange(width) >= DIRECT)  # bits after each token
    return _model(kind, groups, width), bits + float(seen.sum(axis=0) @ raw)


def _sample(table: BlockTable, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and sizes of the pieces to look at: whole lines of memory, as it is memory that looking costs."""
    if step == 1:
        return table.offset, table.size
    ends = np.cumsum(table.size)
    at = np.arange(0, int(ends[-1]), _PIECE * step)
    block = np.searchsorted(ends, at, side="right")
    start = (at - (ends - table.size)[block]) // _PIECE * _PIECE
    return table.offset[block] + start, np.minimum(table.size[block] - start, _PIECE)


def _merge(groups: list[_Group]) -> tuple[list[_Group], float]:
    """Join neighbours, the most rewarding pair first, while joining saves bits."""
    costs = [g.bits() for g in groups]
    pairs = [a.join(b) for a, b in pairwise(groups)]
    gains = [a + b - p.bits() for a, b, p in zip(costs[:-1], costs[1:], pairs, strict=True)]
    while gains and max(gains) > 0:
        k = gains.index(max(gains))
        groups[k : k + 2], costs[k : k + 2] = [pairs[k]], [pairs[k].bits()]
        del pairs[k], gains[k]
        for near in (k - 1, k):
            if 0 <= near < len(pairs):
                pairs[near] = groups[near].join(groups[near + 1])
                gains[near] = costs[near] + costs[near + 1] - pairs[near].bits()
    return groups, sum(costs)


def _model(kind: DType, groups: list[_Group], width: int) -> Model:
    shift, mask = field(kind)
    hazards = [-math.log2(1 - min(g.changes / g.words, 1 - 1e-9)) for g in groups]  # in halvings
    least = min(h for h in hazards if h > 0)
    log2 = min(MAX_LOG2 - 1, max(MIN_LOG2 + 4, math.ceil(math.log2(4 / least))))
    most = ((28 - log2) << log2) // 2
    rate, context = np.zeros(mask + 1, np.int64), np.zeros(mask + 1, np.int64)
    size = np.zeros((len(groups), width), np.int64)
    for row, (group, hazard) in enumerate(zip(groups, hazards, strict=True)):
        here = slice(group.first if row else 0, mask + 1)  # up to the end: later groups overwrite their own
        rate[here] = min(max(round(hazard * (1 << log2)), 1), most) if group.changes else 0
        context[here] = row
        size[row] = _frequencies(group.tokens)
    return Model(shift, mask, log2, rate, context, np.cumsum(size, axis=1) - size, size)


def _frequencies(seen: np.ndarray) -> np.ndarray:
    """Counts scaled to a sum of 2^12, none that occurred below 1; the first token where nothing occurred."""
    whole = 1 << VALUE_SCALE
    if not seen.any():
        seen = np.eye(1, len(seen), dtype=np.int64)[0]
    out = np.where(seen > 0, np.maximum(seen * whole // seen.sum(), 1), 0)
    out[int(out.argmax())] += whole - out.sum()
    return out


def pack_model(model: Model, total: int) -> bytes:
    """The model and the number of changes as varints (docs/format.md, "Class coder")."""
    firsts = np.flatnonzero(np.diff(model.context, prepend=-1)).tolist()
    out, previous = [total, model.log2, model.size.shape[1], len(firsts)], 0
    for first in firsts:
        row = model.size[model.context[first]]
        used = np.flatnonzero(row).tolist()
        out += [first - previous, int(model.rate[first]), len(used)]
        for token, before in zip(used, [-1, *used], strict=False):
            out += [token - before - 1, int(row[token])]
        previous = first
    return pack_varints(out)


def unpack_model(data: bytes, kind: DType, most: int) -> tuple[Model, Axis, int]:
    """Inverse of :func:`pack_model`: the model, its axis, and the number of changes (at most ``most``).

    Raises
    ------
    CorruptInput
        Anything that no encoder writes: every number is bounded before it is used.
    """
    shift, mask = field(kind)
    values = unpack_varints(data, "class model")
    try:
        total, log2, width, classes = [next(values) for _ in range(4)]  # no generator: it would eat StopIteration
        good = 1 <= total <= most and MIN_LOG2 <= log2 <= MAX_LOG2 and 1 <= width <= tokens(kind.word_bytes)
        _check(good and 1 <= classes <= mask + 1, f"{total} changes, 2^{log2}, {width} tokens, {classes} classes")
        bound = axis(log2)
        rate, context = np.zeros(mask + 1, np.int64), np.zeros(mask + 1, np.int64)
        size, first = np.zeros((classes, width), np.int64), 0
        for row in range(classes):
            step, own, used = next(values), next(values), next(values)
            first += step
            _check(
                (step > 0) == (row > 0) and first <= mask and own <= bound.end // 2,
                f"class {row} at {first}, rate {own}",
            )
            rate[first:], context[first:] = own, row
            token = -1
            for _ in range(used):
                token += next(values) + 1
                frequency = next(values)
                _check(token < width and 1 <= frequency <= 1 << VALUE_SCALE, f"{frequency} of token {token}")
                size[row, token] = frequency
            _check(int(size[row].sum()) == 1 << VALUE_SCALE, f"frequencies of class {row}")
    except StopIteration:
        raise CorruptInput("class model", found="its end too early", expected="all its classes") from None
    _check(next(values, None) is None, "numbers left over")
    return Model(shift, mask, log2, rate, context, np.cumsum(size, axis=1) - size, size), bound, total


def _check(good: bool, found: str) -> None:
    if not good:
        raise CorruptInput("class model", found=found, expected="a model that an encoder makes")
