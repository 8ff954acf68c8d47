"""The door to numba: how kernels are compiled, and where their code is kept."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Any:
    """numba.njit, with a cache that any number of processes may fill at once.

    numba numbers the files of a function's compiled code by what it read in the cache's index a moment before. Two
    processes that compile for two word widths at once take the same number, and from then on the code for one width
    is loaded for the other. A number drawn at random is nobody else's; a lost entry of the index only costs time.
    """
    try:
        compiled: Any = numba.njit(nogil=True, cache=True, boundscheck=False)(function)
    except RuntimeError:  # no directory for a cache that may be written (NUMBA_CACHE_DIR names one): compile every time
        return numba.njit(nogil=True, boundscheck=False)(function)
    if hasattr(compiled, "_cache"):  # not under NUMBA_DISABLE_JIT
        files = compiled._cache._cache_file
        files._data_name = lambda _: files._data_name_pattern.format(number=secrets.randbits(63))
    return compiled


inline: Any = numba.njit(inline="always")
