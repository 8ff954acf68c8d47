"""slurm/*.sbatch as sites run them: every template on real Slurm, over two nodes; and their text."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from bench.slurmcluster import Cluster
from tests.slurm.places import MPIRUN, SRUN, TEMPLATES, Places, needs_openmpi

pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.timeout(240)]
USED = {"encode", "refit", "apply", "version", "follow", "publish"}


@needs_openmpi
@pytest.mark.parametrize("launch", [SRUN, MPIRUN])
def test_a_version_over_two_clusters(train: Cluster, rollout: Cluster, tmp_path: Path, launch: str) -> None:
    """The trainer's and the site's cluster share nothing but the store."""
    places = Places(tmp_path, env={"DCR_LAUNCH": launch})
    places.ends(train, places.submit(train, "train", "encode", str(places.synth(1))))
    places.ends(rollout, places.submit(rollout, "rollout", "refit"))
    places.here("train", "commit")
    places.ends(rollout, places.submit(rollout, "rollout", "apply"))
    assert places.exact(1)
    for receipt in ("train/receipts/encode-step-000001", "rollout/receipts/refit-rollout"):
        assert json.loads((tmp_path / f"{receipt}.json").read_text())["ranks"] == 4


@needs_openmpi
def test_a_version_in_one_job_beside_a_site_that_follows(train: Cluster, rollout: Cluster, tmp_path: Path) -> None:
    """The follower takes what comes, goes back into the queue when it is told to stop, and ends when cancelled."""
    places = Places(tmp_path)
    follower = places.submit(rollout, "rollout", "follow", "--after", "touch told")
    first, second = (places.submit(train, "train", "version", str(places.synth(step))) for step in (1, 2))
    places.ends(train, first)
    assert train.state(second) != "COMPLETED", "versions are made one after the other"
    rollout.run("scancel", "--batch", "--signal=USR1", str(follower))
    places.ends(train, second)
    _until(lambda: places.exact(2))
    _until((tmp_path / "rollout/told").exists)
    assert rollout.job(follower)["Restarts"] == "1"
    rollout.run("scancel", str(follower))
    assert rollout.wait(follower)["JobState"] == "CANCELLED", "and not in the queue again"
    time.sleep(1)
    assert rollout.job(follower)["JobState"] == "CANCELLED"


@needs_openmpi
@pytest.mark.slow
def test_both_sides_stay(train: Cluster, rollout: Cluster, tmp_path: Path) -> None:
    """A publisher that is told to stop goes back into the queue; what is there goes to the site all the same."""
    places = Places(tmp_path)
    for step in (1, 2):
        places.synth(step)
    follower = places.submit(rollout, "rollout", "follow")
    publisher = places.submit(train, "train", "publish", str(places.path / "model/step-*"), "--every")
    _until(lambda: places.exact(2))
    train.run("scancel", "--batch", "--signal=USR1", str(publisher))
    train.wait(publisher, until=("PENDING",))
    for cluster, job in ((train, publisher), (rollout, follower)):
        cluster.run("scancel", str(job))
        assert cluster.wait(job)["JobState"] == "CANCELLED"


@needs_openmpi
def test_a_version_and_its_site_in_one_job(train: Cluster, tmp_path: Path) -> None:
    """Trainer and site on one cluster; the same job again changes nothing."""
    places = Places(tmp_path)
    site = (places.path / "rollout/dcr.yaml").read_text().splitlines()[-1].replace("replica: ", "replica: ../rollout/")
    with (places.path / "train/dcr.yaml").open("a") as config:
        config.write(site + "\n")
    new = str(places.synth(1))
    for _ in range(2):
        places.ends(train, places.submit(train, "train", "version", new, DCR_SITES="rollout"))
        assert places.exact(1)


def test_every_template_is_run_here() -> None:
    assert {path.stem for path in TEMPLATES.glob("*.sbatch")} == USED
    text = Path(__file__).read_text()
    assert all(f'"{name}"' in text.partition("def test")[2] for name in USED)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck: apt-get install shellcheck")
def test_shellcheck_finds_nothing() -> None:
    files = sorted(str(path) for path in TEMPLATES.iterdir() if path.suffix in (".sbatch", ".sh", ".env"))
    assert len(files) >= len(USED) + 2
    done = subprocess.run(
        ["shellcheck", "--external-sources", *files], cwd=TEMPLATES.parent, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_templates_can_be_stopped_and_say_which_checkpoint(tmp_path: Path) -> None:
    """What all of them have in common; without its argument one says what is missing, before anything runs."""
    for path in TEMPLATES.glob("*.sbatch"):
        text = path.read_text()
        assert {"#SBATCH --signal=B:USR1@60", "#SBATCH --requeue", "set -euo pipefail"} <= set(text.splitlines()), path
        done = subprocess.run(["bash", str(path)], cwd=TEMPLATES.parent, text=True, capture_output=True, check=False)
        assert done.returncode != 0 and "which" in done.stderr


def _until(ready, timeout_s: float = 60.0) -> None:  # type: ignore[no-untyped-def]
    give_up = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < give_up
        time.sleep(0.3)
