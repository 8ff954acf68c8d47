"""Entropy floors of a pair: what no coder of the named model can go below, in bits per changed word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcr_mpi.codec.classes import field
from dcr_mpi.dtypes import dtype
from dcr_mpi.kernels.api import Kernels

from .data import DataSet


@dataclass(frozen=True)
class Floors:
    """Positions independent of everything; positions given the baseline's exponent; ulp differences alone and given
    the exponent."""

    positions: float
    positions_by_exponent: float
    values: float
    values_by_exponent: float

    @property
    def by_exponent(self) -> float:
        """The floor of the class coder's model; side information such as its tables not counted."""
        return self.positions_by_exponent + self.values_by_exponent


def floors(data: DataSet, kernels: Kernels) -> Floors:
    """Empirical entropies over all words of a data set."""
    kind = dtype(data.dtype)
    shift, mask = field(kind)
    words, changed = np.zeros(mask + 1), np.zeros(mask + 1)
    keys = []
    for tensor in data.tensors:
        whole = np.zeros(1, np.int64), np.array([len(tensor.base)], np.int64)
        words += kernels.exponents(tensor.base, *whole, shift, mask, 1)
        at = np.flatnonzero(tensor.base != tensor.new)
        old, new = tensor.base[at], tensor.new[at]
        exponent = (old.astype(np.int64) >> shift) & mask
        changed += np.bincount(exponent, minlength=mask + 1)
        keys.append(exponent << 32 | kernels.difference("ulp", old, new, kind).astype(np.int64))
    key, count = np.unique(np.concatenate(keys), return_counts=True)
    _, value = np.unique(key & 0xFFFFFFFF, return_inverse=True)
    total = int(count.sum())
    given = sum(_entropy(count[key >> 32 == e]) for e in np.unique(key >> 32).tolist())
    return Floors(
        float(_binary(words.sum(), changed.sum())) / total,
        float(_binary(words, changed).sum()) / total,
        _entropy(np.bincount(value, count)) / total,
        given / total,
    )


def _entropy(counts: np.ndarray) -> float:
    """Bits of a sequence with these counts of symbols."""
    seen = counts[counts > 0].astype(np.float64)
    return float(seen.sum() * np.log2(seen.sum()) - (seen * np.log2(seen)).sum())


def _binary(words: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """Bits of choosing which of ``words`` changed, with a known rate."""
    still = words - changed
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = -changed * np.log2(changed / words) - still * np.log2(still / words)
    return np.nan_to_num(bits)
