"""docs/models/commit.pml under Spin: every state that publishers, sites, decider and deaths can reach."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.world import ROOT

MODEL = ROOT / "docs/models/commit.pml"
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed (apt-get install spin)"),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler for the verifier that spin writes"),
]

SITES = "SITES=2 JOBS=1 VERSIONS=2 PUBLISHERS=1 STEADY"
JOBS = "SITES=1 JOBS=2 VERSIONS=2 PUBLISHERS=1 STEADY"
PUBLISHERS = "SITES=1 JOBS=1 VERSIONS=1 PUBLISHERS=2"


def _search(folder: Path, defines: str, *, endless: bool = False) -> tuple[int, str]:
    """Errors found, and the verifier's report; ``endless`` looks for runs that never end, too."""
    shutil.copy(MODEL, folder)
    flags = [f"-D{name}" for name in defines.split()]
    _call(folder, "spin", "-a", *flags, MODEL.name)
    assert COMPILER is not None
    _call(folder, COMPILER, "-O2", "-w", "-DMEMLIM=4000", "-DNP" if endless else "-DSAFETY", "-o", "pan", "pan.c")
    report = _call(folder, "./pan", "-m200000", *(["-l"] if endless else []))
    found = re.search(r"errors: (\d+)", report)
    assert found, report
    return int(found[1]), report


def _call(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _all_of_it(errors: int, report: str, at_least: int) -> None:
    assert errors == 0, report
    for truncated in ("Search not completed", "max search depth too small", "out of memory", "-DMEMLIM"):
        assert truncated not in report, report
    states = re.search(r"(\d+(?:\.\d+e\+\d+)?) states, stored", report)
    assert states, report
    assert float(states[1]) >= at_least, "a model that reaches so few states shows nothing"


@pytest.mark.parametrize("size", [SITES, JOBS, PUBLISHERS], ids=["sites", "jobs", "publishers"])
def test_nothing_goes_wrong_whoever_dies_however_often(tmp_path: Path, size: str) -> None:
    _all_of_it(*_search(tmp_path, size), 100_000)


@pytest.mark.parametrize("size", [SITES, JOBS, PUBLISHERS], ids=["sites", "jobs", "publishers"])
def test_every_run_with_few_deaths_ends_and_all_sites_agree(tmp_path: Path, size: str) -> None:
    _all_of_it(*_search(tmp_path, f"{size} LIMITED=1", endless=True), 100_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "size",
    ["SITES=2 JOBS=1 VERSIONS=1 PUBLISHERS=2", "SITES=1 JOBS=1 VERSIONS=2 PUBLISHERS=2"],
    ids=["sites", "versions"],
)
def test_all_together(tmp_path: Path, size: str) -> None:
    _all_of_it(*_search(tmp_path, size), 5_000_000)


@pytest.mark.parametrize(
    ("broken", "size", "assertion"),
    [
        ("NO_PUT_ONCE", PUBLISHERS, "decision[v]==first[v]"),
        ("NO_DECISION", SITES, "decision[v]==1"),
        ("EAGER_BASELINE", PUBLISHERS, "decision[baseline[p].version]==1"),
        ("RECORD_FIRST", SITES, "word[0]==replica[s].state"),
        ("NO_MARK", SITES, "word[0]==replica[s].state"),
        ("RECEIPT_ONCE", SITES, "decision[1]!=0"),
        ("NO_FENCE", JOBS, "assertion violated"),
    ],
)
def test_each_rule_is_needed(tmp_path: Path, broken: str, size: str, assertion: str) -> None:
    """The model without one of its rules has an error, and the error that this rule is there for."""
    errors, report = _search(tmp_path, f"{size} {broken}")
    assert errors == 1, report
    violated = next(line for line in report.splitlines() if "assertion violated" in line)
    assert assertion in violated
