"""Failing ranks: each rank in each phase of encode, refit and apply, in each way; see tests/mpi/rank_faults.py."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.mpi.rank_faults import Bench, Case, cases, try_case
from tests.world import LAUNCHERS

LIMIT = 20  # failures are enough to look at


def run(quick: bool, kinds: Sequence[str] = ()) -> tuple[dict[str, int], list[str]]:
    """Try all cases of 3 ranks and, unless ``quick``, those of 5 ranks and of every other MPI that is there.

    ``quick`` takes every seventh case; ``kinds`` are some of the MPIs. Says on the way how far it is: it takes most
    of an hour. Returns what was tried by name, with its number, and what went wrong.
    """
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for kind in kinds or sorted(LAUNCHERS)[: 1 if quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), LAUNCHERS[kind])
            for nth, case in enumerate(chosen := _some(quick), 1):
                if len(failures) >= LIMIT:
                    break
                tripped, wrong = try_case(bench, case)
                counts[f"{kind}: {case.act} {case.phase} {case.how if tripped else 'never came there'}"] += 1
                failures += [f"{kind}: {text}" for text in wrong]
                if nth % 20 == 0 or wrong:
                    print(f"{kind}: {nth} of {len(chosen)}", *wrong, sep="\n", file=sys.stderr, flush=True)
    return dict(counts), failures


def _some(quick: bool) -> list[Case]:
    if quick:
        return cases(3)[::7]
    wide = [case for case in cases(5) if case.rank in (0, 1, 4) and case.phase in ("fetch", "send", "journal", "agree")]
    return cases(3) + wide


if __name__ == "__main__":
    arguments = sys.argv[1:]
    tried, failed = run("--quick" in arguments, [a for a in arguments if a != "--quick"])
    print(*(f"{number:4} {name}" for name, number in sorted(tried.items())), *failed, sep="\n")
    sys.exit(bool(failed))
