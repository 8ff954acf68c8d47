"""Processes that code beside the one that is measured: ranks of a node work at the same time, and share its memory's
bandwidth and a cache, so that each takes more of its core than it would alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

from ..errors import ResourceError
from ..kernels import get_kernels
from .coding import Sample, point

_LOOK_S = 0.2


@contextmanager
def neighbours(count: int, sample: Sample, directory: Path) -> Iterator[None]:
    """So many processes that encode, prepare and apply until the block ends; each has files of its own in
    ``directory``.

    Raises
    ------
    ResourceError
        One of them ended before all had begun.
    """
    spawn = get_context("spawn")
    at_work = [spawn.Event() for _ in range(count)]
    processes = [
        spawn.Process(target=_code, args=(sample, directory / f"beside-{k}", event, os.getpid()))
        for k, event in enumerate(at_work)
    ]
    try:
        for process in processes:
            process.start()
        for process, event in zip(processes, at_work, strict=True):
            while not event.wait(_LOOK_S):
                if not process.is_alive():
                    raise ResourceError(
                        "a process that codes beside the one that is measured",
                        found=f"its end, with {process.exitcode}",
                        expected="it at work",
                        remedy="if memory or room is short, ask for fewer: --ranks 1 measures a core by itself",
                    )
        yield
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _code(sample: Sample, directory: Path, at_work: Event, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts the measurement ends it, and that ends this
    work = point(get_kernels(), sample, directory).work.values()
    at_work.set()
    while os.getppid() == parent:
        for do in work:
            do()
