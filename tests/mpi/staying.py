"""Jobs that stay, in the background, and the checkpoints that appear for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

from dcr_mpi.synth import TINY, trainer_layout
from tests.world import World, scatter_full


class Staying:
    """A command that stays, in the background."""

    def __init__(self, world: World, ranks: int, *arguments: str) -> None:
        self.log = world.path / f"{arguments[0]}-{len(list(world.path.glob('*.log')))}.log"
        self.out = self.log.with_suffix(".out")  # apart: a launcher passes on both as they come
        with open(self.log, "wb") as log, open(self.out, "wb") as out:
            self.process = subprocess.Popen(
                [*world.command(ranks, *arguments), "--set", "commit.wait_s=300"],
                env=world.environment(),
                cwd=world.path,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )

    def end(self, within_s: float = 200.0) -> int:
        return self.process.wait(within_s)

    def result(self) -> dict[str, Any]:
        assert self.end() == 0, self.log.read_text()[-3000:]
        found: dict[str, Any] = json.loads(self.out.read_text().strip().splitlines()[-1])
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def appear(world: World, step: int) -> None:
    """Write a checkpoint, and let it appear by a rename."""
    made = world.synth(step)
    (world.path / "run").mkdir(exist_ok=True)
    made.rename(world.path / "run" / f"step-{step}")


def full_transfer_of(world: World, step: int) -> dict[tuple[int, str], bytes]:
    """What a full transfer of a checkpoint that appeared would leave at a site."""
    return scatter_full(world.path / f"run/step-{step}", trainer_layout(TINY), world.site_layout())
