"""Pairs of weights to measure on: drawn from the law of an Adam step, or uniform."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..dtypes import dtype
from ..plan.law import SPREADS
from ..synth import round_bf16

_SCALES = np.array(SPREADS)
_UPDATE_SPREAD = 0.23  # of Adam's |m| / sqrt(v), as measured on a real transformer
_COLUMNS = 4096
_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Tensor:
    """Raw words before and after, flat."""

    name: str
    shape: tuple[int, ...]
    base: np.ndarray
    new: np.ndarray


@dataclass(frozen=True)
class DataSet:
    """``family`` groups data sets into a table: "adam", "uniform", "types" or "real"."""

    name: str
    family: str
    dtype: str
    tensors: tuple[Tensor, ...]

    @property
    def dense_bytes(self) -> int:
        return sum(t.base.nbytes for t in self.tensors)

    @property
    def words(self) -> int:
        return sum(len(t.base) for t in self.tensors)

    @property
    def changed(self) -> int:
        return sum(int(np.count_nonzero(t.base != t.new)) for t in self.tensors)


def adam(kind: str, fraction: float, size: int, family: str = "adam") -> DataSet:
    """fp32 masters of eight spreads, each moved by ``rate * N(0, 0.23^2)`` and rounded to ``kind`` before and after;
    one rate for all, such that ``fraction`` of the ``size`` bytes' words change."""
    rounded = ROUND[kind]
    drawn = [_draws(kind, scale, 0, _SAMPLE) for scale in _SCALES]
    masters, updates = (np.concatenate(column) for column in zip(*drawn, strict=True))
    before, low, high = rounded(masters), 1e-16, 1.0
    for _ in range(24):
        middle = (low * high) ** 0.5
        moved = np.mean(rounded(masters - np.float32(middle) * updates) != before)
        low, high = (middle, high) if moved < fraction else (low, middle)
    rows = size // dtype(kind).word_bytes // len(_SCALES) // _COLUMNS
    tensors = []
    for k, scale in enumerate(_SCALES):
        master, update = _draws(kind, scale, 1, rows * _COLUMNS)
        base = rounded(master)
        update *= np.float32(high)
        master -= update
        tensors.append(Tensor(f"layer{k}", (rows, _COLUMNS), base, rounded(master)))
    return DataSet(f"{kind} adam {100 * fraction:g} %", family, kind, tuple(tensors))


def uniform(fraction: float, size: int) -> DataSet:
    """bf16 weights of the same spreads; random ones move by one unit in the last place, up or down."""
    rows = size // 2 // len(_SCALES) // _COLUMNS
    tensors = []
    for k, scale in enumerate(_SCALES):
        base = round_bf16(_draws("bf16", scale, 2, rows * _COLUMNS)[0])
        draw = _generator("uniform", scale, k)
        moved = draw.random(len(base), np.float32) < fraction
        step = np.where(draw.random(len(base), np.float32) < 0.5, np.uint16(1), np.uint16(0xFFFF))
        tensors.append(Tensor(f"layer{k}", (rows, _COLUMNS), base, base + moved * step))
    return DataSet(f"bf16 uniform {100 * fraction:g} %", "uniform", "bf16", tuple(tensors))


def _generator(*what: object) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(zlib.crc32(repr(what).encode())))


def _draws(kind: str, scale: float, part: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """fp32 masters of one spread, and updates before they are multiplied by the learning rate."""
    draw = _generator(kind, float(scale), part)
    master = draw.standard_normal(count, np.float32) * np.float32(scale)
    return master, draw.standard_normal(count, np.float32) * np.float32(_UPDATE_SPREAD)


def _round_f8(exponent: int, mantissa: int, largest: int) -> Callable[[np.ndarray], np.ndarray]:
    """fp32 to the nearest fp8 word, after a scale of 2^9 as quantised weights have; ``largest`` is the last finite."""
    codes = np.arange(largest + 1)
    field, fraction = codes >> mantissa, codes & ((1 << mantissa) - 1)
    bias = (1 << (exponent - 1)) - 1
    normal = np.ldexp((1 << mantissa) + fraction, np.maximum(field, 1) - bias - mantissa)
    values = np.where(field > 0, normal, np.ldexp(fraction, 1 - bias - mantissa))
    edges = ((values[1:] + values[:-1]) / 2 / 512).astype(np.float32)

    def rounded(master: np.ndarray) -> np.ndarray:
        out = np.searchsorted(edges, np.abs(master)).astype(np.uint8)
        out |= np.signbit(master).astype(np.uint8) << np.uint8(7)
        return out

    return rounded


ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "bf16": round_bf16,
    "f16": lambda master: master.astype(np.float16).view(np.uint16),
    "f32": lambda master: master.copy().view(np.uint32),
    "f8e4m3": _round_f8(4, 3, 0x7E),
    "f8e5m2": _round_f8(5, 2, 0x7B),
}
