"""What a directory's disk takes to make durable what was written over words that are there, as apply does it.

Writing itself is work of a core, and measured as that.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from .. import durable
from ..errors import from_os_error

_PIECE, _PIECES = 4 << 20, 32
_LONGEST_S = 1.5
_SYNCS = 5
_LEAST_S = 1e-4  # where there is no disk


def disk(directory: Path) -> tuple[float, float]:
    """Bytes per second of fsync after writing, and seconds of an fsync after one small write.

    Raises
    ------
    ResourceError, UsageError
        The disk is full or read-only, or there is no such directory.
    """
    data = np.random.default_rng(0).bytes(_PIECE)
    try:
        with tempfile.TemporaryFile(prefix=".dcr-bench-", dir=directory) as file:
            fd = file.fileno()
            begun, pieces = time.monotonic(), 0
            while pieces < _PIECES and time.monotonic() - begun < _LONGEST_S:
                os.pwrite(fd, data, pieces * _PIECE)
                pieces += 1
            durable.sync(fd)
            for piece in range(pieces):
                os.pwrite(fd, data, piece * _PIECE)
            begun = time.monotonic()
            durable.sync(fd)
            rate = pieces * _PIECE / max(time.monotonic() - begun, _LEAST_S)
            took = []
            for k in range(_SYNCS):
                begun = time.monotonic()
                os.pwrite(fd, data[:512], k * 4096)
                durable.sync(fd)
                took.append(time.monotonic() - begun)
    except OSError as error:
        raise from_os_error(error, f"measuring the disk of {directory}") from error
    return rate, median(took)
