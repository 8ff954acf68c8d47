"""MPICH's shared memory: its own ranks' names go when they leave by an abort, old ones before the next run meets."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from dcr_mpi.comm.mpi import _check_launcher
from dcr_mpi.comm.segments import drop_own, drop_stale
from dcr_mpi.errors import LaunchError


def _segment(path: Path, age_s: float = 0.0) -> Path:
    path.write_bytes(bytes(4096))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_what_this_process_has_mapped_loses_its_name() -> None:
    mine, other = (_segment(Path(f"/dev/shm/mpich_shm_test{os.getpid()}_{k}")) for k in (0, 1))
    try:
        with mine.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
            mapped[0] = 1
            drop_own()
            assert not mine.exists() and other.exists()
            assert mapped[0] == 1, "who has it keeps it"
            drop_own()
    finally:
        mine.unlink(missing_ok=True)
        other.unlink()


@pytest.mark.parametrize(
    ("restarts", "age_s", "gone"), [("1", 100.0, True), ("2", 100.0, True), ("1", 0.0, False), ("0", 100.0, False)]
)
def test_what_the_run_before_left_goes(tmp_path: Path, restarts: str, age_s: float, gone: bool) -> None:
    left, else_where = _segment(tmp_path / "mpich_shm_1_0", age_s), _segment(tmp_path / "other_shm", age_s)
    drop_stale({"SLURM_RESTART_COUNT": restarts, "SLURM_JOB_START_TIME": str(int(time.time()) - 50)}, tmp_path)
    assert left.exists() != gone and else_where.exists()


def test_what_somebody_uses_stays(tmp_path: Path) -> None:
    used = _segment(tmp_path / "mpich_shm_2_0", 100.0)
    env = {"SLURM_RESTART_COUNT": "1", "SLURM_JOB_START_TIME": str(int(time.time()) - 50)}
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        drop_stale(env, tmp_path)
        assert used.exists()
    drop_stale({"SLURM_RESTART_COUNT": "1"}, tmp_path)
    assert used.exists(), "nobody says since when"
    drop_stale(env, tmp_path)
    assert not used.exists()


def test_the_wheel_is_not_started_through_pmix() -> None:
    """Its own message says neither what to do nor that it is ours; a site's MPICH may well speak PMIx."""
    started = {"PMIX_RANK": "0", "SLURM_STEP_ID": "0"}
    with pytest.raises(LaunchError, match="srun --mpi=pmi2"):
        _check_launcher("MPICH Version: 4.3.2", started, wheel=True)
    _check_launcher("MPICH Version: 4.3.2", started, wheel=False)
    _check_launcher("MPICH Version: 4.3.2", {"PMI_RANK": "0"}, wheel=True)
    _check_launcher("Open MPI v4.1.4", started, wheel=False)
