"""A call failed by the medium: the command says so (exit code 30) or gets by, and run again leaves what it should."""

from __future__ import annotations

from dataclasses import dataclass

from tests.campaign.disturb import Bench, Point, on_all_cores, spread, thorough
from tests.campaign.report import Report

ERRORS = ("ENOSPC", "EIO", "EROFS", "EINTR")
_FINE, _RESOURCE = 0, 30


@dataclass(frozen=True)
class Failing:
    point: Point
    error: str

    def __str__(self) -> str:
        return f"{self.error} at {self.point}"


def run(bench: Bench, budget: int | None, report: Report) -> None:
    """Each of the errors at up to ``budget`` calls (None: every one) of all scenes."""
    points = [p for name in bench.scenes for p in bench.points(name)]
    cases = spread([Failing(p, error) for p in points for error in ERRORS], budget)

    def work(numbered: tuple[int, Failing]) -> tuple[Failing, str]:
        index, case = numbered
        return case, fail(bench, case, thorough(index))

    for case, wrong in on_all_cores(work, list(enumerate(cases)), bench.workers):
        report.count("error_points", "errors", case.point.scene)
        if wrong:
            report.fail(str(case), wrong)


def fail(bench: Bench, case: Failing, onwards: bool) -> str:
    """Fail one call; what is wrong then, "" where nothing is."""
    scene, point = bench.scenes[case.point.scene], case.point
    with bench.arena.copy(scene.stage) as place:
        inject = f"inject={point.call}:error={case.error}:when={point.number}"
        done = place.run(scene.argv, ("-o", "/dev/null", "-e", f"trace={point.call}", "-e", inject))
        if done.code not in (_FINE, _RESOURCE):
            return f"ended with {done.code}: {done.text.strip()[-400:]}"
        if done.code == _RESOURCE and "Next: " not in done.text:
            return f"an error without a next step: {done.text.strip()[-400:]}"
        return bench.check_stopped(place, scene.name) or bench.check_again(place, scene, onwards)
