"""Real ranks under mpirun, one of them killed: the job ends, and the next one leaves what no death would have."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bench.launcher import find
from tests.campaign.arena import Place, Scene
from tests.campaign.disturb import Bench, on_all_cores, spread, thorough
from tests.campaign.report import Report
from tests.world import ROOT

RANKS = 3
SCENES = ("create", "encode", "refit", "apply")
# Not write: the launcher's library writes to its sockets and pipes as often as it likes.
CALLS = ("pwrite64", "fsync", "link", "rename", "unlink")
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class RankPoint:
    """The ``number``-th call of a name in one rank's thread that makes most of them."""

    scene: str
    rank: int
    call: str
    number: int

    def __str__(self) -> str:
        return f"{self.scene}, rank {self.rank} of {RANKS}, {self.call} {self.number}"


def run(bench: Bench, budget: int | None, report: Report) -> None:
    """Up to ``budget`` points over all ranks (None: every one)."""
    names = SCENES if budget is None or budget >= len(SCENES) else SCENES[-budget:]
    by_rank = [_points(bench, name) for name in names]
    share = None if budget is None else -(-budget // len(names))
    points = [p for some in by_rank for p in spread(some, share)]

    def work(numbered: tuple[int, RankPoint]) -> tuple[RankPoint, str | None]:
        index, point = numbered
        return point, kill(bench, point, thorough(index))

    for point, wrong in on_all_cores(work, list(enumerate(points)), bench.workers):
        report.count("not_reached" if wrong is None else "kill_points", "ranks", point.scene)
        if wrong:
            report.fail(f"killed in {point}", wrong)


def kill(bench: Bench, point: RankPoint, onwards: bool) -> str | None:
    """Kill one rank; what is wrong then, "" where nothing is, None where the call was never made."""
    scene = bench.scenes[point.scene]
    with bench.arena.copy(scene.stage) as place:
        inject = f"inject={point.call}:signal=KILL:when={point.number}"
        strace = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={point.call}", "-e", inject)
        try:
            code = _job(place, scene, {point.rank: strace})
        except subprocess.TimeoutExpired:
            return f"the job did not end within {_TIMEOUT_S:g} s"
        if code == 0:
            return None
        return bench.check_stopped(place, scene.name) or bench.check_again(place, scene, onwards)


def _points(bench: Bench, name: str) -> list[RankPoint]:
    """Every call of every rank, ranks in turn."""
    scene, out = bench.scenes[name], []
    with bench.arena.copy(scene.stage) as place:
        logs = {rank: place.path.parent / f"{place.path.name}-rank{rank}" for rank in range(RANKS)}
        traced = {
            r: ("strace", "-f", "-qq", "-o", str(log), "-e", "trace=" + ",".join(CALLS)) for r, log in logs.items()
        }
        code = _job(place, scene, traced)
        assert code == 0, f"{name} on {RANKS} ranks: exit code {code}"
        for rank, log in logs.items():
            most: dict[str, int] = {}
            for (_, call), number in Counter(re.findall(r"^(\d+) +(\w+)\(", log.read_text(), re.MULTILINE)).items():
                most[call] = max(most.get(call, 0), number)
            out += [RankPoint(name, rank, call, n + 1) for call, number in most.items() for n in range(number)]
            log.unlink()
    return sorted(out, key=lambda p: (p.number, p.call, p.rank))


def _job(place: Place, scene: Scene, strace: Mapping[int, tuple[str, ...]]) -> int:
    """Run a scene's command on all ranks, some of them under strace; the launcher's exit code."""
    launcher = find()
    program = launcher.command(1, *scene.argv, "--json")
    command = [launcher.path]
    for rank in range(RANKS):
        command += [*([":"] if rank else []), "-n", "1", *strace.get(rank, ()), *program]
    env = {**launcher.environment(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=place.path, env=env, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode
