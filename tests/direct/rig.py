"""An outlet with made-up parts, and its offer."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np

from dcr_mpi.digest import sha256
from dcr_mpi.direct import Outlet, Serving
from dcr_mpi.model import Offer, PartEntry

VERSION = 3
LIMIT = 64 << 20


def made(index: int, size: int) -> tuple[PartEntry, bytes]:
    """A part's entry and bytes, which no compression of a tunnel could make smaller."""
    data = np.random.default_rng(index).bytes(size)
    digest = sha256(data)
    return PartEntry(index, f"p/versions/000003/parts/{index:06d}-{digest[:32]}", size, digest, size, size), data


class Rig:
    """``outlet`` serves parts 0 to ``parts - 1`` once they are put; ``offer`` tells of it."""

    def __init__(self, spool: Path, parts: int = 4, hold_bytes: int = 256 << 20, **more: float) -> None:
        self.outlet = Outlet(Serving("127.0.0.1", hold_bytes=hold_bytes, spool=spool, **more))  # type: ignore[arg-type]
        self.token = os.urandom(32)
        self.endpoint = self.outlet.begin(VERSION, self.token, range(parts))
        self.offer = Offer("0" * 64, VERSION, self.token.hex(), (self.endpoint,), (0,) * parts, "never")

    def put(self, index: int, size: int) -> bytes:
        entry, data = made(index, size)
        self.outlet.put(entry, data)
        return data

    def at(self, port: int) -> Offer:
        """The offer as it would be with a port in front of the outlet's."""
        return dataclasses.replace(self.offer, endpoints=(dataclasses.replace(self.endpoint, port=port),))
