"""Killed at each of its calls, a command is run again and leaves what it would have left undisturbed."""

from __future__ import annotations

from tests.campaign.disturb import Bench, Point, on_all_cores, spread, thorough
from tests.campaign.report import Report

_KILLED = -9


def run(bench: Bench, budget: int | None, report: Report) -> None:
    """SIGKILL at up to ``budget`` calls (None: every one) of all scenes."""
    points = spread([p for name in bench.scenes for p in bench.points(name)], budget)

    def work(numbered: tuple[int, Point]) -> tuple[Point, str | None]:
        index, point = numbered
        return point, kill(bench, point, thorough(index))

    for point, wrong in on_all_cores(work, list(enumerate(points)), bench.workers):
        if wrong is None:
            report.count("not_reached", "kills", point.scene)
            continue
        report.count("kill_points", "kills", point.scene)
        if wrong:
            report.fail(f"killed in {point}", wrong)


def kill(bench: Bench, point: Point, onwards: bool) -> str | None:
    """Kill at a point; what is wrong then, "" where nothing is, None where the call was never made."""
    scene = bench.scenes[point.scene]
    with bench.arena.copy(scene.stage) as place:
        inject = f"inject={point.call}:signal=KILL:when={point.number}"
        done = place.run(scene.argv, ("-o", "/dev/null", "-e", f"trace={point.call}", "-e", inject))
        if done.code != _KILLED:
            return None if done.code == 0 else f"ended with {done.code} instead of being killed: {done.text[-400:]}"
        return bench.check_stopped(place, scene.name) or bench.check_again(place, scene, onwards)
