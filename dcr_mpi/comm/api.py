"""What the acts need of a job, and the job of one rank. Nothing here imports MPI."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..errors import PeerFailed
from . import stopping


class Transfer(Protocol):
    """A send or a receive under way; ``data`` holds the bytes once ``test`` said True."""

    data: Any

    def test(self) -> bool: ...


class Comm(Protocol):
    """What the acts need of a job. Collectives are called by every rank in the same order."""

    rank: int
    size: int

    def heed(self) -> None:
        """Between parts: raise Preempted if there was a signal, PeerFailed if another rank sent its notice."""
        ...

    def poll(self, ready: Callable[[], bool], what: str, more_s: float = 0.0) -> None:
        """Wait until ``ready()``; raises PeerFailed on a notice or after the time-out, naming ``what``.

        ``more_s``: seconds that others may wait for something outside of the job, besides.
        """
        ...

    def notify(self, error: BaseException) -> None:
        """Tell every other rank that this one failed: each raises in its next wait."""
        ...

    def free(self) -> None:
        """Give back what was taken of a program's MPI; the program goes on."""
        ...

    def barrier(self, what: str) -> None: ...

    def broadcast(self, data: bytes | None, what: str) -> bytes:
        """Rank 0's bytes on every rank."""
        ...

    def allgather(self, data: bytes, what: str) -> list[bytes]:
        """Every rank's bytes, by rank."""
        ...

    def sum(self, values: np.ndarray, what: str) -> np.ndarray:
        """Element-wise sum modulo 2^64 of a uint64 array of the same shape on every rank."""
        ...

    def send(self, to: int, index: int, data: Any) -> Transfer:
        """Start to send part ``index`` to a rank; ``data`` must stay alive until it is done."""
        ...

    def receive(self, source: int, index: int, length: int | None) -> Transfer:
        """Start to receive part ``index`` of ``length`` bytes; a sender that says otherwise is an error.

        None takes the length that the sender says.
        """
        ...


class Solo:
    """A job of one rank."""

    rank, size = 0, 1

    def heed(self) -> None:
        stopping.heed()

    def poll(self, ready: Callable[[], bool], what: str, more_s: float = 0.0) -> None:
        spin(ready, None, what, self.heed)

    def notify(self, error: BaseException) -> None:
        pass

    def free(self) -> None:
        pass

    def barrier(self, what: str) -> None:
        pass

    def broadcast(self, data: bytes | None, what: str) -> bytes:
        assert data is not None
        return data

    def allgather(self, data: bytes, what: str) -> list[bytes]:
        return [data]

    def sum(self, values: np.ndarray, what: str) -> np.ndarray:
        return values.copy()

    def send(self, to: int, index: int, data: Any) -> Transfer:
        raise AssertionError("a job of one rank has nobody to send to")

    def receive(self, source: int, index: int, length: int | None) -> Transfer:
        raise AssertionError("a job of one rank has nobody to receive from")


def spin(ready: Callable[[], bool], timeout_s: float | None, what: str, heed: Callable[[], None]) -> None:
    """Call ``ready`` until it is true: often at first, then about every millisecond."""
    begun, pause = time.monotonic(), 20e-6
    while not ready():
        heed()
        if timeout_s is not None and time.monotonic() - begun > timeout_s:
            raise PeerFailed(
                what,
                found=f"no progress for {timeout_s:g} s",
                expected="an answer from the other ranks",
                remedy="look at the other ranks' logs, then run again: only what is missing is redone",
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 1e-3)
