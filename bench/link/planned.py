"""What ``dcr plan`` says of the refits that were just measured, from a calibration made here just before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from dcr_mpi.plan import MIB, Choice, Cost, Fixed, Scenario, Share, Speeds, changes, plan, read_speeds

from .world import BUCKET_MIB, PART_MIB, POLL_S, SITE, World

_SPREADS = (0.02,)  # of dcr_mpi.synth's matrices
_FRACTION = 0.03


def calibrate(world: World, law: str) -> tuple[Speeds, float]:
    """``dcr bench`` at the trainer's end of the link, on the disk of the replica; and the machine's pace meanwhile."""
    out = world.directory / f"calibration-{law}.json"
    where = ("--dir", str(world.directory), "--law", law, "--changed", str(_FRACTION), "--out", str(out))
    before = machine(world.ranks)
    world.dcr("train", 1, "bench", *where)
    return read_speeds(Path(out)), Machine.mean(before, machine(world.ranks)).pace


@dataclass(frozen=True)
class Machine:
    """``core_share``: what one busy process would get of a core; ``pace``: rounds of a loop in a second of a core."""

    core_share: float
    pace: float

    @staticmethod
    def mean(*seen: Machine) -> Machine:
        return Machine(fmean(m.core_share for m in seen), fmean(m.pace for m in seen))


def machine(ranks: int) -> Machine:
    """The machine as it is now, from what ``2 * ranks`` busy processes get together in half a second.

    Others on it, and on the host that it may share, come and go between a calibration and a refit, so this is asked
    before and after each.
    """
    spin = [
        subprocess.Popen([sys.executable, "-c", _SPIN], stdout=subprocess.PIPE, text=True) for _ in range(2 * ranks)
    ]
    told = [tuple(map(float, process.communicate()[0].split())) for process in spin]
    got, paces = sum(share for share, _ in told), [pace for _, pace in told]
    cores = os.cpu_count() or 1
    others = max(0.0, cores * len(spin) / got - len(spin))
    return Machine(min(1.0, cores / (1 + others)), fmean(paces))


# Passes over memory and steps of the interpreter, as ranks have both.
_SPIN = """
import time
import numpy as np
old, new = np.ones(8 << 20, np.uint16), np.zeros(8 << 20, np.uint16)
wall, cpu, rounds = time.monotonic(), time.process_time(), 0
while time.monotonic() < wall + 0.5:
    np.copyto(new, old)
    np.count_nonzero(new != old)
    sum(range(30000))
    rounds += 1
cpu = time.process_time() - cpu
print(cpu / (time.monotonic() - wall), rounds / cpu)
"""


def at_pace(speeds: Speeds, times: float) -> Speeds:
    """A calibration for a machine of which everything takes ``times`` as long."""

    def cost(found: Cost) -> Cost:
        return Cost(found.byte_s * times, found.change_s * times)

    def fixed(found: Fixed) -> Fixed:
        return Fixed(found.once_s * times, found.tile_s * times)

    names = ("sync_s", "put_s", "get_s", "put_byte_s", "get_byte_s", "start_s", "encode_tile_s", "prepare_tile_s")
    return replace(
        speeds,
        encode={how: cost(c) for how, c in speeds.encode.items()},
        prepare={how: cost(c) for how, c in speeds.prepare.items()},
        apply=cost(speeds.apply),
        disk_rate=speeds.disk_rate / times,
        encode_act=fixed(speeds.encode_act),
        refit_act=fixed(speeds.refit_act),
        apply_act=fixed(speeds.apply_act),
        **{name: getattr(speeds, name) * times for name in names},
    )


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


def planned(rows: Sequence[dict[str, Any]], speeds: dict[str, tuple[Speeds, float]], tiles: int, launch: float) -> None:
    """Add the plan's figures to each row: ``plan_s``, ``plan_error``, ``plan_pause_s``, ``plan_payload_bytes``,
    ``plan_stages_s``."""
    for row in rows:
        calibrated, pace = speeds[row["law"]]
        row["pace"] /= pace
        now = replace(at_pace(calibrated, 1 / row["pace"]), core_share=row["core_share"])
        found = plan(scenario(row, tiles, launch), now, Choice(row["positions"], PART_MIB[row["transport"]] * MIB, 2))
        row["plan_s"], row["plan_error"] = found.total_s, found.total_s / row["refit_s"] - 1
        row["plan_pause_s"], row["plan_payload_bytes"] = found.pause_s, found.payload_bytes
        row["plan_stages_s"] = {stage.name: stage.adds_s for stage in found.stages}


HEADS = [
    "by",
    "mode",
    "coded",
    "law",
    "changed",
    "share",
    "pace",
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
        f"{r['pace']:.0%}",
        f"{r['refit_s']:.2f} s",
        f"{r['plan_s']:.2f} s",
        f"{r['plan_error']:+.0%}",
        f"{r['pause_s']:.2f} s",
        f"{r['plan_pause_s']:.2f} s",
        f"{r['payload_bytes'] / 1e6:.2f}",
        f"{r['plan_payload_bytes'] / 1e6:.2f}",
    ]
