"""What a store takes: small requests, and one stream of bytes each way."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..errors import DcrError
from ..store import Store

_TRIES = 5
_SMALL, _FIRST, _LARGEST = 512, 1 << 20, 64 << 20
_ENOUGH_S = 0.5  # of one stream: larger objects would only take longer


@dataclass(frozen=True)
class Asked:
    """Seconds of a small put and get; bytes per second of one stream beyond that."""

    put_s: float
    get_s: float
    put_rate: float
    get_rate: float


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
        puts = [put(secrets.token_bytes(_SMALL)) for _ in range(_TRIES)]
        gets = [_took(lambda: store.get(keys[-1])) for _ in range(_TRIES)]
        put_s, get_s, size = median(puts), median(gets), _FIRST
        while True:
            data = np.random.default_rng(0).bytes(size)
            sent = put(data)
            if sent > _ENOUGH_S or size == _LARGEST:
                break
            size = min(_LARGEST, 4 * size)
        came = _took(lambda: store.get(keys[-1]))
        return Asked(put_s, get_s, size / max(sent - put_s, 1e-6), size / max(came - get_s, 1e-6))
    finally:
        with suppress(DcrError):  # deleting is for the collector's account, which this may not be
            for key in keys:
                store.delete(key)


def _took(do: Callable[[], object]) -> float:
    begun = time.monotonic()
    do()
    return time.monotonic() - begun
