"""What a store takes: small requests, and one stream of bytes each way.

Before each request memory is copied, as its client's and its server's caches hold something else in between two parts:
requests in a row took a fifth less than the same ones among the work of a refit.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from ..errors import DcrError
from ..store import Store
from .timing import copier

_TRIES, _SOON_S = (5, 15), 0.5  # at least, and as many as come in that time
_SMALL, _FIRST, _LARGEST = 512, 1 << 20, 64 << 20
_ENOUGH_S = 0.5  # of one stream: larger objects would only take longer
_IDLE_S = 0.2


@dataclass(frozen=True)
class Asked:
    """Seconds of a small put and get; bytes per second of one stream beyond that, and core-seconds of this machine per
    byte of it."""

    put_s: float
    get_s: float
    put_rate: float
    get_rate: float
    put_byte_s: float
    get_byte_s: float


def storing(store: Store) -> Asked:
    """Measure with objects under ``calibration/<random>/``, which are deleted where this account may.

    Raises
    ------
    StoreUnavailable, StoreDenied, ResourceError
        As the store does.
    """
    folder = f"calibration/{secrets.token_hex(8)}"
    keys: list[str] = []

    def put(data: bytes) -> float:
        keys.append(f"{folder}/{len(keys)}")
        return _took(lambda: store.put_once(keys[-1], data))

    try:
        put(b"first")  # opens the connection
        put_s = _typical(lambda: put(secrets.token_bytes(_SMALL)))
        get_s, size = _typical(lambda: _took(lambda: store.get(keys[-1]))), _FIRST
        idle = _background()
        while True:
            data = np.random.default_rng(0).bytes(size)
            busy = _busy_s()
            sent = put(data)
            if sent > _ENOUGH_S or size == _LARGEST:
                break
            size = min(_LARGEST, 4 * size)
        putting, busy = _busy_s() - busy - idle * sent, _busy_s()
        came = _took(lambda: store.get(keys[-1]))
        getting = _busy_s() - busy - idle * came
        rates = size / max(sent - put_s, 1e-6), size / max(came - get_s, 1e-6)
        return Asked(put_s, get_s, *rates, max(0.0, putting / size), max(0.0, getting / size))
    finally:
        with suppress(DcrError):  # deleting is for the collector's account, which this may not be
            for key in keys:
                store.delete(key)


def _typical(ask: Callable[[], float]) -> float:
    """Median seconds of some requests, with other memory in the caches before each."""
    copy, _ = copier()
    took: list[float] = []
    while len(took) < _TRIES[0] or (sum(took) < _SOON_S and len(took) < _TRIES[1]):
        copy()
        took.append(ask())
    return median(took)


def _background() -> float:
    """Cores that others keep busy."""
    before = _busy_s()
    time.sleep(_IDLE_S)
    return (_busy_s() - before) / _IDLE_S


def _busy_s() -> float:
    """Core-seconds that this machine has worked since it was started: its store's too, if that runs here. 0 where the
    kernel does not say."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, soft = map(int, first[1:8])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def _took(do: Callable[[], object]) -> float:
    begun = time.monotonic()
    do()
    return time.monotonic() - begun
