"""The workflow as a user has it: Snakefile, rules, profiles and configurations in a directory, run by Snakemake."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.launcher import Launcher
from tests.world import ROOT, Done, World, read_all

SNAKEMAKE = [sys.executable, "-m", "snakemake"]


def _interruptible() -> None:
    """Who runs the tests in the background of a shell has SIGINT ignored, and so have all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Flow:
    """``path`` gets the repository's own workflow and a tiny model; ``world`` looks at what becomes of it."""

    path: Path
    launcher: Launcher
    sites: tuple[str, ...] = ("rollout",)
    store: str = ""
    endpoint: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 400

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "Snakefile", self.path)
        for folder in ("workflow", "slurm", "configs"):
            shutil.copytree(ROOT / folder, self.path / folder)
        self.world = World(self.path, self.launcher, self.store, self.sites, self.env, self.endpoint)

    def configure(self, name: str = "flow.yaml", **keys: Any) -> Path:
        """A workflow's configuration: three versions of the tiny model, unless ``keys`` say otherwise."""
        plain = {
            "start": True,
            "train": f'{sys.executable} -m dcr_mpi synth model --size tiny --step "$DCR_STEP"',
            "versions": {"last": 3},
            "wait_s": 60,
            "trainer": {"memory_mib": 200},
            "site": {"memory_mib": 200},
            **keys,
        }
        where = self.path / name
        where.write_text(yaml.safe_dump(plain))
        return where

    def environment(self) -> dict[str, str]:
        here = str(Path(sys.executable).parent)
        env = {**self.world.environment(), "PATH": os.pathsep.join([here, os.environ["PATH"]])}
        if self.launcher.kind == "openmpi":  # mpirun is the other MPI's, where both are there
            bin_ = self.path / "bin"
            bin_.mkdir(exist_ok=True)
            if not (bin_ / "mpirun").exists():
                (bin_ / "mpirun").symlink_to(self.launcher.path)
            env["PATH"] = os.pathsep.join([str(bin_), env["PATH"]])
        return {**env, "XDG_CACHE_HOME": str(self.path / "cache")}

    @contextmanager
    def started(self, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
        """Snakemake, for as long as the block at most."""
        process = subprocess.Popen(
            [*SNAKEMAKE, *arguments], cwd=self.path, env={**self.environment(), **env}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_interruptible,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def finish(self, process: subprocess.Popen[str]) -> Done:
        out, _ = process.communicate(timeout=self.timeout_s)
        return Done(process.returncode, out, out)

    def run(self, *arguments: str, **env: str) -> Done:
        with self.started(*arguments, **env) as process:
            return self.finish(process)

    def must(self, *arguments: str, **env: str) -> Done:
        """A run that must succeed."""
        done = self.run(*arguments, **env)
        assert done.code == 0, done.out[-6000:]
        return done

    def receipt(self, name: str, version: int | str, out: str = "run") -> dict[str, Any]:
        number = version if isinstance(version, str) else f"{version:06d}"
        return json.loads((self.path / out / "receipts" / number / f"{name}.json").read_bytes())

    def check(self, version: int) -> None:
        """Every replica has, bit by bit, what a full transfer of the version's step would have left there."""
        expected = self.world.full_transfer(version)
        for site in self.sites:
            assert read_all(self.world.replica(site).directory, self.world.site_layout()) == expected, site
