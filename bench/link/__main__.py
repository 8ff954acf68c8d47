"""``python -m bench.link [--quick]``: refits over links of a known rate, beside the full transfer over the same link.

Writes ``bench/out/link.json``. The share of transport is the payload's time at the link's rate over the refit's time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench.codec.report import aligned
from bench.launcher import find
from bench.s3server import S3Server
from bench.shapes import SHAPES, of_size
from dcr_mpi.units import bytes_text

from . import planned
from .memory import files
from .net import Links, lacking
from .world import Refit, World

OUT = Path("bench/out/link.json")
_ENDINGS = signal.SIGTERM, signal.SIGHUP
_BY_JOBS = (0.03, "adam")
TRANSPORTS = ("s3", "direct")
_LAWS = ("adam", "uniform")
_COPIES, _LEAST_MIB = 6, 256  # of the model: two steps, the replica, a store, and room; of which a layer may have 200
_PER_GIB_S = 50.0  # what a full checkpoint of 1 GiB takes over the link


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.link", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="64 MiB and two refits, under a minute on two cores")
    parser.add_argument("--mib", type=int, help="MiB of the checkpoint: 1024, or 64 when quick")
    parser.add_argument("--shape", choices=SHAPES, help="of the matrices: as wide as those of real models of a GiB, "
                        "which is the default, or narrow, with many more tiles, the default when quick")  # fmt: skip
    parser.add_argument("--ranks", type=int, default=2, help="at the trainer, and at the site (default: 2)")
    parser.add_argument("--rate", type=float, help="MiB/s of a link (default: a full GiB takes 50 s)")
    parser.add_argument("--transport", choices=[*TRANSPORTS, "both"], default="both", help="how parts travel")
    parser.add_argument(
        "--laws", nargs="+", choices=_LAWS, default=_LAWS, help="how changes are spread (default: both)"
    )
    parser.add_argument(
        "--positions", nargs="+", choices=("plain", "class"), default=["plain"],
        help="how positions are coded: plain, which takes less of a core, or class, which takes fewer bytes",
    )  # fmt: skip
    parser.add_argument("--dir", type=Path, help="where all files lie (default: in memory, as the weights of an engine "
                        "are, in huge pages, if there is room; else where temporary files go)")  # fmt: skip
    parser.add_argument("--plan", action="store_true", help="calibrate too, and print what dcr plan says beside it")
    parser.add_argument("--repeat", type=int, default=1, help="refits of each kind, of which the shortest counts")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.dir is not None and not args.dir.is_dir():
        parser.error(f"--dir: found no directory {args.dir}, expected one with room for six copies of the model")
    for name in ("mib", "ranks", "rate", "repeat"):
        if (value := getattr(args, name)) is not None and not value > 0:
            parser.error(f"--{name}: found {value}, expected more than 0")
    if missing := lacking():
        sys.exit(f"no links can be made here: {missing}")
    for ending in _ENDINGS:
        signal.signal(ending, _stop)
    begun = time.monotonic()
    mib = args.mib or (64 if args.quick else 1024)
    shape = args.shape or ("narrow" if args.quick else "wide")
    rate = (args.rate or 1024 / _PER_GIB_S) * (1 << 20)
    cases = [_BY_JOBS] if args.quick else [(f, law) for law in args.laws for f in (0.01, 0.03, 0.05)]
    rows: list[dict[str, Any]] = []
    with files(max(mib, _LEAST_MIB) * _COPIES << 20, args.dir) as directory, Links(rate) as links:
        server = S3Server(directory / "s3", host=links.host)
        try:
            server.start()
            os.environ.update(server.env())
            world = World(directory, links, server, find(), of_size(SHAPES[shape], mib), args.ranks)
            world.begin()
            dense = world.catalog.sealed(0)[0].dense_bytes
            full = links.send("train", dense)
            tiles = len(world.catalog.contents.tiling(world.catalog.sealed(0)[0].tiling).tiles)
            launch = planned.launch_s(world) if args.plan else 0.0
            told = f"links of {bytes_text(int(rate))}/s; {bytes_text(dense)} on {world.filesystem}"
            print(f"{told}, full transfer {full:.1f} s", flush=True)

            steps = itertools.count(1)

            def go(fraction: float, law: str, staying: bool) -> dict[str, Any]:
                done = world.refit(next(steps), fraction, law, staying)
                told = f"{world.transport}, {law} {done.changed:.2%}: {done.seconds:.2f} s, {full / done.seconds:.1f}x"
                print(told, flush=True)
                found = row(done, full, rate, law, args.ranks, staying, world.transport)
                how = {"positions": world.positions, "files": world.filesystem, "shape": shape}
                return found | how

            def least(fraction: float, law: str, staying: bool) -> None:
                """The shortest of some refits counts. A calibration is of the machine as it is in those seconds, and a
                host may have other work the next minute: it is made anew for each kind, half-way."""
                found = [go(fraction, law, staying) for _ in range(args.repeat // 2)]
                speeds = planned.calibrate(world, law) if args.plan else None
                found += [go(fraction, law, staying) for _ in range(args.repeat - len(found))]
                shortest = min(found, key=lambda r: float(r["refit_s"]))
                rows.append(shortest | (planned.planned(shortest, speeds, tiles, launch) if speeds else {}))
                written(args.out, rows)  # whoever stops it keeps what it has

            transports = TRANSPORTS if args.transport == "both" else [args.transport]
            for world.transport, world.positions in itertools.product(transports, args.positions):
                least(*_BY_JOBS, staying=False)
                with world.staying():
                    go(*_BY_JOBS, staying=True)  # loads what it needs
                    for fraction, law in cases:
                        least(fraction, law, staying=True)
        finally:
            server.stop()
    print(aligned([_HEADS, *(line(r) for r in rows)]))
    if args.plan:
        print("\nmeasured, and planned from a calibration made beside them\n")
        print(aligned([planned.HEADS, *(planned.line(r) for r in rows)]))
    written(args.out, rows)
    print(f"{args.out} written; {time.monotonic() - begun:.0f} s in all")
    return 0


def _stop(number: int, _: object) -> None:
    """Links, server and mount go as they do at the end; who asks twice does not stop that."""
    for ending in _ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    sys.exit(128 + number)


def written(out: Path, rows: list[dict[str, Any]]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=1) + "\n")


def row(
    done: Refit, full: float, rate: float, law: str, ranks: int, staying: bool, transport: str = "s3"
) -> dict[str, Any]:
    """One run, for machines."""
    return {
        "transport": transport,
        "mode": "jobs that stay" if staying else "one job per act",
        "changed_fraction": done.changed,
        "law": law,
        "dense_bytes": done.dense,
        "payload_bytes": done.payload,
        "full_s": full,
        "refit_s": done.seconds,
        "speedup": full / done.seconds,
        "limit": done.dense / done.payload,
        "transport_share": done.payload / rate / done.seconds,
        "pause_s": done.pause,
        "wire_bytes_if": done.crossed,
        "fetched_bytes": done.fetched,
        "ranks": ranks,
        "link_bytes_s": rate,
        "stages_s": done.stages,
    }


_HEADS = [
    "by",
    "mode",
    "coded",
    "law",
    "changed",
    "payload",
    "full s",
    "refit s",
    "speed-up",
    "byte limit",
    "transport",
    "pause s",
    "crossed",
]


def line(r: dict[str, Any]) -> list[str]:
    """The same, for people."""
    return [
        r["transport"],
        r["mode"],
        r["positions"],
        r["law"],
        f"{r['changed_fraction']:.2%}",
        bytes_text(r["payload_bytes"]),
        f"{r['full_s']:.1f}",
        f"{r['refit_s']:.2f}",
        f"{r['speedup']:.1f}",
        f"{r['limit']:.0f}",
        f"{r['transport_share']:.0%}",
        f"{r['pause_s']:.2f}",
        " + ".join(bytes_text(size) for size in r["wire_bytes_if"].values()),
    ]


if __name__ == "__main__":
    sys.exit(main())
