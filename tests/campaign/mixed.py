"""Both at once: a kill at each of some points, and an error at a third as many."""

from __future__ import annotations

from collections.abc import Sequence

from tests.campaign.disturb import Bench, Point, on_all_cores, spread, thorough
from tests.campaign.errors import Failing, fail
from tests.campaign.kills import kill
from tests.campaign.report import Report


def disturb(
    there: Bench,
    points: Sequence[Point],
    failing: Sequence[Point],
    budget: int | None,
    error: str,
    section: str,
    where: str,
    report: Report,
) -> None:
    """Up to ``budget`` kills (None: at every point), and a third as many times ``error`` at some that are ``failing``;
    ``where`` is for what is said of a failure."""
    chosen: list[Point | Failing] = [*spread(points, budget)]
    chosen += [Failing(p, error) for p in spread(failing, (len(points) if budget is None else budget) // 3)]

    def work(numbered: tuple[int, Point | Failing]) -> tuple[Point | Failing, str | None]:
        index, what = numbered
        onwards = thorough(index)
        return what, fail(there, what, onwards) if isinstance(what, Failing) else kill(there, what, onwards)

    for what, wrong in on_all_cores(work, list(enumerate(chosen)), there.workers):
        scene = what.point.scene if isinstance(what, Failing) else what.scene
        name = "error_points" if isinstance(what, Failing) else "kill_points"
        report.count("not_reached" if wrong is None else name, section, scene)
        if wrong:
            report.fail(f"{where}: {what}", wrong)
