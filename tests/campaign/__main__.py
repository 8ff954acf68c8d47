"""``python -m tests.campaign [--quick] [--only SECTION ...]``: run the sections, write the report, fail if any did."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaign import direct, errors, hostile, kills, phases, power, ranks, sends, store
from tests.campaign.arena import Arena
from tests.campaign.disturb import Bench
from tests.campaign.report import Report

OUT = Path(__file__).parents[2] / "bench/out/campaign.json"


@dataclass(frozen=True)
class Section:
    """``run(bench, budget, report)``, with how many points it tries: in full (None: all there are), and quickly."""

    run: Callable[[Bench, Any, Report], None]
    full: int | None
    quick: int


def _sweep(
    name: str, total: str, run: Callable[[bool], tuple[dict[str, int], list[str]]]
) -> Callable[[Bench, Any, Report], None]:
    """A section out of a room that counts for itself: many minutes, so none of it in a quick run."""

    def section(_: Bench, budget: int, report: Report) -> None:
        counts, failures = run(False) if budget else ({}, [])
        for case, number in counts.items():
            report.count(total, name, case, number)
        for failure in failures:
            report.fail(name, failure)

    return section


# A new section is a room with such a function, and a line here; its counts come into the report by themselves.
SECTIONS = {
    "kills": Section(kills.run, None, 24),
    "sends": Section(sends.run, None, 6),
    "direct": Section(direct.run, None, 2),
    "ranks": Section(ranks.run, 420, 2),
    "errors": Section(errors.run, 1200, 16),
    "power": Section(power.run, 1200, 24),
    "hostile": Section(hostile.run, 100_000, 1000),
    "store": Section(_sweep("store", "store_faults", store.run), 1, 0),
    "phases": Section(_sweep("phases", "rank_faults", phases.run), 1, 0),
}
QUICK = ("create", "encode-opened", "refit", "apply", "run")  # scenes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__.partition(":")[2].strip())
    parser.add_argument("--quick", action="store_true", help="a few points of every kind, in under a minute")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION",
                        help="some of " + ", ".join(SECTIONS))  # fmt: skip
    parser.add_argument("--budget", type=int, help="points per section, instead of its own number")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; one per core by default")
    parser.add_argument("--out", type=Path, default=OUT, help="the report")
    options = parser.parse_args()
    if shutil.which("strace") is None:
        sys.exit("no strace here, which stops the processes. Next: apt-get install strace")
    report = campaign({name: SECTIONS[name] for name in options.only}, options)
    totals = ", ".join(f"{number} {name}" for name, number in report.plain().items() if isinstance(number, int))
    print(f"{totals}; {len(report.failures)} failures; {options.out}")
    return 1 if report.failures else 0


def campaign(sections: dict[str, Section], options: argparse.Namespace) -> Report:
    """Run sections one after the other in one warm process; a section that breaks is a failure of its own."""
    report = Report()
    # In memory, where there is room: every fsync is made, and none takes time.
    root = Path(tempfile.mkdtemp(prefix="dcr-campaign-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        bench = Bench(Arena(root), options.workers, QUICK if options.quick else None)
        for name, section in sections.items():
            begun = time.monotonic()
            print(f"{name} ...", flush=True)
            try:
                section.run(bench, options.budget or (section.quick if options.quick else section.full), report)
            except Exception as error:
                traceback.print_exc()
                report.fail(name, f"the section itself broke: {type(error).__name__}: {error}")
            report.seconds[name] = time.monotonic() - begun
            report.write(options.out)  # whoever stops it keeps what it has
            print(f"{name}: {report.seconds[name]:.0f} s, {len(report.failures)} failures so far", flush=True)
    finally:
        shutil.rmtree(root)
    for failure in report.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return report


if __name__ == "__main__":
    sys.exit(main())
