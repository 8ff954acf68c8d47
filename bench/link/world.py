"""What is moved over the links: a made-up checkpoint, its next versions, a replica, and the commands between them."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.launcher import Launcher
from bench.s3server import S3Server
from dcr_mpi.acts.replica import Replica
from dcr_mpi.catalog import Catalog
from dcr_mpi.jsonable import dumps
from dcr_mpi.mounts import mount_of
from dcr_mpi.store import S3Options, open_store
from dcr_mpi.synth import Masters, Shape, site_layout, trainer_layout, write_checkpoint

from .net import Links

SITE = "rollout"
PART_MIB = {"s3": 32, "direct": 16}  # as dcr plan says: by the store each part costs requests
BUCKET_MIB, POLL_S = 4, (0.01, 0.05)  # a bucket that a core's share of the cache holds
_START_S, _END_S, _SETTLED_S = 10.0, 60.0, 1.0  # for jobs that stay to come up, and to have looked; not measured


@dataclass(frozen=True)
class Refit:
    """One version's way over the link, in seconds from the moment that the trainer's checkpoint is there."""

    seconds: float
    pause: float
    payload: int
    changed: float
    dense: int
    crossed: dict[str, int]
    fetched: dict[str, int]
    stages: dict[str, float]


class World:
    """A trainer, a store and a site; every command runs at its side of the links.

    ``transport``: parts go by the store ("s3"), or straight from the trainer's ranks to the site's ("direct"), and then
    not to the store at all, so that what is counted on the links is the refit alone. ``positions``: how they are coded.
    """

    transport, positions = "s3", "plain"

    def __init__(self, directory: Path, links: Links, server: S3Server, launcher: Launcher, shape: Shape, ranks: int):
        self.directory, self.links, self.launcher, self.ranks = directory, links, launcher, ranks
        self._env = {**launcher.environment(), **server.env(), "NO_PROXY": "*"}
        for name in ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"):
            self._env.pop(name, None)
        self.trainer, self.site = trainer_layout(shape, 4), site_layout(shape, 2)
        (directory / "trainer.json").write_bytes(dumps(self.trainer))
        (directory / "site.json").write_bytes(dumps(self.site))
        self.catalog = Catalog(open_store(f"{server.url}/link", _options(server)), "link")
        self._masters = Masters()
        self._jobs: list[subprocess.Popen[bytes]] = []  # that stay
        self._acts: list[subprocess.Popen[str]] = []
        sizes = {"bucket": BUCKET_MIB, "poll": list(POLL_S)}
        config = _CONFIG.format(url=f"{server.url}/link", endpoint=server.endpoint, site=SITE, **sizes)
        (directory / "dcr.yaml").write_text(config)

    @property
    def filesystem(self) -> str:
        """The kind that the files are on: "tmpfs" where they are in memory, with its huge pages, or "ext4", ..."""
        mount = mount_of(self.directory)
        return mount.kind + (f", huge={mount.huge}" if mount.huge else "")

    @property
    def _ways(self) -> list[str]:
        keys = {"codec.positions": self.positions, "codec.part_mib": PART_MIB[self.transport]}
        if self.transport == "direct":
            keys |= {"relay.transport": "direct", "direct.store": "never", "direct.listen": self.links.address("train")}
        return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]

    def begin(self) -> None:
        """Version 0, and the replica, filled from the trainer's files: nothing of that goes over the links."""
        write_checkpoint(self.directory / "step-0", self.trainer, 0, masters=self._masters)
        self.dcr("train", self.ranks, "init", "--checkpoint", str(self.directory / "step-0"), "--no-anchor")
        self.dcr("rollout", self.ranks, "init", "--site", SITE, "--from", str(self.directory / "step-0"))

    def dcr(self, side: str, ranks: int, *arguments: str) -> dict[str, Any]:
        ways = [] if arguments[0] == "bench" else self._ways  # which looks at the machine, whatever the configuration
        config = ["--config", str(self.directory / "dcr.yaml"), *ways]
        command = self.launcher.command(ranks, *arguments, *config, "--json")
        with subprocess.Popen(
            [*self.links.inside(side), *command], env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        ) as process:  # fmt: skip
            self._acts.append(process)
            try:
                out, error = process.communicate()
            except BaseException:
                process.terminate()
                raise
            finally:
                self._acts.remove(process)
        if process.returncode:
            raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}: {error[-2000:]}")
        result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return result

    def refit(self, step: int, fraction: float, law: str, staying: bool) -> Refit:
        """Make a step; from the moment that it is there, bring it to the site, and wait until it is applied there.

        ``staying``: by jobs that run already; else by one job per act, all started at that moment.
        """
        hidden, new = self.directory / "next", self.directory / f"step-{step}"
        write_checkpoint(hidden, self.trainer, step, changed=fraction, law=law, masters=self._masters)
        before, begun = self.links.crossed(), time.monotonic()
        hidden.rename(new)
        if staying:
            self._wait_for(step)
        else:
            self._by_jobs(step, new)
        seconds, after = time.monotonic() - begun, self.links.crossed()
        sealed = self.catalog.sealed(step)[0]
        verified = self.dcr("rollout", self.ranks, "verify", "--site", SITE)
        if verified["state"] != sealed.state:
            raise SystemExit(f"step {step}: the replica is {verified['state'][:16]}, expected {sealed.state[:16]}")
        shutil.rmtree(self.directory / f"step-{step - 1}")
        return Refit(
            seconds,
            self._pause(),
            sealed.payload_bytes,
            sealed.changed / sealed.elements,
            sealed.dense_bytes,
            {side: after[side] - before[side] for side in after},
            self._fetched(step),
            {f"{act}.{name}": s for act in ("encode", "refit", "apply") for name, s in self._spent(act).items()},
        )

    def _fetched(self, version: int) -> dict[str, int]:
        """Bytes of parts by the way they came, as the site's receipt has them."""
        found = self.catalog.receipt(version, "prepared", SITE)
        assert found is not None
        return dict(found[0].detail.get("fetched", {}))

    def _by_jobs(self, version: int, new: Path) -> None:
        decide = ("commit", "--version", str(version), "--wait", "600")
        with ThreadPoolExecutor(3) as pool:
            try:
                prepared = pool.submit(self.dcr, "rollout", self.ranks, "refit", "--site", SITE, "--wait", "600")
                encoded = pool.submit(self.dcr, "train", self.ranks, "encode", str(new))
                if self.transport == "s3":
                    encoded.result()  # else it ends when the site has prepared
                decided = pool.submit(self.dcr, "train", 1, *decide)
                prepared.result()
                self.dcr("rollout", self.ranks, "apply", "--site", SITE, "--wait", "600")
                decided.result()
                encoded.result()
            except BaseException:  # the others would wait for what does not come
                for process in tuple(self._acts):
                    process.terminate()
                raise

    def _wait_for(self, version: int) -> None:
        """Look at the record only when there is another one: who measures shares the cores with what is measured."""
        replica, seen = Replica(self.directory / "replica", SITE), (0, 0)
        while True:
            stat = replica.record_path.stat()
            if (stat.st_ino, stat.st_mtime_ns) != seen:
                seen, record = (stat.st_ino, stat.st_mtime_ns), replica.need()
                if record.version == version and record.applying is None:
                    return
            for job in self._jobs:
                if job.poll() is not None:
                    raise SystemExit(f"a job that was to stay ended with {job.returncode}: {self.directory}/*.log")
            time.sleep(0.005)

    def _ends(self, act: str) -> dict[int, dict[str, Any]]:
        """The last line of each rank's last run of an act, by rank."""
        out: dict[int, dict[str, Any]] = {}
        for log in self.directory.glob(f"events/{act}-rank*.jsonl"):
            ends = [found for line in log.read_text().splitlines() if (found := json.loads(line))["event"] == "end"]
            out |= {end["rank"]: end for end in ends[-1:]}
        return out

    def _spent(self, act: str) -> dict[str, float]:
        """Seconds per stage of rank 0 in the last run of an act."""
        return dict(self._ends(act).get(0, {}).get("seconds", {}))

    def _pause(self) -> float:
        """Seconds of the last apply, of the rank that took longest: between the hooks around it, an engine waits."""
        return max((float(end["wall"]) for end in self._ends("apply").values()), default=0.0)

    def _begun(self, act: str) -> int:
        """How often rank 0 has begun an act."""
        log = self.directory / f"events/{act}-rank0000.jsonl"
        return log.read_text().count('"event":"begin"') if log.exists() else 0

    @contextmanager
    def staying(self) -> Iterator[None]:
        """A publisher and a follower that run until the block ends."""
        asked = {
            "train": ("publish", str(self.directory / "step-*")),
            "rollout": ("follow", "--site", SITE),
        }
        begun = [self._begun(arguments[0]) for arguments in asked.values()]
        try:
            for side, arguments in asked.items():
                with open(self.directory / f"{side}.log", "wb") as log:
                    config = ["--config", str(self.directory / "dcr.yaml"), *self._ways]
                    command = self.launcher.command(self.ranks, *arguments, *config)
                    self._jobs.append(
                        subprocess.Popen([*self.links.inside(side), *command], env=self._env, stdout=log, stderr=log)
                    )
            give_up = time.monotonic() + _START_S
            while any(self._begun(a[0]) == b for a, b in zip(asked.values(), begun, strict=True)):
                if time.monotonic() > give_up:
                    break
                time.sleep(0.1)
            time.sleep(_SETTLED_S)
            yield
        finally:
            for job in self._jobs:
                job.terminate()
            for job in self._jobs:
                try:
                    job.wait(_END_S)
                except subprocess.TimeoutExpired:
                    job.kill()
            self._jobs.clear()


def _options(server: S3Server) -> S3Options:
    return S3Options(endpoint=server.endpoint, plain_http=True)


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
  bucket_mib: {bucket}
commit:
  poll_s: {poll}
events:
  dir: events
"""
