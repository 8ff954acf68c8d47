"""``python -m bench.growth [--quick]``: what acts cost against model size, ranks, change rate and sites.

Real commands under a real mpirun; processor seconds of all ranks (what others do on the machine distorts them least),
wall-clock, and the largest rank's peak of resident memory. Writes ``bench/out/growth.json`` and an SVG per axis. Each
axis' *exponent* is the slope of log(seconds) over log(what grows), least squares: 1 is linear.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.codec.report import aligned
from dcr_mpi.cli.svg import lines
from dcr_mpi.jsonable import dumps
from dcr_mpi.model import Layout
from dcr_mpi.synth import site_layout, trainer_layout, write_checkpoint

from .launcher import Launcher, find
from .shapes import NARROW, of_size

OUT = Path("bench/out/growth.json")
_ACTS = ("encode", "refit", "apply")
_AXES: dict[str, tuple[Sequence[float], Sequence[float]]] = {  # in full, and quickly
    "MiB": ((96, 192, 384, 768, 1536, 4096), (64, 128)),
    "ranks": ((1, 2, 4, 8), (1, 2)),
    "changed": ((0.0002, 0.001, 0.005, 0.02, 0.1, 0.2), (0.005, 0.05)),
    "sites": ((1, 2, 3, 4), (1, 2)),
}
_USUAL = {"MiB": 192, "ranks": 2, "changed": 0.03, "sites": 1}


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one act over all its ranks: seconds of processors, of the clock; peak MiB of its largest rank."""

    cpu_s: float
    wall_s: float
    peak_mib: float


class World:
    """A trainer, a store and sites in a directory."""

    def __init__(self, directory: Path, launcher: Launcher, mib: float, ranks: int, sites: int) -> None:
        self._directory, self._launcher, self._ranks = directory, launcher, ranks
        self._sites = [f"site-{k}" for k in range(sites)]
        shape = of_size(NARROW, mib)
        self._trainer = trainer_layout(shape, 4)
        (directory / "trainer.json").write_bytes(dumps(self._trainer))
        (directory / "site.json").write_bytes(dumps(site_layout(shape, 2)))
        replicas = "".join(f"  {s}: {{replica: replica-{s}, layout: site.json}}\n" for s in self._sites)
        (directory / "dcr.yaml").write_text(
            f"policy: growth\nstore: {{url: store}}\ntrainer: {{state: state, layout: trainer.json, "
            f"sites: [{', '.join(self._sites)}]}}\nsites:\n{replicas}codec: {{part_mib: 16, bucket_mib: 16}}\n"
        )

    def measure(self, changed: float) -> dict[str, Cost]:
        """One version's acts, of the first site."""
        step = [self._directory / f"step-{k}" for k in (0, 1)]
        for k, where in enumerate(step):
            # Apart: a process that is started begins with the peak of the one that starts it.
            made = get_context("spawn").Process(target=_write, args=(where, self._trainer, k, changed))
            made.start()
            made.join()
            if made.exitcode:
                raise SystemExit(f"step {k} was not written")
        self._dcr("init", "--checkpoint", str(step[0]), "--no-anchor")
        for site in self._sites:
            self._dcr("init", "--site", site, "--from", str(step[0]))
        out = {"encode": self._dcr("encode", str(step[1]))}
        refits = [self._dcr("refit", "--site", site) for site in self._sites]  # the version waits for all of them
        out["refit"] = refits[0]
        self._dcr("commit", ranks=1)
        out["apply"] = self._dcr("apply", "--site", self._sites[0])
        return out

    def _dcr(self, *arguments: str, ranks: int | None = None) -> Cost:
        config = ("--config", str(self._directory / "dcr.yaml"))
        command = self._launcher.command(ranks or self._ranks, *arguments, *config, "--json")
        begun = time.monotonic()
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(command, env=self._launcher.environment(), stdout=log, stderr=log)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                log.seek(0)
                raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}: {log.read()[-2000:]}")
        return Cost(used.ru_utime + used.ru_stime, time.monotonic() - begun, used.ru_maxrss / 1024)


def _write(where: Path, layout: Layout, step: int, changed: float) -> None:
    write_checkpoint(where, layout, step, changed=changed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two small points an axis, under a minute on two cores")
    parser.add_argument("--axes", nargs="+", choices=_AXES, default=list(_AXES), help="what is to grow (default: all)")
    parser.add_argument("--most-mib", type=float, default=math.inf, help="leave larger models out")
    parser.add_argument("--dir", type=Path, help="where the files are made (default: a temporary directory)")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    begun, launcher = time.monotonic(), find()
    rows: list[dict[str, Any]] = []
    for axis in args.axes:
        for value in _AXES[axis][args.quick]:
            at = {**_USUAL, **({"MiB": 64} if args.quick else {}), axis: value}
            if at["MiB"] > args.most_mib:
                continue
            with tempfile.TemporaryDirectory(prefix="dcr-growth-", dir=args.dir) as folder:
                world = World(Path(folder), launcher, at["MiB"], int(at["ranks"]), int(at["sites"]))
                found = world.measure(at["changed"])
            rows += [{"axis": axis, **at, "act": act, **dataclasses.asdict(cost)} for act, cost in found.items()]
            told = ", ".join(f"{act} {c.cpu_s:.1f} s {c.peak_mib:.0f} MiB" for act, c in found.items())
            print(f"{axis} {value:g}: {told}", flush=True)
    print(aligned(table(rows)))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(rows, indent=1) + "\n")
    for axis in args.axes:
        args.out.with_name(f"growth-{axis.lower()}.svg").write_text(plot(rows, axis))
    print(f"{args.out} written; {time.monotonic() - begun:.0f} s in all")
    return 0


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each axis and act: seconds and memory at its ends, and the exponent of the seconds."""
    out = [["axis", "act", "from", "to", "cpu s", "cpu s", "exponent", "peak MiB", "peak MiB"]]
    for axis, act in dict.fromkeys((r["axis"], r["act"]) for r in rows):
        mine = [r for r in rows if (r["axis"], r["act"]) == (axis, act)]
        first, last = mine[0], mine[-1]
        out.append([
            axis, act, f"{first[axis]:g}", f"{last[axis]:g}", f"{first['cpu_s']:.2f}", f"{last['cpu_s']:.2f}",
            f"{exponent([r[axis] for r in mine], [r['cpu_s'] for r in mine]):.2f}",
            f"{first['peak_mib']:.0f}", f"{last['peak_mib']:.0f}",
        ])  # fmt: skip
    return out


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x by least squares; 0 for a single point."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    spread = sum((v - mean_a) ** 2 for v in a)
    return sum((v - mean_a) * (w - mean_b) for v, w in zip(a, b, strict=True)) / spread if spread else 0.0


def plot(rows: Sequence[dict[str, Any]], axis: str) -> str:
    """Processor seconds of each act along an axis, as SVG."""
    mine = [r for r in rows if r["axis"] == axis]
    places = list(dict.fromkeys(r[axis] for r in mine))
    series = [(act, [r["cpu_s"] for r in mine if r["act"] == act]) for act in _ACTS]
    return lines(f"processor seconds by {axis}", [f"{p:g}" for p in places], series, lambda v: f"{v:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
