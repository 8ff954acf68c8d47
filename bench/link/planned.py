"""What ``dcr plan`` says of the refits that were just measured, from a calibration made here between them."""

from __future__ import annotations

import os
import time
from typing import Any

from dcr_mpi.plan import MIB, Choice, Scenario, Share, Speeds, changes, plan, read_speeds

from .world import BUCKET_MIB, PART_MIB, POLL_S, SITE, World

_SPREADS = (0.02,)  # of dcr_mpi.synth's matrices
_FRACTION = 0.03


def calibrate(world: World, law: str) -> Speeds:
    """``dcr bench`` at the trainer's end of the link, on the disk of the replica."""
    out = world.directory / f"calibration-{law}.json"
    where = ("--dir", str(world.directory), "--law", law, "--changed", str(_FRACTION), "--out", str(out))
    world.dcr("train", 1, "bench", *where)
    return read_speeds(out)


def launch_s(world: World) -> float:
    """What the launcher and MPI's start add to a job of the site: the shortest of three that do next to nothing, less
    as many processes with neither."""

    def job(ranks: int) -> float:
        begun = time.monotonic()
        world.dcr("rollout", ranks, "apply", "--site", SITE)
        return time.monotonic() - begun

    launched, alone = (min(job(ranks) for _ in range(3)) for ranks in (world.ranks, 1))
    return max(0.0, launched - alone * max(1.0, world.ranks / (os.cpu_count() or 1)))


def scenario(row: dict[str, Any], tiles: int, launch: float) -> Scenario:
    """What was measured, as the planner has to be told: trainer, site and store on one machine."""
    law = changes("bf16", row["changed_fraction"], row["law"], _SPREADS)
    return Scenario(
        (Share(law, row["dense_bytes"] / law.kind.word_bytes),),
        row["link_bytes_s"],
        row["link_bytes_s"],
        row["ranks"],
        row["ranks"],
        transport="direct" if row["transport"] == "direct" else "store",
        mode="staying" if row["mode"] == "jobs that stay" else "jobs",
        launch_s=launch,
        cores=os.cpu_count(),
        tiles=tiles,
        poll=POLL_S,
        bucket=BUCKET_MIB * MIB,
    )


def planned(row: dict[str, Any], speeds: Speeds, tiles: int, launch: float) -> dict[str, Any]:
    """The plan's figures beside those of a row: ``plan_s``, ``plan_error``, ``plan_pause_s``, ``plan_payload_bytes``,
    ``plan_stages_s``."""
    found = plan(scenario(row, tiles, launch), speeds, Choice(row["positions"], PART_MIB[row["transport"]] * MIB, 2))
    return {
        "core_share": speeds.core_share,
        "plan_s": found.total_s,
        "plan_error": found.total_s / row["refit_s"] - 1,
        "plan_pause_s": found.pause_s,
        "plan_payload_bytes": found.payload_bytes,
        "plan_stages_s": {stage.name: stage.adds_s for stage in found.stages},
    }


HEADS = [
    "by",
    "mode",
    "coded",
    "law",
    "changed",
    "share",
    "measured",
    "plan",
    "error",
    "pause",
    "plan",
    "payload MB",
    "plan",
]


def line(r: dict[str, Any]) -> list[str]:
    """Both, for people."""
    return [
        r["transport"],
        r["mode"],
        r["positions"],
        r["law"],
        f"{r['changed_fraction']:.2%}",
        f"{r['core_share']:.0%}",
        f"{r['refit_s']:.2f} s",
        f"{r['plan_s']:.2f} s",
        f"{r['plan_error']:+.0%}",
        f"{r['pause_s']:.2f} s",
        f"{r['plan_pause_s']:.2f} s",
        f"{r['payload_bytes'] / 1e6:.2f}",
        f"{r['plan_payload_bytes'] / 1e6:.2f}",
    ]
