"""The tiny model's steps, as several rooms of tests use them."""

from __future__ import annotations

from pathlib import Path

from dcr_mpi.synth import TINY, site_layout, trainer_layout, write_checkpoint
from tests.world import scatter_full

TRAINER, SITE = trainer_layout(TINY), site_layout(TINY)


def write_steps(folder: Path, count: int) -> list[Path]:
    """Checkpoints of steps 0 to ``count - 1``."""
    for step in range(count):
        write_checkpoint(folder / f"{step}", TRAINER, step)
    return [folder / f"{step}" for step in range(count)]


def full(step: Path) -> dict[tuple[int, str], bytes]:
    """What a full transfer of a step leaves at the site."""
    return scatter_full(step, TRAINER, SITE)
