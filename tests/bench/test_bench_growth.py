"""What grows, and how fast: the exponent of known laws, and the real thing on two small points."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.growth import exponent, table
from tests.world import LAUNCHERS, ROOT


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power(power: float) -> None:
    x = [1.0, 2.0, 4.0, 12.0]
    assert exponent(x, [7 * v**power for v in x]) == pytest.approx(power)


def test_a_single_point_has_none() -> None:
    assert exponent([3.0], [5.0]) == 0.0
    rows = [{"axis": "ranks", "ranks": 2, "act": "encode", "cpu_s": 1.5, "wall_s": 1.0, "peak_mib": 90.0}]
    assert table(rows)[1][:6] == ["ranks", "encode", "2", "2", "1.50", "1.50"]


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(600)
@pytest.mark.skipif(not LAUNCHERS, reason="no mpirun")
def test_two_points_of_an_axis(tmp_path: Path) -> None:
    out = tmp_path / "growth.json"
    command = [sys.executable, "-m", "bench.growth", "--quick", "--axes", "MiB", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_bytes())
    assert [(r["MiB"], r["act"]) for r in rows] == [(m, a) for m in (64, 128) for a in ("encode", "refit", "apply")]
    assert all(r["cpu_s"] > 0.1 and r["peak_mib"] > 20 for r in rows)
    assert out.with_name("growth-mib.svg").read_text().startswith("<svg")
