"""The clusters that the other tests stand on: real nodes, MPI across them, and nothing in common."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from bench.slurmcluster import Cluster
from tests.world import LAUNCHERS

pytestmark = pytest.mark.slurm
HELLO = "; ".join(
    [
        "from mpi4py import MPI; import socket",
        "hosts = MPI.COMM_WORLD.gather(socket.gethostname())",  # one rank prints: lines of several may be mixed
        "hosts and print(*sorted(hosts))",
    ]
)


@pytest.mark.skipif("openmpi" not in LAUNCHERS, reason="no Open MPI: apt-get install openmpi-bin")
@pytest.mark.parametrize("launch", ["srun --mpi=pmix -N 2 -n 4 -c 1", "mpirun.openmpi -n 4"])
def test_ranks_on_both_nodes(train: Cluster, tmp_path: Path, launch: str) -> None:
    job = tmp_path / "job"
    job.write_text(f"#!/bin/bash\n{launch} {sys.executable} -c '{HELLO}'\nexit 75\n")
    number = train.submit(
        "-N2", "--ntasks-per-node=2", "-o", "out", str(job), cwd=tmp_path, env=LAUNCHERS["openmpi"].environment()
    )
    assert train.wait(number)["ExitCode"] == "75:0"
    assert (tmp_path / "out").read_text().splitlines() == ["train1 train1 train2 train2"]


def test_two_clusters_have_nothing_in_common(train: Cluster, rollout: Cluster, tmp_path: Path) -> None:
    number = train.submit("--wrap", "sleep 100", cwd=tmp_path)
    train.wait(number, until=["RUNNING"])
    assert str(number) not in rollout.run("squeue", "-h", "-t", "all", "-o", "%i").split()
    assert rollout.idle() == 2
    train.run("scancel", str(number))
    assert train.wait(number)["JobState"] == "CANCELLED"


def test_a_node_that_loses_its_power_takes_its_processes_along(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", "small", nodes=1) as cluster:
        number = cluster.submit("--wrap", "setsid sleep 1234.5 & exec sleep 1234.5", cwd=tmp_path)
        cluster.wait(number, until=["RUNNING"])
        give_up = time.monotonic() + 10
        while len(_sleeping("1234.5")) < 2:
            assert time.monotonic() < give_up
        cluster.kill_node(1)
        assert not _sleeping("1234.5")


def _sleeping(seconds: str) -> list[Path]:
    wanted = f"sleep\0{seconds}\0".encode()
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if _command(path) == wanted]


def _command(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
