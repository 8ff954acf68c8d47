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


def _jobs(cluster: Cluster) -> set[str]:
    return set(cluster.run("squeue", "-h", "-t", "all", "-o", "%i").split())


def test_the_profile(train: Cluster, tmp_path: Path) -> None:
    flow = Flow(tmp_path, LAUNCHERS["openmpi"])
    flow.world.begin()
    flow.world.synth(1)
    job = {"nodes": 2, "memory_mib": 200}
    flow.configure("configs/workflow.yaml", start=False, train=None, versions={"last": 1}, trainer=job, site=job)
    before = _jobs(train)
    flow.must("--profile", "slurm", **train.environment)
    flow.check(1)
    for act, ranks in (("encode", 2), ("refit", 2), ("apply", 2), ("commit", 1)):
        begun = json.loads((tmp_path / f"events/{act}-rank{ranks - 1:04d}.jsonl").read_text().splitlines()[0])
        assert (begun["event"], begun["size"]) == ("begin", ranks)
    assert len(_jobs(train) - before) == 4, "encode, refit, apply and verify; the decision and the figures need no job"
