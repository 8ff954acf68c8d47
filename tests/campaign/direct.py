"""A site that takes parts from a publisher that serves them: disturbed at each call, the next try ends as it should.

One publisher, a process of its own, serves all copies of its world: each has the offer, and no part is in the store.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.campaign.arena import DIRECT, SITE, Arena, Place, Scene
from tests.campaign.disturb import Bench
from tests.campaign.mixed import disturb
from tests.campaign.report import Report
from tests.world import ROOT

_PATIENCE_S = 60.0
_SOCKETS = ("write", "writev", "sendto", "sendmsg")  # an error there is a publisher that went away


def run(bench: Bench, budget: int | None, report: Report) -> None:
    """A kill at up to ``budget`` calls (None: every one), and a medium that fails at a third as many."""
    with _served(bench.arena) as place:
        there = Bench(ServedArena(bench.arena, place), bench.workers)
        points = [p for name in there.scenes for p in there.points(name)]
        files = [p for p in points if p.call not in _SOCKETS]
        disturb(there, points, files, budget, "EIO", "direct", "from a publisher", report)


class ServedArena(Arena):
    """Copies of the one world whose publisher serves; what else is asked for comes from another arena."""

    def __init__(self, inner: Arena, place: Place) -> None:
        self.root, self.model = inner.root / "served", inner.model
        self._stages, self._made = {"served": place}, 0

    def scenes(self) -> list[Scene]:
        refit = ("refit", *SITE, *DIRECT)
        return [Scene("refit-direct", "served", refit, (("commit",), ("apply", *SITE)))]


@contextmanager
def _served(arena: Arena) -> Iterator[Place]:
    """A world where a version is sealed, of which only its publisher, which runs meanwhile, has the parts."""
    with arena.copy("begun", "served") as place:
        encode = ("encode", arena.step(1), *DIRECT, "--set=direct.store=never", "--set=direct.serve_s=3600")
        command = [sys.executable, "-m", "dcr_mpi", *encode]
        with open(place.path.parent / "publisher.log", "wb") as log:
            publisher = subprocess.Popen(command, cwd=place.path, env={"PYTHONPATH": str(ROOT)}, stderr=log, stdout=log)
        try:
            _wait_for(place.path / "store/test/versions/000001/manifest.json", publisher)
            yield place
            assert publisher.poll() is None, "the publisher ended before its sites did"
        finally:
            publisher.kill()
            publisher.wait()


def _wait_for(path: Path, publisher: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while not path.exists():
        assert publisher.poll() is None, f"the publisher ended with {publisher.returncode}"
        assert time.monotonic() < give_up, f"no {path}"
        time.sleep(0.05)
