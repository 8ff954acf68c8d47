"""``dcr plan``: options in, a plan or the paper's cases out."""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import Any

from ..dtypes import dtype
from ..errors import UsageError
from ..plan import (
    DEFAULTS,
    DEGREES,
    MIB,
    PARTS,
    Plan,
    Positions,
    Scenario,
    Share,
    Speeds,
    best,
    changes,
    paper_rows,
    read_speeds,
)

_PARAMETERS = 1e9
_RANKS_PER_NODE, _BYTES_PER_RANK = 8, 4e9  # as the paper's cases have it
_BYTES_PER_TILE, _TILES = 8 * MIB, 8000
_LATENCY_S = 0.03
_OF_THE_PAPER = ("paper", "law", "calibration", "json")
_POSITIONS: tuple[Positions, ...] = ("class", "plain")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The plan as a plain result."""
    speeds = DEFAULTS if args.calibration is None else read_speeds(args.calibration)
    if args.paper:
        told = [name for name, value in args.untold.items() if getattr(args, name) != value]
        if beside := [name for name in told if name not in _OF_THE_PAPER]:
            raise UsageError(
                "--paper",
                found=f"--{beside[0].replace('_', '-').replace('mix', 'dtype')} beside it",
                expected="--law, --calibration and --json at most",
                remedy="leave one out: its cases are what the paper tells of them",
            )
        return {"act": "paper", "calibration": speeds.source, "rows": paper_rows(speeds, args.law)}
    if args.disk is not None:
        speeds = dataclasses.replace(speeds, disk_rate=args.disk, source=f"{speeds.source}; disk as given")
    scenario = scenario_of(args, _LATENCY_S if speeds.put_rate is None else 0.0)
    positions = _POSITIONS if args.positions is None else (args.positions,)
    parts = PARTS if args.part_mib is None else (args.part_mib * MIB,)
    degrees = DEGREES if args.degree is None else (args.degree,)
    found = best(scenario, speeds, positions, parts, degrees)
    return {
        "act": "plan",
        "calibration": speeds.source + _far(args, speeds),
        "law": args.law,
        "changed_fraction": found.changed / sum(s.words for s in scenario.shares),
        "transport": args.transport,
        "mode": args.mode,
        "sites": args.sites,
        "ranks": [scenario.trainer_ranks, scenario.site_ranks],
        "link_bytes_s": scenario.link,
        **plan_row(found),
    }


def _far(args: argparse.Namespace, speeds: Speeds) -> str:
    """A word of warning where a calibration is of other changes than those planned."""
    measured = f"{speeds.law} at {speeds.fraction:.3g}"
    near = speeds.fraction / 4 <= args.changed <= speeds.fraction * 4
    return "" if near and speeds.law == args.law else f" (measured with {measured} changed: measure anew for these)"


def plan_row(found: Plan) -> dict[str, Any]:
    """A plan for machines: seconds and bytes."""
    choice = found.choice
    return {
        "choice": {"positions": choice.positions, "part_mib": choice.part / MIB, "degree": choice.degree},
        "parts": found.parts,
        "dense_bytes": found.dense_bytes,
        "payload_bytes": found.payload_bytes,
        "bits_per_change": 8 * found.payload_bytes / found.changed,
        "stages": [dataclasses.asdict(stage) for stage in found.stages],
        "total_s": found.total_s,
        "pause_s": found.pause_s,
        "bottleneck": found.bottleneck,
        "transport_share": found.transport_share,
        "full_s": found.full_s,
        "speedup": found.speedup,
    }


def scenario_of(args: argparse.Namespace, latency: float) -> Scenario:
    """What the options describe, with ``latency`` where they name none.

    Raises
    ------
    UsageError
        Options that contradict each other.
    """
    if args.parameters is not None and args.size is not None:
        raise UsageError("plan", found="--parameters with --size", expected="one of them", remedy="leave one out")
    kinds = args.mix or [("bf16", 1.0, None)]
    whole = sum(share for _, share, _ in kinds)
    if abs(whole - 1) > 1e-6:
        raise UsageError(
            "--dtype", found=f"shares that add up to {whole:g}", expected="1", remedy="as in bf16=0.99 and f32=0.01"
        )
    each = sum(share * dtype(name).itemsize for name, share, _ in kinds)
    count = args.size / each if args.size is not None else args.parameters or _PARAMETERS
    shares = tuple(
        Share(changes(name, fraction or args.changed, args.law), count * share * dtype(name).words)
        for name, share, fraction in kinds
    )
    ranks = max(1, round(count * each / _BYTES_PER_RANK))
    trainer_ranks = args.trainer_ranks or ranks
    site_ranks = args.site_ranks or max(ranks, args.replicas, args.site_nodes or 1)
    if args.replicas > site_ranks:
        raise UsageError(
            "--replicas",
            found=f"{args.replicas} copies on {site_ranks} ranks",
            expected="a rank for each copy at least",
            remedy="give more --site-ranks",
        )
    nodes = 1 if args.cores is not None else math.ceil(site_ranks / _RANKS_PER_NODE)
    if args.site_nodes is not None and args.site_nodes > (1 if args.cores is not None else site_ranks):
        raise UsageError(
            "--site-nodes",
            found=f"{args.site_nodes} with {'--cores' if args.cores is not None else f'{site_ranks} ranks'}",
            expected="one machine" if args.cores is not None else "a rank on each at least",
            remedy="leave one out" if args.cores is not None else "give more --site-ranks",
        )
    shortest, longest = args.poll
    if shortest > longest:
        raise UsageError("--poll", found=f"{shortest:g} {longest:g}", expected="the shorter pause first")
    if args.launch and args.mode != "jobs":
        raise UsageError(
            "--launch", found="a job that stays", expected="--mode jobs", remedy="jobs that stay are started once"
        )
    return Scenario(
        shares,
        args.link,
        args.site_link or args.link,
        trainer_ranks,
        site_ranks,
        args.sites,
        args.replicas,
        args.site_nodes or nodes,
        args.cluster_link,
        latency=latency if args.latency is None else args.latency,
        transport=args.transport,
        mode=args.mode,
        launch_s=args.launch,
        cores=args.cores,
        tiles=args.tiles or min(_TILES, math.ceil(count * each / _BYTES_PER_TILE)),
        window=args.window,
        poll=(shortest, longest),
    )
