"""The program between Snakemake and several Slurm clusters: how a job ended, in the words of its executor."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.slurmcluster import Cluster
from tests.world import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


class Program:
    """``submit``, ``status``, ``cancel`` and ``sidecar``, typed where they write their logs."""

    def __init__(self, folder: Path, *clusters: Cluster) -> None:
        self.folder, self.env = folder, {**os.environ, "DCR_CLUSTERS": str(folder)}
        for cluster in clusters:
            (folder / f"{cluster.name}.conf").symlink_to(cluster.environment["SLURM_CONF"])

    def __call__(self, verb: str, *arguments: str, **env: str) -> str:
        done = subprocess.run(
            [str(ROOT / "slurm/two-sites" / verb), *arguments], cwd=self.folder, text=True, capture_output=True,
            env={**self.env, **env}, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, name: str, command: str, **env: str) -> str:
        return self("submit", f"to={name}", "--mem=100", "--gres=", f"--wrap={command}", **env)

    def ended(self, job: str, **env: str) -> str:
        give_up = time.monotonic() + 60
        while (status := self("status", job, **env)) == "running":
            assert time.monotonic() < give_up
            time.sleep(0.2)
        return status

    @contextmanager
    def beside(self, *before: str) -> Iterator[tuple[subprocess.Popen[str], Path, dict[str, str]]]:
        """A sidecar, the directory of its notes, and what Snakemake has in the others' environment then."""
        command = [*before, str(ROOT / "slurm/two-sites/sidecar")]
        with subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            notes = process.stdout.readline().strip()
            try:
                yield process, Path(notes), {"SNAKEMAKE_CLUSTER_SIDECAR_VARS": notes}
            finally:
                process.terminate()


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


def test_a_sidecar_ends_what_is_left_when_it_is_told_to_end(train: Cluster, rollout: Cluster, tmp_path: Path) -> None:
    program = Program(tmp_path, train, rollout)
    with program.beside() as (process, notes, env):
        left, over = program.submit("rollout", "sleep 500", **env), program.submit("train", "true", **env)
        resumed = program.submit("train", "sleep 500")  # by the Snakemake before this one
        assert program.ended(over, **env) == "success" and program("status", resumed, **env) == "running"
        assert {path.name for path in notes.iterdir()} == {left, resumed}
        process.send_signal(signal.SIGINT)  # as Ctrl-C does to all that Snakemake started
        time.sleep(0.5)
        assert process.poll() is None and program("status", left, **env) == "running"
        process.terminate()
        assert process.wait(60) == 0
    assert (program.ended(left), program.ended(resumed)) == ("failed", "failed") and not notes.exists()


def test_a_sidecar_whose_snakemake_was_killed_leaves_its_jobs_to_the_next_one(train: Cluster, tmp_path: Path) -> None:
    program = Program(tmp_path, train)
    with program.beside("sh", "-c", '"$0"; exit') as (snakemake, notes, env):
        job = program.submit("train", "sleep 500", **env)
        snakemake.kill()
        snakemake.wait()
        give_up = time.monotonic() + 60
        while notes.exists():
            assert time.monotonic() < give_up
            time.sleep(0.2)
    assert program("status", job) == "running"
    program("cancel", job)


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
