"""A few points of every section of the campaign, and that it sees what it is there to see."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.compare import difference
from tests.world import ROOT

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


def _campaign(out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "tests.campaign", "--quick", "--workers", "1", "--out", str(out), *arguments]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert out.exists(), done.stdout + done.stderr
    return done.returncode, json.loads(out.read_bytes())


@pytest.mark.parametrize(
    ("section", "total"),
    [
        ("kills", "kill_points"),
        ("errors", "error_points"),
        ("power", "power_loss_orders"),
        ("ranks", "kill_points"),
        ("direct", "kill_points"),
    ],
)
def test_a_few_points(tmp_path: Path, section: str, total: str) -> None:
    budget = "2" if section in ("ranks", "direct") else "8"
    code, report = _campaign(tmp_path / "report.json", "--only", section, "--budget", budget)
    assert (code, report["failures"]) == (0, [])
    # a thread may make a call once less often than in the course that was counted: its last is then not reached
    assert report[total] + report.get("not_reached", 0) >= int(budget)
    assert report[total] >= int(budget) // 2


def test_hostile_bytes(tmp_path: Path) -> None:
    code, report = _campaign(tmp_path / "report.json", "--only", "hostile", "--budget", "500")
    assert (code, report["failures"]) == (0, [])
    assert report["hostile_parts"] >= 500


def test_a_difference_is_told() -> None:
    assert difference({"a": "1"}, {"a": "1"}) == ""
    told = difference({"a": "2", "b": "x"}, {"a": "1", "c": "y"})
    assert told == "a: 2 instead of 1; b is too many; c is missing"
