"""A trainer and a site as two clusters have them: a directory and a configuration each, and the store in common."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.slurmcluster import Cluster
from dcr_mpi.jsonable import loads
from dcr_mpi.model import Layout
from dcr_mpi.synth import TINY, trainer_layout
from tests.world import CODEC, LAUNCHERS, ROOT, Done, World, here, read_all, scatter_full

TEMPLATES = ROOT / "slurm"
SRUN, PMI2, MPIRUN = "srun --mpi=pmix", "srun --mpi=pmi2", "mpirun.openmpi"  # PMI2 is for the wheel of MPICH
SHAPE = ("-N2", "--ntasks-per-node=2")  # two ranks on each of two nodes
# Each of these calls takes a while in every rank, so that whatever happens to the job surely meets it at work; but not
# when it is started again. Detached: the tracer is no child of the launcher's, which must see the rank's own end.
SLOW = """#!/bin/sh
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exec "$@"
exec strace -DDD -f -qq -o /dev/null -e trace=%(call)s -e inject=%(call)s:delay_enter=%(microseconds)d "$@"
"""
# What an act does again and again: parts and objects are linked to their names, journals and weights written.
CALLS = {"encode": "link", "refit": "pwrite64", "apply": "pwrite64"}

needs_openmpi = pytest.mark.skipif("openmpi" not in LAUNCHERS, reason="no Open MPI: apt-get install openmpi-bin")


@dataclass
class Places:
    """``path/train`` and ``path/rollout`` are what the two clusters see, ``path/store`` is the store."""

    path: Path
    kernels: str = "numpy"
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        head = f"policy: test\nstore: {{url: {self.path / 'store'}}}\ncodec: {CODEC}\nkernels: {self.kernels}\n"
        head += "relay: {timeout_s: 60, chunk_mib: 0.001}\nevents: {dir: events}\n"
        trainer = "trainer: {state: state, layout: layout.json, sites: [rollout]}\n"
        site = "sites: {rollout: {replica: replica, layout: layout.json}}\n"
        self._worlds = {name: self._world(name, head + own) for name, own in (("train", trainer), ("rollout", site))}
        self.synth(0)
        for name, layout in (("train", "trainer"), ("rollout", "site")):
            (self.path / name / "layout.json").write_bytes((self.path / f"model/layouts/{layout}.json").read_bytes())
        self.here("train", "init", "--checkpoint", str(self.step(0)))
        self.here("rollout", "init", "--site", "rollout")

    def _world(self, name: str, config: str) -> World:
        (self.path / name).mkdir(parents=True)
        world = World(self.path / name, LAUNCHERS["openmpi"])
        world.config.write_text(config)
        return world

    def step(self, number: int) -> Path:
        return self.path / f"model/step-{number:06d}"

    def synth(self, number: int) -> Path:
        arguments = ("synth", str(self.path / "model"), "--step", str(number), "--size", "tiny")
        assert here(self._worlds["train"], *arguments).code == 0
        return self.step(number)

    def here(self, place: str, *arguments: str) -> Done:
        """A command at a place, in this process, for what is not the point of a test; it must succeed."""
        done = here(self._worlds[place], *arguments)
        assert done.code == 0, done.error
        return done

    def environment(self, **more: str) -> dict[str, str]:
        """What the jobs get."""
        mine = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DCR_SLURM": str(TEMPLATES),
            "DCR_SITE": "rollout", "DCR_WAIT_S": "60", "DCR_LAUNCH": SRUN, **self.env,
        }  # fmt: skip
        launcher = LAUNCHERS["mpich" if PMI2 in more.get("DCR_LAUNCH", "") else "openmpi"]
        return {**launcher.environment(), "PYTHONPATH": str(ROOT), **mine, **more}

    def submit(self, cluster: Cluster, place: str, act: str, *arguments: str, **env: str) -> int:
        """Submit a template on two ranks of each of two nodes."""
        return cluster.submit(
            *SHAPE, *self.template(act), *arguments, cwd=self.path / place, env=self.environment(**env)
        )

    def template(self, act: str) -> tuple[str, str]:
        """sbatch's arguments for a template, with one log for all jobs."""
        return f"--output={self.path / 'log'}", str(TEMPLATES / f"{act}.sbatch")

    def slowed(self, launch: str, act: str, seconds: float = 0.3) -> str:
        """A launch setting under which an act's ranks are held up at work."""
        wrapper = self.path / f"slow-{act}"
        wrapper.write_text(SLOW % {"call": CALLS[act], "microseconds": seconds * 1e6})
        wrapper.chmod(0o755)
        return f"{launch} {wrapper}"

    @property
    def log(self) -> str:
        """What all jobs said."""
        path = self.path / "log"
        return path.read_text() if path.exists() else ""

    def ends(self, cluster: Cluster, number: int, timeout_s: float = 90) -> dict[str, str]:
        """Wait for a job that must succeed."""
        job = cluster.wait(number, timeout_s)
        assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), self.log
        return job

    def exact(self, number: int) -> bool:
        """Whether the replica holds what a full transfer of a step would have left, bit by bit."""
        layout = loads(Layout, (self.path / "rollout/layout.json").read_bytes(), "layout")
        want = scatter_full(self.step(number), trainer_layout(TINY), layout)
        return read_all(self.path / "rollout/replica", layout) == want
