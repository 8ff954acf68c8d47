"""What is moved over the links: a made-up checkpoint, its next versions, a replica, and the commands between them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.launcher import Launcher
from bench.s3server import S3Server
from dcr_mpi.jsonable import dumps
from dcr_mpi.synth import Shape, site_layout, trainer_layout, write_checkpoint

from .net import Links

SITE = "rollout"
_LAYER_BYTES = 21 << 20  # of the default shape, without its embedding of 33 MB


@dataclass(frozen=True)
class Refit:
    """One version's way over the link, in seconds from the start of all commands to the end of the last."""

    seconds: float
    pause: float
    payload: int
    changed: float
    dense: int
    crossed: dict[str, int]
    stages: dict[str, float]


class World:
    """A trainer, a store and a site; every command runs at its side of the links."""

    def __init__(self, directory: Path, links: Links, server: S3Server, launcher: Launcher, mib: int, ranks: int):
        self.directory, self.links, self.launcher, self.ranks = directory, links, launcher, ranks
        self._env = {**launcher.environment(), **server.env(), "NO_PROXY": "*"}
        for name in ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"):
            self._env.pop(name, None)
        shape = dataclasses.replace(Shape(), layers=max(1, ((mib << 20) - (33 << 20)) // _LAYER_BYTES))
        self.trainer, self.site = trainer_layout(shape, 4), site_layout(shape, 2)
        (directory / "trainer.json").write_bytes(dumps(self.trainer))
        (directory / "site.json").write_bytes(dumps(self.site))
        config = _CONFIG.format(url=f"{server.url}/link", endpoint=server.endpoint, site=SITE)
        (directory / "dcr.yaml").write_text(config)

    def begin(self) -> None:
        """Version 0, and the replica, filled from the trainer's files: nothing of that goes over the links."""
        write_checkpoint(self.directory / "step-0", self.trainer, 0)
        self.dcr("train", self.ranks, "init", "--checkpoint", str(self.directory / "step-0"), "--no-anchor")
        self.dcr("rollout", self.ranks, "init", "--site", SITE, "--from", str(self.directory / "step-0"))

    def dcr(self, side: str, ranks: int, *arguments: str) -> dict[str, Any]:
        command = self.launcher.command(ranks, *arguments, "--config", str(self.directory / "dcr.yaml"), "--json")
        done = subprocess.run(
            [*self.links.inside(side), *command], env=self._env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return result

    def refit(self, step: int, base: int, fraction: float, law: str) -> Refit:
        """Make a step, start all acts at once, and wait until the site has applied it."""
        new = self.directory / f"step-{step}"
        write_checkpoint(new, self.trainer, step, changed=fraction, law=law)
        before, begun = self.links.crossed(), time.monotonic()
        with ThreadPoolExecutor(3) as pool:
            prepared = pool.submit(self.dcr, "rollout", self.ranks, "refit", "--site", SITE, "--wait", "600")
            encoded = pool.submit(self.dcr, "train", self.ranks, "encode", str(new))
            sealed = encoded.result()
            decided = pool.submit(self.dcr, "train", 1, "commit", "--wait", "600")
            ready = prepared.result()
            applied = self.dcr("rollout", self.ranks, "apply", "--site", SITE, "--wait", "600")
            decided.result()
        seconds = time.monotonic() - begun
        after = self.links.crossed()
        verified = self.dcr("rollout", self.ranks, "verify", "--site", SITE)
        if verified["state"] != sealed["state"]:
            raise SystemExit(f"step {step}: the replica is {verified['state'][:16]}, expected {sealed['state'][:16]}")
        shutil.rmtree(self.directory / f"step-{base}")
        stages = {f"{act}.{k}": v for act, r in (("encode", sealed), ("refit", ready)) for k, v in r["seconds"].items()}
        return Refit(
            seconds,
            applied["seconds"].get("write", 0.0),
            sealed["bytes"]["payload"],
            sealed["detail"]["changed"] / sealed["detail"]["elements"],
            sealed["bytes"]["dense"],
            {side: after[side] - before[side] for side in after},
            stages,
        )


_CONFIG = """\
policy: link
store:
  url: {url}
  s3:
    endpoint: {endpoint}
    plain_http: true
trainer:
  state: trainer-state
  layout: trainer.json
  sites: [{site}]
sites:
  {site}:
    replica: replica
    layout: site.json
codec:
  part_mib: 16
  bucket_mib: 16
commit:
  poll_s: [0.02, 0.2]
"""
