"""Seconds per byte and per change of encode, prepare and apply, from whole parts at two rates of change."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..codec import Scheme
from ..kernels.api import Kernels
from ..plan import Cost, Law
from .data import DataSet, adam, uniform
from .timing import copier, seconds
from .world import World

_TURNS = 3
_POSITIONS = ("class", "plain")
_FEWER = 3  # how many times fewer changes the second point has


@dataclass(frozen=True)
class Coding:
    """Costs by positions; memcpy in bytes per second; ``core_share``: CPU time over wall-clock of all of it."""

    core_share: float
    memcpy: float
    encode: dict[str, Cost]
    prepare: dict[str, Cost]
    apply: Cost


def coding(kernels: Kernels, law: Law, fraction: float, size: int, bucket: int, directory: Path) -> Coding:
    """Measure on bf16 pairs of about ``size`` bytes in memory, in buckets of ``bucket`` bytes; encode with
    its self-check, as is the default.

    Figures are CPU time of one thread, medians of turns.
    """
    cpu, wall = time.thread_time(), time.monotonic()
    points = [_point(kernels, law, fraction / fewer, size, bucket, directory) for fewer in (_FEWER, 1)]
    share = (time.thread_time() - cpu) / (time.monotonic() - wall)
    costs = {what: _line(*((p.dense, p.changed, p.took[what]) for p in points)) for what in points[0].took}
    return Coding(
        min(1.0, share),
        max(p.memcpy for p in points),
        {how: costs[f"{how}/encode"] for how in _POSITIONS},
        {how: costs[f"{how}/prepare"] for how in _POSITIONS},
        costs["apply"],
    )


@dataclass(frozen=True)
class _Point:
    dense: int
    changed: int
    memcpy: float
    took: dict[str, float]


def _point(kernels: Kernels, law: Law, fraction: float, size: int, bucket: int, directory: Path) -> _Point:
    data: DataSet = adam("bf16", fraction, size) if law == "adam" else uniform(fraction, size)
    world = World(data, kernels, directory, bucket_bytes=bucket)
    copy, copied = copier()
    work: dict[str, Callable[[], object]] = {"memcpy": copy}
    for how in _POSITIONS:
        parts = world.encode(Scheme(how), check=True)
        world.check(parts)
        work[f"{how}/encode"] = lambda how=how: world.encode(Scheme(how), check=True)  # type: ignore[misc]
        work[f"{how}/prepare"] = lambda parts=parts: world.prepare(parts)  # type: ignore[misc]
    work["apply"] = world.apply
    took = seconds(work, _TURNS)
    memcpy = copied / took.pop("memcpy")
    return _Point(data.dense_bytes, data.changed, memcpy, took)


def _line(few: tuple[int, int, float], many: tuple[int, int, float]) -> Cost:
    """The line through two points; what a busy machine bends below zero is flat."""
    (dense, less, low), (_, more, high) = few, many
    change = max(0.0, (high - low) / (more - less)) if more > less else 0.0
    return Cost(max(0.0, (high - more * change) / dense), change)
