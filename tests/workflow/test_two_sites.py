"""Two Slurm clusters that know nothing of each other, an S3 server between them, five versions, every bit compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.slurmcluster import Cluster
from tests.servers import S3Server
from tests.workflow.flow import Flow
from tests.world import LAUNCHERS

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.mpi,
    pytest.mark.s3,
    pytest.mark.timeout(600),
    pytest.mark.skipif("openmpi" not in LAUNCHERS, reason="no Open MPI: apt-get install openmpi-bin"),
]
PROFILE = ("--profile", "slurm/two-sites", "--configfile")
JOB = {"ranks": 2, "nodes": 2, "memory_mib": 200}


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server(tmp_path / "s3")
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture
def flow(s3: S3Server, train: Cluster, rollout: Cluster, tmp_path: Path) -> Flow:
    flow = Flow(
        tmp_path / "flow", LAUNCHERS["openmpi"], store=f"{s3.url}/flow", endpoint=s3.endpoint,
        env={**s3.env(), "DCR_CLUSTERS": str(tmp_path / "clusters")},
    )  # fmt: skip
    (tmp_path / "clusters").mkdir()
    for cluster in (train, rollout):
        (tmp_path / f"clusters/{cluster.name}.conf").symlink_to(cluster.environment["SLURM_CONF"])
    flow.world.begin()
    return flow


def test_one_process_reaches_both(flow: Flow) -> None:
    flow.configure(
        start=False,
        batch=5,
        versions={"last": 5},
        trainer={**JOB, "cluster": "train"},
        site={**JOB, "cluster": "rollout"},
    )
    flow.must(*PROFILE, "flow.yaml", "--omit-from", "figures")
    flow.check(5)
    assert flow.receipt("rollout.verified", 5)["state"] == flow.receipt("encoded", 5)["state"]
