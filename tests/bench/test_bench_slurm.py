"""The benchmark of the scheduler's cost: every way brings its versions to the site. No timing."""

from __future__ import annotations

import pytest

from bench import slurm
from bench.slurmcluster import missing
from tests.world import LAUNCHERS

REASON = missing() or (None if "openmpi" in LAUNCHERS else "no Open MPI: apt-get install openmpi-bin")
pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.mpi, pytest.mark.timeout(900)]


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_every_way_under_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert slurm.main(["--versions", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == len(slurm.SETTINGS) * (1 + len(slurm.WAYS))
    for row in (row for row in rows if "first line" not in row):
        wall, inside = (float(number) for number in row.split()[-2:])
        assert 0 < inside < wall
