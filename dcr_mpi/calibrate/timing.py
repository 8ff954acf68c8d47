"""Timing: functions in turn, so that whatever else the machine does hits all of them, and medians.

One-thread figures are in CPU time of the thread, which neighbours on the machine distort far less than wall-clock;
what runs on several threads is in wall-clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import TypeVar

import numpy as np

_COPY = 32 << 20
_SPIN_S = 0.5
K = TypeVar("K", bound=Hashable)


def seconds(functions: Mapping[K, Callable[[], object]], rounds: int, once: Container[K] = ()) -> dict[K, float]:
    """Median CPU seconds of each function over ``rounds`` turns, or of a single one; each has run before."""
    taken: dict[K, list[float]] = {name: [] for name in functions}
    for turn in range(rounds):
        for name, function in functions.items():
            if turn and name in once:
                continue
            begun = time.thread_time()
            function()
            taken[name].append(time.thread_time() - begun)
    return {name: median(times) for name, times in taken.items()}


def core_share() -> float:
    """What a process that is always busy gets of a core now: its CPU time over wall-clock, 1 at most."""
    begun, cpu = time.monotonic(), time.thread_time()
    while (passed := time.monotonic() - begun) < _SPIN_S:
        pass
    return min(1.0, (time.thread_time() - cpu) / passed)


def wall_seconds(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Least wall-clock seconds of each function: on a busy machine the best turn is the one that shows scaling."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            begun = time.monotonic()
            function()
            taken[name].append(time.monotonic() - begun)
    return {name: min(times) for name, times in taken.items()}


def copier() -> tuple[Callable[[], None], int]:
    """memcpy of a block far beyond any cache, and its size in bytes."""
    source, target = np.ones(_COPY, np.uint8), np.zeros(_COPY, np.uint8)
    return lambda: np.copyto(target, source), _COPY


def on_threads(threads: int, work: Callable[[int], object], items: range) -> Callable[[], object]:
    """``work`` over ``items`` on a pool of threads."""

    def run() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, items))

    return run
