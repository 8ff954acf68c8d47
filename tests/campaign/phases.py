"""Failing ranks: each rank in each phase of encode, refit and apply, in each way; see tests/mpi/rank_faults.py."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.mpi.rank_faults import Bench, Case, cases, try_case
from tests.world import LAUNCHERS

LIMIT = 20  # failures are enough to look at


def run(quick: bool) -> tuple[dict[str, int], list[str]]:
    """Try all cases of 3 ranks and, unless ``quick``, those of 5 ranks and of every other MPI that is there.

    ``quick`` takes every seventh case. Returns what was tried by name, with its number, and what went wrong.
    """
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for kind in sorted(LAUNCHERS)[: 1 if quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), LAUNCHERS[kind])
            for case in _some(quick):
                if len(failures) >= LIMIT:
                    break
                tripped, wrong = try_case(bench, case)
                counts[f"{kind}: {case.act} {case.phase} {case.how if tripped else 'never came there'}"] += 1
                failures += [f"{kind}: {text}" for text in wrong]
    return dict(counts), failures


def _some(quick: bool) -> list[Case]:
    if quick:
        return cases(3)[::7]
    wide = [case for case in cases(5) if case.rank in (0, 1, 4) and case.phase in ("fetch", "send", "journal", "agree")]
    return cases(3) + wide


if __name__ == "__main__":
    tried, failed = run("--quick" in sys.argv)
    print(*(f"{number:4} {name}" for name, number in sorted(tried.items())), *failed, sep="\n")
    sys.exit(bool(failed))
