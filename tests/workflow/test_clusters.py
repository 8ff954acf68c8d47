"""The program between Snakemake and several Slurm clusters: how a job ended, in the words of its executor."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from bench.slurmcluster import Cluster
from tests.world import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


class Program:
    """``submit``, ``status`` and ``cancel``, typed where they write their logs."""

    def __init__(self, folder: Path, *clusters: Cluster) -> None:
        self.folder = folder
        for cluster in clusters:
            (folder / f"{cluster.name}.conf").symlink_to(cluster.environment["SLURM_CONF"])

    def __call__(self, verb: str, *arguments: str, **env: str) -> str:
        done = subprocess.run(
            [str(ROOT / "slurm/two-sites" / verb), *arguments], cwd=self.folder, text=True, capture_output=True,
            env={**os.environ, "DCR_CLUSTERS": str(self.folder), **env}, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, name: str, command: str, **env: str) -> str:
        return self("submit", f"to={name}", "--mem=100", "--gres=", f"--wrap={command}", **env)

    def ended(self, job: str) -> str:
        give_up = time.monotonic() + 60
        while (status := self("status", job)) == "running":
            assert time.monotonic() < give_up
            time.sleep(0.2)
        return status


def test_how_jobs_end(train: Cluster, rollout: Cluster, tmp_path: Path) -> None:
    program = Program(tmp_path, train, rollout)
    good, bad = program.submit("train", "echo here"), program.submit("rollout", "exit 3")
    long = program.submit("rollout", "sleep 500")
    assert (good.split(":")[0], bad.split(":")[0]) == ("train", "rollout")
    assert (program.ended(good), program.ended(bad), program("status", long)) == ("success", "failed", "running")
    log = tmp_path / f".snakemake/slurm_logs/wrap-{good.split(':')[1]}.log"
    assert log.read_text() == "here\n"
    program("cancel", long, good)
    assert program.ended(long) == "failed"
    assert program("status", "train:999999") == "failed", "forgotten"
    own = program.submit("", "true", **train.environment)
    assert own.startswith(":") and train.wait(int(own[1:]))["JobState"] == "COMPLETED"


def test_a_controller_that_does_not_answer_is_no_job_that_failed(train: Cluster, tmp_path: Path) -> None:
    program = Program(tmp_path)
    conf = Path(train.environment["SLURM_CONF"]).read_text()
    lines = ["SlurmctldPort=1" if line.startswith("SlurmctldPort=") else line for line in conf.splitlines()]
    (tmp_path / "away.conf").write_text("\n".join([*lines, "MessageTimeout=2"]) + "\n")
    assert program("status", "away:1") == "running"


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({}, "DCR_CLUSTERS: is to be the directory"),
        ({"DCR_CLUSTERS": "nowhere"}, "cluster train: no nowhere/train.conf"),
    ],
)
@pytest.mark.parametrize("verb", [("status", "train:1"), ("cancel", "train:1"), ("submit", "to=train", "job")])
def test_no_such_cluster(tmp_path: Path, env: dict[str, str], says: str, verb: tuple[str, ...]) -> None:
    clean = {key: value for key, value in os.environ.items() if key not in ("DCR_CLUSTERS", "SLURM_CONF")}
    done = subprocess.run(
        [str(ROOT / "slurm/two-sites" / verb[0]), *verb[1:]], capture_output=True, text=True, timeout=60, check=False,
        cwd=tmp_path, env={**clean, **env},
    )  # fmt: skip
    assert done.returncode != 0 and says in done.stderr and not done.stdout
