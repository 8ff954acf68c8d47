"""``python -m bench.scaling [--quick]``: a refit's stream simulated, up to 1,024 ranks and 10 sites.

Writes ``bench/out/scaling.json`` and ``bench/out/scaling.svg``. Needs simpy, and an mpirun for the comparison with a
real relay.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.codec.report import aligned
from bench.launcher import find_all
from dcr_mpi.cli.svg import lines
from dcr_mpi.units import bytes_text, seconds_text

from .formula import NOTHING_BUT_LINKS, Case, case
from .real import compare
from .simulate import Model, shards, simulate

OUT = Path("bench/out/scaling.json")
_RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def cases(quick: bool) -> Iterator[tuple[str, Case]]:
    """What is simulated: by ranks, by sites, by degree; ``parts`` grow with the ranks where the model does."""
    ranks = (1, 4, 16, 64, 256) if quick else _RANKS
    for n in ranks:
        yield "one model, more ranks", case(n, 1, 1, 2, 256)
    for n in ranks:
        yield "64 MiB a rank", case(n, 1, 1, 2, 4 * n)
    for n in ranks:
        yield "64 MiB a rank, 8 parts in hand", case(n, 1, 1, 2, 4 * n, window=8)
    for n in ranks:
        yield "a replica on every rank", case(n, 1, n, 2, 64)
    for sites in (1, 10) if quick else (1, 2, 5, 10):
        yield "more sites", case(64 if quick else 1024, sites, 1, 2, 256)
    for degree in (1, 2, 4) if quick else (1, 2, 3, 4, 8, 16):
        n = 64 if quick else 256
        yield "a tree that holds it up", case(n, 1, n, degree, 2 * n, link=2.5e9, speeds=NOTHING_BUT_LINKS, window=16)


def row(group: str, here: Case) -> dict[str, Any]:
    """One simulation, and the formula's answer."""
    s, model = here.scenario, here.model()
    begun = time.monotonic()
    found = simulate(model)
    payload = sum(model.sizes)
    sent = [rank.sent for site in found.tallies for rank in site]
    return {
        "group": group, "ranks": s.site_ranks, "sites": s.sites, "replicas": s.replicas, "degree": here.choice.degree,
        "window": s.window,
        "parts": here.parts, "dense_bytes": s.dense_bytes, "payload_bytes": payload,
        "simulated_s": found.seconds, "formula_s": here.seconds(),
        "wide_bytes": found.wide, "crossings": max(found.wide) / payload,
        "link_busy": found.link_busy, "port_busy": found.port_busy,
        "most_sent": max(sent), "mean_sent": sum(sent) / len(sent), "took_s": time.monotonic() - begun,
    }  # fmt: skip


_HEADS = [
    "ranks", "sites", "replicas", "degree", "parts", "payload", "simulated", "formula", "difference", "link busy",
    "busiest port", "crossed",
]  # fmt: skip


def line(r: dict[str, Any]) -> list[str]:
    """The same, for people."""
    return [
        *(str(r[key]) for key in ("ranks", "sites", "replicas", "degree", "parts")),
        bytes_text(r["payload_bytes"]),
        f"{r['simulated_s']:.2f} s",
        f"{r['formula_s']:.2f} s",
        f"{r['formula_s'] / r['simulated_s'] - 1:+.0%}",
        f"{r['link_busy']:.0%}",
        f"{r['port_busy']:.0%}",
        f"{r['crossings']:.2f}",
    ]


def against_the_real_one() -> list[dict[str, Any]]:
    """Bytes and transfers of every rank, simulated and under mpirun."""
    launchers, rows = find_all(), []
    for ranks, replicas, degree in (2, 1, 1), (3, 3, 2), (4, 2, 2), (6, 6, 3):
        sizes = [1000 + 7919 * k % 300_000 for k in range(24)]
        model = Model(sizes, shards(24, ranks, replicas), 1, ranks, 1, degree, 4, 0.0, 0.0, 1e9, 1e9, 1e9)
        simulated, real = compare(model, launchers[0])
        rows.append({
            "ranks": ranks, "replicas": replicas, "degree": degree, "same": simulated == real,
            "fetched": sum(r["fetched"] for r in real), "sent": sum(r["sent"] for r in real), "payload": sum(sizes),
        })  # fmt: skip
    return rows


def plot(rows: list[dict[str, Any]]) -> str:
    """Seconds against ranks, a line for each group that has ranks on its axis, simulated and by the formula."""
    groups = ["one model, more ranks", "64 MiB a rank, 8 parts in hand", "a replica on every rank"]
    places = sorted({r["ranks"] for r in rows if r["group"] in groups})
    series = []
    for group in groups:
        for name, key in (("simulated", "simulated_s"), ("formula", "formula_s")):
            by = {r["ranks"]: r[key] for r in rows if r["group"] == group}
            series.append((f"{group}, {name}", [by.get(n) for n in places]))
    return lines("Seconds of a refit's stream by ranks", [str(n) for n in places], series, seconds_text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="up to 256 ranks, under a minute on two cores")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    begun, rows = time.monotonic(), []
    shown = ""
    for group, here in cases(args.quick):
        rows.append(row(group, here))
        told = aligned([_HEADS, line(rows[-1])])
        print(told.splitlines()[-1] if group == shown else f"\n{group}\n{told}", flush=True)
        shown = group
    real = against_the_real_one() if find_all() else []
    told = ", ".join(f"{r['ranks']} ranks {'the same' if r['same'] else 'DIFFERENT'}" for r in real)
    print(f"\nreal relays under mpirun, bytes and transfers of every rank: {told or 'no mpirun here'}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"rows": rows, "real": real}, indent=1) + "\n")
    args.out.with_suffix(".svg").write_text(plot(rows))
    print(f"{args.out} and {args.out.with_suffix('.svg')} written; {time.monotonic() - begun:.0f} s in all")
    return 0 if all(r["same"] for r in real) else 1


if __name__ == "__main__":
    sys.exit(main())
