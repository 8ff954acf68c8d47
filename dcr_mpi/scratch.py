"""Arrays that a thread uses again and again: memory that is fresh costs as much as a copy into it."""

from __future__ import annotations

import threading

import numpy as np


class Scratch:
    """Named arrays of each thread; one is good until it is asked for again by the same thread."""

    def __init__(self) -> None:
        self._threads = threading.local()

    def words(self, name: str, count: int, width: int) -> np.ndarray:
        """An array of ``count`` little-endian unsigned words of ``width`` bytes, with anything in it."""
        rooms: dict[str, np.ndarray] = self._threads.__dict__.setdefault("rooms", {})
        if name not in rooms or rooms[name].nbytes < count * width:
            rooms[name] = np.empty(count * width, np.uint8)
        return rooms[name][: count * width].view(f"<u{width}")
