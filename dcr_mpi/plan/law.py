"""How many weights change, and by how much: the two laws of :mod:`dcr_mpi.synth` as formulas, without drawing a weight.

*adam*: a master ``w ~ N(0, s^2)`` moves by ``u ~ N(0, t^2)`` and is rounded before and after. Words of one exponent lie
``D`` apart, and a master's place between two of them is uniform to a good approximation (``D`` is far below ``s``).
Then a word moves by ``k`` units in the last place with probability

    P(k) = E[max(0, 1 - |u/D - k|)] = G(k-1) - 2 G(k) + G(k+1),   G(x) = E[max(0, u/D - x)] = r f(x/r) - x (1 - F(x/r)),

``r = t/D``, ``f`` and ``F`` the normal density and distribution. ``D`` doubles with the exponent, so the chance to
change halves. Words as fine as the masters (fp32 and wider) have no place between two: P(k) = F((k+1/2)/r) -
F((k-1/2)/r). The exponents' shares are those of a mixture of spreads ``s``, and ``t`` follows from the fraction that
is to change.

*uniform*: every word has the same chance, and moves by one unit up or down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from ..dtypes import DType, dtype

Law = Literal["adam", "uniform"]
SPREADS = tuple(float(s) for s in np.geomspace(0.008, 0.1, 8))  # of a model's matrices
_SCALE = {"f8e4m3": 512.0, "f8e5m2": 512.0}  # fp8 weights are stored scaled, or most would be subnormal
_MASTER_BITS = 23  # of an fp32 master's mantissa
_LONGEST = 512  # steps that are counted one by one; beyond it a step's entropy is that of a normal distribution


@dataclass(frozen=True, eq=False)
class Changes:
    """What one step does to words of one dtype; arrays have an entry per exponent that weights have.

    ``by_spread``: the fraction that changes among the weights of each spread, which are equally many.
    ``share`` of all words, ``moved``: the chance to change, ``steps[:, j]``: the chance that a changed word moved by
    ``j + 1`` units, up and down together; ``far``: by more than the columns hold; ``far_bits``: what such a step takes.
    """

    kind: DType
    fraction: float
    by_spread: np.ndarray
    share: np.ndarray
    moved: np.ndarray
    steps: np.ndarray
    far: np.ndarray
    far_bits: np.ndarray

    @property
    def weight(self) -> np.ndarray:
        """Share of each exponent among the words that change."""
        return self.share * self.moved / self.fraction

    @property
    def position_bits(self) -> float:
        """Entropy of the positions per changed word, given the baseline's exponent."""
        return float((self.share * binary_entropy(self.moved)).sum()) / self.fraction

    @property
    def plain_position_bits(self) -> float:
        """The same where nothing is known of the exponent."""
        return float(binary_entropy(np.array([self.fraction]))[0]) / self.fraction

    @property
    def value_bits(self) -> float:
        """Entropy of the ulp difference per changed word, given the exponent; a direction takes one bit."""
        return float((self.weight * (_entropy(self.steps, self.far) + self.far * self.far_bits + 1.0)).sum())

    @property
    def class_bits(self) -> float:
        """The floor of the class coder's model: no coder of it goes below, side information not counted."""
        return self.position_bits + self.value_bits

    @property
    def step_shares(self) -> np.ndarray:
        """Chance of each step over all changed words; the last entry is that of all further ones."""
        return np.append(self.weight @ self.steps, float(self.weight @ self.far))

    @property
    def exponent_bits(self) -> float:
        """Entropy of a word's exponent."""
        return _entropy(self.share[None], np.zeros(1))[0]


@lru_cache(maxsize=256)
def changes(name: str, fraction: float, law: Law, spreads: tuple[float, ...] = SPREADS) -> Changes:
    """The law for words of dtype ``name`` of which ``fraction`` (0 to 1, both excluded) change."""
    kind = dtype(name)
    if law == "uniform" or not kind.is_float:
        share = _shares(kind, spreads)[1].mean(axis=0) if kind.is_float else np.ones(1)
        none, one = np.zeros(len(share)), np.ones((len(share), 1))
        each = np.full(len(spreads), fraction)
        return Changes(kind, fraction, each, share, np.full(len(share), fraction), one, none, none)
    unit, shares = _shares(kind, spreads)
    share = shares.mean(axis=0)
    low, high = 1e-12 * float(unit.min()), 1e3 * float(unit.max())
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if float(share @ _moved(middle / unit, kind)) < fraction else (low, middle)
    ratio = high / unit
    moved = _moved(ratio, kind)
    # Columns up to six spreads of the exponents that matter; the finest ones, where a step is long, hold few words.
    columns = int(min(_LONGEST, max(8, math.ceil(6 * float(ratio[share > 1e-5].max())) + 1)))
    steps = 2 * _steps(ratio, kind, columns) / np.maximum(moved, 1e-300)[:, None]
    far = np.maximum(0.0, 1.0 - steps.sum(axis=1))
    return Changes(kind, fraction, shares @ moved, share, moved, steps, far, np.log2(np.maximum(ratio, 1.0)) + 1.05)


def _shares(kind: DType, spreads: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Units in the last place by exponent, (e,), and shares of each spread's words, (spreads, e).

    Subnormal words share the smallest unit.
    """
    bias = (1 << (kind.exponent - 1)) - 1
    scale = _SCALE.get(kind.name, 1.0)
    least = max(1 - bias, math.floor(math.log2(min(spreads) * scale)) - 40)
    powers = np.arange(least, math.ceil(math.log2(max(spreads) * scale)) + 5)
    edges = np.exp2(np.append(powers, powers[-1] + 1).astype(float))
    below = np.array([[math.erf(e / (spread * scale) / math.sqrt(2)) for e in edges] for spread in spreads])
    share = np.diff(below, axis=1)
    share[:, 0] += below[:, 0]
    return np.exp2(powers - float(kind.mantissa)), share / share.sum(axis=1, keepdims=True)


def _moved(ratio: np.ndarray, kind: DType) -> np.ndarray:
    """Chance to change, 1 - P(0)."""
    if kind.mantissa >= _MASTER_BITS:
        return 2 * _above(0.5 / ratio)
    return 1.0 - (_beyond(ratio, -1.0) - 2 * _beyond(ratio, 0.0) + _beyond(ratio, 1.0))


def _steps(ratio: np.ndarray, kind: DType, columns: int) -> np.ndarray:
    """P(1), P(2), ... of each ratio."""
    if kind.mantissa >= _MASTER_BITS:
        return -np.diff(np.stack([_above((k + 0.5) / ratio) for k in range(columns + 1)], axis=1))
    g = np.stack([_beyond(ratio, float(k)) for k in range(columns + 2)], axis=1)
    return np.maximum(0.0, g[:, :-2] - 2 * g[:, 1:-1] + g[:, 2:])


def _above(z: np.ndarray) -> np.ndarray:
    """1 - F(z)."""
    return np.array([0.5 * math.erfc(v / math.sqrt(2)) for v in z])


def _beyond(ratio: np.ndarray, x: float) -> np.ndarray:
    """G(x) for each ratio."""
    z = x / ratio
    density = np.exp(-0.5 * np.minimum(z * z, 1400.0)) / math.sqrt(2 * math.pi)
    return ratio * density - x * _above(z)


def binary_entropy(chance: np.ndarray) -> np.ndarray:
    """Bits of one yes or no with these chances of a yes."""
    p = np.clip(chance, 1e-300, 1.0)
    q = np.clip(1.0 - chance, 1e-300, 1.0)
    return -(chance * np.log2(p) + (1.0 - chance) * np.log2(q))


def _entropy(rows: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Bits of each row of chances, of which ``rest`` is one more."""
    whole = np.concatenate((rows, rest[:, None]), axis=1)
    return -(whole * np.log2(np.maximum(whole, 1e-300))).sum(axis=1)
