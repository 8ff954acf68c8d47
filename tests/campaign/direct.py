"""A site that takes parts from a publisher that serves them: disturbed at each call, the next try ends as it should.

One publisher, a process of its own, serves all copies of its world: each has the offer, and no part is in the store.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.campaign.arena import DIRECT, SITE, Arena, Place, Scene
from tests.campaign.disturb import Bench
from tests.campaign.mixed import disturb
from tests.campaign.report import Report
from tests.world import ROOT, wait_for

_SOCKETS = ("write", "writev", "sendto", "sendmsg")  # an error there is a publisher that went away


def run(bench: Bench, budget: int | None, report: Report) -> None:
    """A kill at up to ``budget`` calls (None: every one), and a medium that fails at a third as many."""
    with _served(bench.arena) as place:
        there = Bench(ServedArena(bench.arena, place), bench.workers)
        points = [p for name in there.scenes for p in there.points(name)]
        files = [p for p in points if p.call not in _SOCKETS]
        disturb(there, points, files, budget, "EIO", "direct", "from a publisher", report)


class ServedArena(Arena):
    """Copies of the one world whose publisher serves; no other stage is there."""

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
            wait_for(place.path / "store/test/versions/000001/manifest.json")
            yield place
            assert publisher.poll() is None, "the publisher ended before its sites did"
        finally:
            publisher.kill()
            publisher.wait()
