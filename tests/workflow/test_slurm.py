"""``snakemake --profile slurm`` from the repository's root, as it is written, on a real cluster, ranks on two nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.slurmcluster import Cluster
from tests.workflow.flow import Flow
from tests.world import LAUNCHERS

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.mpi,
    pytest.mark.timeout(600),
    pytest.mark.skipif("openmpi" not in LAUNCHERS, reason="no Open MPI: apt-get install openmpi-bin"),
]


def test_the_profile(train: Cluster, tmp_path: Path) -> None:
    flow = Flow(tmp_path, LAUNCHERS["openmpi"])
    flow.configure(versions={"last": 1}, trainer={"nodes": 2, "memory_mib": 200}, site={"nodes": 2, "memory_mib": 200})
    flow.must("--profile", "slurm", "--configfile", "flow.yaml", "--until", "verify", **train.environment)
    flow.check(1)
    logs = list((tmp_path / "run/logs").rglob("*.log"))
    assert json.loads((tmp_path / "events/encode-rank0001.jsonl").read_text().splitlines()[0])["size"] == 2, logs
