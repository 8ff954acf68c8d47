"""Seconds per byte and per change of encode, prepare and apply, from whole parts at two rates of change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from ..codec import Scheme
from ..kernels.api import Kernels
from ..plan import Cost, Law
from .data import DataSet, adam, uniform
from .timing import copier, seconds
from .world import World

_TURNS = 5
_POSITIONS = ("class", "plain")
_SHARDS = (4, 2)  # of a trainer and of a site
_FEWER, _MORE = 3, 2  # how many times fewer and more changes than asked for the two points have


@dataclass(frozen=True)
class Sample:
    """What is coded: words of which ``fraction`` change by ``law``, ``size`` dense bytes of them, in buckets of
    ``bucket`` dense bytes."""

    law: Law
    fraction: float
    size: int
    bucket: int


@dataclass(frozen=True)
class Coding:
    """Costs by positions; memcpy in bytes per second."""

    memcpy: float
    encode: dict[str, Cost]
    prepare: dict[str, Cost]
    apply: Cost


def coding(
    kernels: Kernels,
    sample: Sample,
    directory: Path,
    tile_s: Mapping[str, float] = MappingProxyType({}),
) -> Coding:
    """Measure on bf16 shards in ``directory``; encode with its self-check, as is the default.

    Figures are CPU time of one thread, medians of turns; ``tile_s`` are the seconds of a tile in "encode" and
    "prepare" that count elsewhere.
    """
    copy, copied = copier()
    few, many = (
        point(kernels, replace(sample, fraction=rate), directory / str(k))
        for k, rate in enumerate((sample.fraction / _FEWER, min(sample.fraction * _MORE, (1 + sample.fraction) / 2)))
    )
    # In turns, as a machine that is slower for a second would else make changes dear, or cost nothing.
    work = {(k, what): here.work[what] for what in few.work for k, here in enumerate((few, many))}
    took = seconds({"memcpy": copy} | work, _TURNS)

    def cost(what: str) -> Cost:
        tile = tile_s.get(what.rpartition("/")[2], 0.0)
        # Half of it at most: small data are mostly tiles, and both figures are as noisy as the machine.
        low, high = (max(took[k, what] - here.tiles * tile, took[k, what] / 2) for k, here in enumerate((few, many)))
        return _line((few.dense, few.changed, low), (many.dense, many.changed, high))

    return Coding(
        copied / took["memcpy"],
        {how: cost(f"{how}/encode") for how in _POSITIONS},
        {how: cost(f"{how}/prepare") for how in _POSITIONS},
        cost("apply"),
    )


@dataclass(frozen=True)
class Point:
    """A pair of checkpoints of so many bytes, changed words and tiles, and what may be done with it, by name."""

    dense: int
    changed: int
    tiles: int
    work: dict[str, Callable[[], object]]


def point(kernels: Kernels, sample: Sample, directory: Path) -> Point:
    """Make one in ``directory``, and hold what comes out of its whole way against the new words."""
    directory.mkdir()
    fraction, size = sample.fraction, sample.size
    data: DataSet = adam("bf16", fraction, size) if sample.law == "adam" else uniform(fraction, size)
    world = World(data, kernels, directory, bucket_bytes=sample.bucket, shards=_SHARDS)
    work: dict[str, Callable[[], object]] = {}
    for how in _POSITIONS:
        parts = world.encode(Scheme(how), check=True)
        world.check(parts)
        work[f"{how}/encode"] = lambda how=how: world.encode(Scheme(how), check=True)  # type: ignore[misc]
        work[f"{how}/prepare"] = lambda parts=parts: world.prepare(parts)  # type: ignore[misc]
    work["apply"] = world.apply
    return Point(data.dense_bytes, data.changed, world.tiles, work)


def _line(few: tuple[int, int, float], many: tuple[int, int, float]) -> Cost:
    """The line through two points; what a busy machine bends below zero is flat."""
    (dense, less, low), (_, more, high) = few, many
    change = max(0.0, (high - low) / (more - less)) if more > less else 0.0
    return Cost(max(0.0, (high - more * change) / dense), change)
