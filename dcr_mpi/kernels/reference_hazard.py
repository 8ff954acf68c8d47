"""The class coder in plain Python integers: the definition, word by word. Slow; for small data and for tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .api import Changes
from .hazard import DIRECT, LOW, ONE, SCALE, VALUE_SCALE, Axis, Model, tokens, value_tokens

CUT, PAST, BEHIND = -1, -2, -3
_Interval = tuple[int, int, int]  # start, size, bits of scale


class ReferenceHazard:
    """See :class:`dcr_mpi.kernels.api.Kernels`, the class coder's methods."""

    def exponents(
        self, words: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, shift: int, mask: int, step: int
    ) -> np.ndarray:
        fields = [_field(words[o : o + n : step], shift, mask) for o, n in zip(offsets, sizes, strict=True)]
        return np.bincount(np.concatenate(fields), minlength=mask + 1) if fields else np.zeros(mask + 1, np.int64)

    def tallies(self, old: np.ndarray, coded: np.ndarray, shift: int, mask: int) -> np.ndarray:
        width = tokens(coded.itemsize)
        key = _field(old, shift, mask) * width + value_tokens(coded)
        return np.bincount(key, minlength=(mask + 1) * width).reshape(mask + 1, width)

    def hazards(
        self, model: Model, base: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, changes: Changes
    ) -> np.ndarray:
        fields = [_field(base[o : o + n], model.shift, model.mask) for o, n in zip(offsets, sizes, strict=True)]
        ends = np.cumsum(model.rate[np.concatenate(fields)]) if fields else np.zeros(0, np.int64)
        at = np.repeat(np.cumsum(sizes) - sizes, changes.counts) + changes.positions.astype(np.int64)
        before = ends[at] - model.rate[_field(changes.old, model.shift, model.mask)]
        return before - np.concatenate(([0], ends[at][:-1]))[: len(at)]

    def hazard_encode(
        self, model: Model, axis: Axis, hazards: np.ndarray, old: np.ndarray, coded: np.ndarray
    ) -> np.ndarray:
        x, words = LOW, []
        for start, size, bits in reversed(list(_intervals(model, axis, hazards, old, coded))):
            if size == 1 << bits:
                continue  # certain: costs nothing
            if x >= size << (64 - bits):
                words.append(x & 0xFFFFFFFF)
                x >>= 32
            x = (x // size << bits) + x % size + start
        return np.array([x >> 32, x & 0xFFFFFFFF, *reversed(words)], np.uint32)

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
        counts, positions = np.zeros(len(sizes), np.int64), np.zeros(total, np.uint32)
        coded = np.zeros(total, base.dtype)
        if len(code) < 2 or code[0] == 0:
            return CUT, counts, positions, coded
        used = _Decoder(model, axis, code).run(base, offsets, sizes, counts, positions, coded)
        return used, counts, positions, coded


def _field(words: np.ndarray, shift: int, mask: int) -> np.ndarray:
    return (words.astype(np.uint64) >> np.uint64(shift) & np.uint64(mask)).astype(np.int64)


def _below(axis: Axis, x: int) -> int:
    """C(x)."""
    return ONE - (int(axis.halving[x % (1 << axis.log2)]) >> (x >> axis.log2))


def _intervals(
    model: Model, axis: Axis, hazards: np.ndarray, old: np.ndarray, coded: np.ndarray
) -> Iterator[_Interval]:
    fields = _field(old, model.shift, model.mask)
    last = _below(axis, axis.end)
    for x, field, value, token in zip(
        hazards.tolist(), fields.tolist(), coded.tolist(), value_tokens(coded).tolist(), strict=True
    ):
        for _ in range(x // axis.end):
            yield last, ONE - last, SCALE
        low = _below(axis, x % axis.end)
        high = _below(axis, min(x % axis.end + int(model.rate[field]), axis.end))
        yield low, high - low, SCALE
        yield from _value(model, int(model.context[field]), value, token)


def _value(model: Model, row: int, value: int, token: int) -> Iterator[_Interval]:
    yield int(model.start[row, token]), int(model.size[row, token]), VALUE_SCALE
    bits = value.bit_length() - 2 if token >= DIRECT else 0
    while bits > 0:
        step = min(bits, 16)
        bits -= step
        yield value >> bits & ((1 << step) - 1), 1, step


class _Decoder:
    def __init__(self, model: Model, axis: Axis, code: np.ndarray) -> None:
        self._model, self._axis = model, axis
        self._code = [int(word) for word in code]
        self._x, self._at = self._code[0] << 32 | self._code[1], 2

    def _take(self, start: int, size: int, bits: int) -> bool:
        """Leave an interval; False where the code ends too early."""
        if size == 1 << bits:
            return True
        self._x = size * (self._x >> bits) + self._x % (1 << bits) - start
        if self._x < LOW:
            if self._at == len(self._code):
                return False
            self._x, self._at = self._x << 32 | self._code[self._at], self._at + 1
        return True

    def run(
        self,
        base: np.ndarray,
        offsets: np.ndarray,
        sizes: np.ndarray,
        counts: np.ndarray,
        positions: np.ndarray,
        coded: np.ndarray,
    ) -> int:
        model, axis = self._model, self._axis
        words = np.concatenate([base[o : o + n] for o, n in zip(offsets, sizes, strict=True)] or [base[:0]])
        fields = _field(words, model.shift, model.mask)
        ends = np.cumsum(model.rate[fields]) if len(fields) else np.zeros(0, np.int64)
        firsts = np.cumsum(sizes) - sizes
        origin = 0  # hazard of all words before the one after the last change
        last = _below(axis, axis.end)
        for k in range(len(positions)):
            skipped = 0
            while self._x % ONE >= last:
                if not self._take(last, ONE - last, SCALE):
                    return CUT
                skipped += axis.end
                if skipped > 1 << 60:
                    return PAST
            target = self._hazard() + skipped
            word = int(np.searchsorted(ends, origin + target, side="right"))
            if word == len(fields):
                return PAST
            rate = int(model.rate[fields[word]])
            before = int(ends[word]) - rate - origin - skipped
            if before < 0:
                return BEHIND
            low, high = _below(axis, before), _below(axis, min(before + rate, axis.end))
            if not self._take(low, high - low, SCALE):
                return CUT
            origin = int(ends[word])
            value = self._value(int(model.context[fields[word]]))
            if value is None:
                return CUT
            block = int(np.searchsorted(firsts, word, side="right")) - 1
            positions[k], coded[k] = word - firsts[block], value
            counts[block] += 1
        return self._at if self._x == LOW else CUT

    def _hazard(self) -> int:
        """The largest x with C(x) at or below the state's slot: bisection, where numba has a table."""
        slot, low, high = self._x % ONE, 0, self._axis.end
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _below(self._axis, middle) <= slot else (low, middle)
        return low

    def _value(self, row: int) -> int | None:
        model, slot = self._model, self._x % (1 << VALUE_SCALE)
        ends = model.start[row] + model.size[row]
        token = int(np.searchsorted(ends, slot, side="right"))
        if not self._take(int(model.start[row, token]), int(model.size[row, token]), VALUE_SCALE):
            return None
        if token < DIRECT:
            return token
        value, bits = 2 + (token - DIRECT) % 2, 3 + (token - DIRECT) // 2
        while bits > 0:
            step = min(bits, 16)
            bits -= step
            value = value << step | self._x % (1 << step)
            if not self._take(self._x % (1 << step), 1, step):
                return None
        return value
