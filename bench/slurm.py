"""What a version costs in the scheduler, by the way that its commands are submitted: ``python -m bench.slurm``.

A small model, two clusters of two nodes on this machine (root, and Debian's Slurm and Open MPI), the templates of
``slurm/``. For each way and each setting of Slurm: seconds from the checkpoint to the applied version, and how many of
them passed between submission and the first line of a job, and between a job's last receipt and its end being known.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcr_mpi.cli import main as dcr

from .launcher import find_all
from .slurmcluster import Cluster, missing

ROOT = Path(__file__).parent.parent
SETTINGS = {"Slurm's defaults": "default_queue_depth=100", "at once": Cluster.AT_ONCE}
_CONFIG = """\
policy: bench
store: {{url: {root}/store}}
trainer: {{state: {root}/state, layout: {root}/model/layouts/trainer.json, sites: [rollout]}}
sites: {{rollout: {{replica: {root}/replica, layout: {root}/model/layouts/site.json}}}}
"""
# Sourced by every job: its first line's time, and settings that the environment of sbatch has.
_STAMP = 'date +%s.%N >"{root}/started-$SLURM_JOB_ID"\n'


@dataclass
class Way:
    """One way to submit a version; ``jobs`` is how many it takes."""

    name: str
    jobs: int
    version: Callable[[Bench, str], float]


class Bench:
    """A policy, its site and two clusters."""

    def __init__(self, root: Path, train: Cluster, rollout: Cluster) -> None:
        self.root, self.train, self.rollout = root, train, rollout
        self.step = 0
        (root / "dcr.yaml").write_text(_CONFIG.format(root=root))
        (root / "site.env").write_text(_STAMP.format(root=root))
        openmpi = next(launcher for launcher in find_all() if launcher.kind == "openmpi")
        self.env = {
            **openmpi.environment(), "PYTHONPATH": str(ROOT), "DCR_SLURM": str(ROOT / "slurm"), "DCR_SITE": "rollout",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DCR_ENV": str(root / "site.env"),
        }  # fmt: skip
        self.here("init", "--checkpoint", self.synth())
        self.here("init", "--site", "rollout")

    def here(self, *arguments: str) -> None:
        config = [] if arguments[0] == "synth" else ["-c", str(self.root / "dcr.yaml")]
        with contextlib.redirect_stdout(io.StringIO()):
            if code := dcr([*arguments, *config, "--json"]):
                raise SystemExit(code)

    def synth(self) -> str:
        """The next checkpoint."""
        self.here("synth", str(self.root / "model"), "--step", str(self.step), "--size", "tiny")
        self.step += 1
        return str(self.root / f"model/step-{self.step - 1:06d}")

    def submit(self, cluster: Cluster, act: str, *arguments: str) -> int:
        return cluster.submit(
            "-N2", "--ntasks-per-node=2", f"--output={self.root}/log", str(ROOT / f"slurm/{act}.sbatch"), *arguments,
            cwd=self.root, env=self.env,
        )  # fmt: skip

    def job(self, cluster: Cluster, act: str, receipt: str, *arguments: str) -> float:
        """Run a job to its end; the seconds that Slurm took before and after it."""
        submitted = time.time()
        number = self.submit(cluster, act, *arguments)
        ended = cluster.wait(number, 300)
        known = time.time()
        if ended["JobState"] != "COMPLETED":
            raise SystemExit(f"{act} ended as {ended['JobState']}: see {self.root / 'log'}")
        return self.started(number) - submitted + known - self.said(receipt)

    def started(self, number: int) -> float:
        return float((self.root / f"started-{number}").read_text())

    def said(self, receipt: str) -> float:
        return (self.root / f"receipts/{receipt}.json").stat().st_mtime


def _by_command(bench: Bench, new: str) -> float:
    spent = bench.job(bench.train, "encode", f"encode-{Path(new).name}", new)
    spent += bench.job(bench.rollout, "refit", "refit-rollout")
    bench.here("commit")
    return spent + bench.job(bench.rollout, "apply", "apply-rollout")


def _by_version(bench: Bench, new: str) -> float:
    bench.env["DCR_SITES"] = "rollout"
    return bench.job(bench.train, "version", "apply-rollout", new)


def _followed(bench: Bench, new: str) -> float:
    """The site's job is there already, so only the trainer's is submitted; it is over when the site has applied."""
    bench.env["DCR_SITES"] = ""
    submitted = time.time()
    number = bench.submit(bench.train, "version", new)
    record = bench.root / "replica/.dcr/replica.json"
    while json.loads(record.read_text())["version"] < bench.step - 1:
        time.sleep(0.05)
    return bench.started(number) - submitted


def _start_s(cluster: Cluster, root: Path) -> float:
    """Seconds from the submission of an empty job to its first line, on idle nodes."""
    submitted = time.time()
    cluster.wait(cluster.submit("-N2", "--output=/dev/null", "--wrap", "date +%s.%N >empty", cwd=root))
    return float((root / "empty").read_text()) - submitted


WAYS = [
    Way("a job per command", 3, _by_command),
    Way("a job per version (version.sbatch)", 1, _by_version),
    Way("the site follows (follow.sbatch)", 1, _followed),
]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Seconds per version in the scheduler, by way to submit it.")
    parser.add_argument("--versions", type=int, default=5, help="versions per way (default: 5)")
    versions = parser.parse_args(argv).versions
    if reason := missing():
        raise SystemExit(f"bench.slurm: {reason}")
    print(f"{'Slurm':18}{'way':38}{'jobs':>5}{'seconds':>9}{'in Slurm':>10}   (medians of {versions} versions)")
    for name, scheduler in SETTINGS.items():
        with tempfile.TemporaryDirectory(prefix="dcr-slurm-") as folder:
            root = Path(folder)
            with (
                Cluster(root / "train", "train", scheduler=scheduler) as train,
                Cluster(root / "rollout", "rollout", scheduler=scheduler) as rollout,
            ):
                starts = [_start_s(train, root) for _ in range(versions)]
                print(f"{name:18}{'from sbatch to the first line':43}{statistics.median(starts):19.1f}", flush=True)
                bench = Bench(root, train, rollout)
                for way in WAYS:
                    if way.version is _followed:
                        rollout.wait(bench.submit(rollout, "follow"), until=["RUNNING"])
                    taken = []
                    for _ in range(versions):
                        new, begun = bench.synth(), time.time()
                        inside = way.version(bench, new)
                        taken.append((time.time() - begun, inside))
                    wall, inside = (statistics.median(column) for column in zip(*taken, strict=True))
                    print(f"{name:18}{way.name:38}{way.jobs:5}{wall:9.1f}{inside:10.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
