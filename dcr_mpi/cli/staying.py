"""Jobs that stay: ``publish`` at the trainer and ``follow`` at a site take version after version without starting anew.

Rank 0 looks what there is to do, and all ranks do it: the acts are those of the single commands. Any error ends the job
with that error's code, as it ends theirs; started again, it goes on. A version that is aborted while it is followed is
no error here: what comes next is taken. Here is what both have: health, hooks, and words to whoever reads their log.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import durable
from ..acts.ports import Ports
from ..config import Config
from ..errors import printable
from ..health import Health
from ..hooks import run_hook
from ..jsonable import dumps

_LOOK_S = 5.0  # how long rank 0 looks before it tells the others that there is nothing: shorter than anybody's patience


def look_s(idle_s: float | None) -> float:
    """How long rank 0 looks at a time, in a job that ends after ``idle_s`` seconds without anything."""
    return _LOOK_S if idle_s is None else min(_LOOK_S, idle_s)


def is_over(ports: Ports, since: float, idle_s: float) -> bool:
    """Whether rank 0, whose clock counts, has waited long enough."""
    return ports.once("idle time", lambda: dumps(time.monotonic() - since >= idle_s)) == b"true"


def say(config: Config, text: str) -> None:
    """A line for whoever reads the log, if progress is asked for; by rank 0 alone."""
    if config.events.progress_s > 0:
        print(printable(text), file=sys.stderr, flush=True)


def call_hook(ports: Ports, when: str, hook: str | None, facts: dict[str, str], timeout_s: float) -> None:
    """Run a hook on rank 0, if there is one; what it printed is in the job's stderr."""
    if hook is not None:

        def act() -> bytes:
            if told := run_hook(when, hook, facts, timeout_s):
                print(printable(f"hook --{when}, version {facts['version']}: {told}"), file=sys.stderr, flush=True)
            return b""

        ports.once(f"hook --{when}", act)


class Due:
    """``--after``, noted durably in a file from before what it is to tell until it was called: if the job ends between,
    the next one with such a hook calls it. Does nothing in a job that has none."""

    def __init__(self, ports: Ports, args: argparse.Namespace, path: Path) -> None:
        self._ports, self._args, self._path = ports, args, path

    @property
    def noted(self) -> bool:
        """Whether this job has one to call."""
        return self._args.after is not None and self._path.exists()

    def note(self, told: Any) -> None:
        if self._args.after is not None and self._ports.comm.rank == 0:
            durable.replace(self._path, dumps(told))

    def call(self, facts: dict[str, str]) -> None:
        if self._args.after is not None:
            call_hook(self._ports, "after", self._args.after, facts, self._args.hook_s)
            if self._ports.comm.rank == 0:
                durable.remove(self._path)


@contextmanager
def health_of(ports: Ports, config: Config, subject: str, args: argparse.Namespace) -> Iterator[Health]:
    """What rank 0 tells; the others have nothing to say."""
    told = (None, None) if ports.comm.rank else (args.metrics, args.listen)
    health = Health(subject, *told)
    try:
        if health.port is not None:
            ports.events.emit("listening", port=health.port)
            say(config, f"{subject}: /metrics and /healthz on port {health.port}")
        yield health
    finally:
        health.close()
