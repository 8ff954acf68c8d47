"""The scheduler's signal to stop.

Everything done so far is durable or redone by the next run, so stopping is raising, at once: a wait for a stalled store
would outlast the scheduler's patience. Whatever takes that error for one of its own (a tidying that must not fail, a
library) does not keep the job alive: :func:`heed`, called between parts and in waits for other ranks, raises again.
"""

from __future__ import annotations

import signal
from types import FrameType

from ..errors import Preempted

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_told: list[signal.Signals] = []
_ours: set[signal.Signals] = set()  # once somebody listens


def listen() -> None:
    """From here on SIGTERM and SIGUSR1 raise Preempted in the main thread, the first of them only.

    A launcher may pass on what the scheduler has sent already, and that must not cut the leaving short.
    """
    _told.clear()
    for number in SIGNALS:
        signal.signal(number, _stop)
    _ours.update(SIGNALS)


def heed() -> None:
    """Raise Preempted if there was a signal."""
    if _told:
        raise Preempted(
            _told[0].name,
            found="the scheduler's signal to stop",
            remedy="run the same command again: it goes on from here",
        )


def deafen() -> None:
    """From here on no signal raises: the job is ending already. Nothing of a process that never listened."""
    for number in _ours:
        signal.signal(number, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> None:
    deafen()
    _told.append(signal.Signals(number))
    heed()
