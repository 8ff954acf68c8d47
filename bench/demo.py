"""The main job on one machine: three versions of a made-up model, from 4 training shards to 2 engine shards.

Everything goes through the command line as a user would start it: encode under ``mpirun -n 4``; fetch, relay,
prepare and apply under ``mpirun -n 3``; one decision; and a full verification of every version.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dcr_mpi.units import bytes_text

from .launcher import Launcher, find

SITE = "rollout"
TRAIN_RANKS, SITE_RANKS = 4, 3


class Demo:
    """One run in a fresh directory."""

    def __init__(
        self, directory: Path, store: str, credentials: dict[str, str], endpoint: str | None, launcher: Launcher
    ) -> None:
        self.directory, self.launcher = directory, launcher
        self.environment = {**launcher.environment(), **credentials}
        self.config = directory / "dcr.yaml"
        self.config.write_text(_CONFIG.format(store=store, endpoint=endpoint or "null", site=SITE))

    def dcr(self, ranks: int, *arguments: str) -> dict[str, Any]:
        """Run one command and return its JSON; ``wall`` is added: seconds including the start of the ranks."""
        common = [] if arguments[0] == "synth" else ["--config", str(self.config)]
        command = self.launcher.command(ranks, *arguments, *common, "--json")
        begun = time.monotonic()
        done = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"demo: {' '.join(arguments)} ended with exit code {done.returncode}")
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return {**result, "wall": time.monotonic() - begun}

    def synth(self, step: int) -> str:
        return str(self.dcr(1, "synth", str(self.directory / "model"), "--step", str(step))["directory"])

    def start(self) -> None:
        """Version 0 at the trainer, and the site's replica from its anchor."""
        print("writing step 0 (about 57 million parameters, 4 shards) and registering it as version 0", flush=True)
        self.dcr(TRAIN_RANKS, "init", "--checkpoint", self.synth(0))
        print(f"creating the replica of site {SITE!r}: 2 shards, other splits, filled from the anchor", flush=True)
        self.dcr(SITE_RANKS, "init", "--site", SITE)

    def cycle(self, step: int) -> dict[str, Any]:
        """One version from the optimiser's step to a verified replica."""
        new = self.synth(step)
        encode = self.dcr(TRAIN_RANKS, "encode", new)
        refit = self.dcr(SITE_RANKS, "refit", "--site", SITE)
        commit = self.dcr(1, "commit")
        apply = self.dcr(SITE_RANKS, "apply", "--site", SITE)
        verify = self.dcr(SITE_RANKS, "verify", "--site", SITE)
        return {
            "version": encode["version"],
            "encode": encode,
            "refit": refit,
            "commit": commit,
            "apply": apply,
            "verify": verify,
        }


def row(cycle: dict[str, Any]) -> list[str]:
    """A line of the table."""
    encode = cycle["encode"]
    changed, elements = encode["detail"]["changed"], encode["detail"]["elements"]
    payload, dense = encode["bytes"]["payload"], encode["bytes"]["dense"]
    equal = encode["state"] == cycle["verify"]["state"] == cycle["apply"]["state"]
    return [
        str(cycle["version"]),
        f"{changed:,} ({changed / elements:.2%})",
        bytes_text(payload),
        f"1/{dense / payload:.0f}",
        f"{8 * payload / changed:.2f}",
        *(f"{cycle[act]['wall']:.1f}" for act in ("encode", "refit", "commit", "apply")),
        "yes" if equal else "NO",
    ]


_HEADS = [
    "version",
    "changed weights",
    "payload",
    "of full",
    "bits/changed",
    "encode s",
    "refit s",
    "commit s",
    "apply s",
    "digest equal",
]


def table(rows: list[list[str]]) -> str:
    """Aligned columns."""
    widths = [max(len(line[k]) for line in [_HEADS, *rows]) for k in range(len(_HEADS))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in [_HEADS, *rows]
    )


@contextmanager
def opened_store(kind: str, directory: Path) -> Iterator[tuple[str, str | None, dict[str, str]]]:
    """(store URL, endpoint, credentials) of a directory, or of an S3 server that lives as long as this block."""
    if kind == "dir":
        yield str(directory / "store"), None, {}
        return
    from .s3server import S3Server

    server = S3Server(directory / "s3").start()
    try:
        yield f"{server.url}/demo", server.endpoint, server.env()
    finally:
        server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["dir", "s3"], default="dir")
    parser.add_argument("--directory", type=Path, default=Path("demo-out"))
    parser.add_argument("--versions", type=int, default=3)
    args = parser.parse_args()
    directory = args.directory.resolve()
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    launcher = find()
    print(
        f"mpirun: {launcher.path} ({launcher.kind}); store: {args.store}; everything is written below {directory}",
        flush=True,
    )
    with opened_store(args.store, directory) as (url, endpoint, credentials):
        demo = Demo(directory, url, credentials, endpoint, launcher)
        demo.start()
        rows = []
        for step in range(1, args.versions + 1):
            print(f"step {step}: encode on {TRAIN_RANKS} ranks, refit and apply on {SITE_RANKS}", flush=True)
            rows.append(row(demo.cycle(step)))
    print(table(rows))
    print("seconds are wall-clock and include starting Python and the ranks; the store is", url)
    return 0 if all(line[-1] == "yes" for line in rows) else 1


_CONFIG = """\
policy: demo
store:
  url: {store}
  s3:
    endpoint: {endpoint}
trainer:
  state: trainer-state
  layout: model/layouts/trainer.json
  sites: [{site}]
sites:
  {site}:
    replica: replica
    layout: model/layouts/site.json
codec:
  part_mib: 16
  bucket_mib: 16
events:
  dir: events
"""


if __name__ == "__main__":
    sys.exit(main())
