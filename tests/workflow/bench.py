"""What schedulers cost a version: ``python -m tests.workflow.bench [--versions 3] [VARIANT...]``, as root, with Slurm.

A tiny model, so that the acts themselves take next to nothing; on a real cluster of two nodes. Of every variant it
prints the seconds per version from Snakemake's start to its end, those in which at least one act was at work (start of
its processes included), and what is left: Snakemake, the queue, and looks at it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.slurmcluster import Cluster, missing
from tests.workflow.flow import Flow
from tests.world import LAUNCHERS

JOB = {"ranks": 2, "nodes": 2, "memory_mib": 200}


@dataclass(frozen=True)
class Variant:
    """``options`` of Snakemake; all versions in one batch, or a job per stage."""

    title: str
    options: tuple[str, ...]
    batched: bool = False


PLUGIN = ("--profile", "slurm")
GENERIC = ("--profile", "slurm/two-sites")
VARIANTS = {
    "mpirun": Variant("mpirun on this machine", ("--workflow-profile", "workflow/profiles/local")),
    "default": Variant(
        "Slurm executor, its own first look after 40 s", (*PLUGIN, "--slurm-init-seconds-before-status-checks", "40")
    ),
    "plugin": Variant("Slurm executor, `slurm/`", PLUGIN),
    "generic": Variant("a look every second, `slurm/two-sites/`", GENERIC),
    "plugin-batch": Variant("Slurm executor, `slurm/`, one batch", PLUGIN, batched=True),
    "generic-batch": Variant("a look every second, `slurm/two-sites/`, one batch", GENERIC, batched=True),
}


def measure(variant: Variant, cluster: Cluster, directory: Path, versions: int) -> tuple[float, float]:
    """Seconds per version: all of it, and in acts."""
    flow = Flow(directory, LAUNCHERS["openmpi"], env=cluster.environment, timeout_s=1200)
    flow.world.begin()
    for version in range(1, versions + 1):
        flow.world.synth(version)
    batch = versions if variant.batched else 0
    flow.configure(start=False, train=None, versions={"last": versions}, batch=batch, trainer=JOB, site=JOB)
    unit = f"000001-{versions:06d}" if batch else f"{versions:06d}"
    begun = time.monotonic()
    flow.must(
        *variant.options, "--configfile", "flow.yaml", "--",
        f"run/receipts/{unit}/committed.json", f"run/receipts/{unit}/rollout.applied.json",
    )  # fmt: skip
    wall = time.monotonic() - begun
    return wall / versions, _covered(directory / "run/benchmarks") / versions


def _covered(benchmarks: Path) -> float:
    """Seconds in which some job's command ran: Snakemake writes how long one took when it has ended."""
    spans = []
    for path in benchmarks.rglob("*.tsv"):
        end = path.stat().st_mtime
        spans.append((end - float(path.read_text().splitlines()[1].split("\t")[0]), end))
    total, until = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"some of {', '.join(VARIANTS)}")
    args = parser.parse_args()
    reason = missing() or (None if "openmpi" in LAUNCHERS else "no Open MPI")
    if reason:
        raise SystemExit(reason)
    print("| jobs | s per version | in acts | in scheduler and Snakemake |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder) / "slurm", "train", cpus=4) as cluster:
        for name in args.variants or VARIANTS:
            wall, acts = measure(VARIANTS[name], cluster, Path(folder) / name, args.versions)
            print(f"| {VARIANTS[name].title} | {wall:.1f} | {acts:.1f} | {wall - acts:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
