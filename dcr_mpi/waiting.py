"""Waiting for something to appear in a store or a directory: looks with growing pauses between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .errors import NotReady

T = TypeVar("T")


def watch(look: Callable[[], T | None], wait_s: float, poll_s: tuple[float, float]) -> T | None:
    """Look until there is something, with a growing pause; None once ``wait_s`` is over."""
    give_up, pause = time.monotonic() + wait_s, poll_s[0]
    while (found := look()) is None and (left := give_up - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, poll_s[1])
    return found


def wait_for(what: str, look: Callable[[], T | None], wait_s: float, poll_s: tuple[float, float]) -> T:
    """As :func:`watch`; raises NotReady where nothing came."""
    found = watch(look, wait_s, poll_s)
    if found is None:
        raise NotReady(
            what,
            found=f"none after {wait_s:g} s",
            expected="it in the store",
            remedy="look whether the job that makes it runs, then run this again",
        )
    return found
