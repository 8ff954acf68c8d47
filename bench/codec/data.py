"""Pairs of weights to measure on: drawn (:mod:`dcr_mpi.calibrate.data`), or from :mod:`bench.real`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bench.real.checkpoints import found_pairs, read
from dcr_mpi.calibrate.data import DataSet, Tensor, adam, uniform

__all__ = ["DataSet", "Tensor", "adam", "real", "uniform"]


def real(directory: Path) -> Iterator[Callable[[], DataSet]]:
    """The pairs that ``make bench-real`` left in ``directory``; loaded when called."""
    for pair in found_pairs(directory):

        def load(name: str = pair.name, base: Path = pair.base, new: Path = pair.new) -> DataSet:
            both = zip(read(base), read(new), strict=True)
            return DataSet(name, "real", "bf16", tuple(Tensor(n, s, a, b) for (n, s, a), (_, _, b) in both))

        yield load
