"""Fuzzing of the reader in earnest: a million mutated parts, and some with every access of a kernel checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import NAMES, campaign

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("seed", range(8))
def test_a_million_mutated_parts(seed: int) -> None:
    """In eight lots, so that several processes share them."""
    report = campaign(seed, 125_000)
    assert report.verdicts.total() == 125_000
    assert report.verdicts["refused"] < 125_000
    assert report.slowest < 60  # seconds: no hang, on a machine however busy
    assert report.grown < 256 << 20


@pytest.mark.parametrize("name", NAMES)
def test_no_kernel_reads_outside_its_arrays(name: str, tmp_path: Path) -> None:
    """Compiled anew with bounds checks, which the campaign first sees at work."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--count", "5000", "--names", name],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert "5000 mutants" in run.stdout
