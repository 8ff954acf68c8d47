"""Two Slurm clusters that know nothing of each other, an S3 server between them, five versions, every bit compared."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
# A status command that tells that it was called, and takes its time.
SLOW = '#!/bin/sh\ntouch looking\nsleep 3\nexec slurm/two-sites/status "$1"\n'
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


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, f"Snakemake ended before {path} was there"
        time.sleep(0.1)


def test_one_process_reaches_both(flow: Flow, train: Cluster, rollout: Cluster) -> None:
    """Interrupted in the midst of its versions, and of a look at its jobs, it takes those along and goes on later."""
    flow.configure(
        start=False, batch=5, versions={"last": 5},
        trainer={**JOB, "cluster": "train"}, site={**JOB, "cluster": "rollout"},
    )  # fmt: skip
    rollout.run("scontrol", "update", "PartitionName=main", "State=DOWN")  # or all might be over before the signal
    slow = flow.path / "slow"
    slow.write_text(SLOW)
    slow.chmod(0o755)
    with flow.started(*PROFILE, "flow.yaml", "--cluster-generic-status-cmd", "./slow") as first:
        _wait_for(flow.path / "run/receipts/000001/encoded.json", first)
        (flow.path / "looking").unlink()
        _wait_for(flow.path / "looking", first)
        first.send_signal(signal.SIGINT)
        assert flow.finish(first).code == 1
    rollout.run("scontrol", "update", "PartitionName=main", "State=UP")
    give_up = time.monotonic() + 30
    while left := [cluster.name for cluster in (train, rollout) if cluster.run("squeue", "-h").split()]:
        assert time.monotonic() < give_up, f"jobs are left on {left}"
        time.sleep(0.2)
    done = flow.must(*PROFILE, "flow.yaml")
    flow.check(5)
    assert flow.receipt("rollout.verified", 5)["state"] == flow.receipt("encoded", 5)["state"]
    numbers = json.loads((flow.path / "run/report/report.json").read_text())
    assert [row["version"] for row in numbers["versions"]] == [1, 2, 3, 4, 5]
    assert not list((flow.path / ".snakemake").glob("jobs.*")), "notes of the jobs that are no more"
    assert "Submitted job" in done.out and "external jobid 'train:" in done.out and "jobid 'rollout:" in done.out


@pytest.mark.slow
def test_one_process_per_site(s3: S3Server, train: Cluster, rollout: Cluster, tmp_path: Path) -> None:
    """Each side has its own directory, configuration, cluster and Snakemake; the S3 server is all that they share."""
    sides = {}
    for cluster in (train, rollout):
        env = {**s3.env(), **cluster.environment}
        sides[cluster.name] = Flow(
            tmp_path / cluster.name, LAUNCHERS["openmpi"], store=f"{s3.url}/apart", endpoint=s3.endpoint, env=env
        )
    trainer, site = sides["train"], sides["rollout"]
    trainer.world.dcr(1, "init", "--checkpoint", str(trainer.world.synth(0)))
    shutil.copytree(trainer.path / "model/layouts", site.path / "model/layouts")
    site.world.dcr(1, "init", "--site", "rollout")
    common: dict[str, Any] = {"start": False, "versions": {"last": 2}, "wait_s": 120}
    trainer.configure(here={"sites": []}, trainer=JOB, **common)
    site.configure(here={"trainer": False, "sites": ["rollout"]}, site=JOB, **common)
    with site.started(*PROFILE, "flow.yaml") as waiting, trainer.started(*PROFILE, "flow.yaml") as training:
        ended = [trainer.finish(training), site.finish(waiting)]
    assert [done.code for done in ended] == [0, 0], "\n".join(done.out[-4000:] for done in ended)
    assert site.world.words() == trainer.world.full_transfer(2)
    assert site.receipt("rollout.verified", 2)["state"] == trainer.receipt("encoded", 2)["state"]
    assert not (site.path / "model/step-000001").exists()
