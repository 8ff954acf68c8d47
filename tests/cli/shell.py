"""Typing commands: without the ``--json`` that :class:`tests.world.World` adds; and looking at what they left."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.world import Done, World


def dcr(world: World, *arguments: str, cwd: Path | None = None) -> Done:
    """One rank, typed in the world's directory, where ``dcr.yaml`` is found by itself."""
    return finish(
        subprocess.Popen(
            [sys.executable, "-m", "dcr_mpi", *arguments],
            env=world.environment(),
            cwd=cwd or world.path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    )


def finish(process: subprocess.Popen[str]) -> Done:
    out, error = process.communicate(timeout=60)
    return Done(process.returncode, out, error)


def everything(world: World) -> dict[str, str]:
    """Digest of every file below a world, directories too; without what tells of failures as well: logs and leases."""
    out: dict[str, str] = {}
    for folder, inner, files in os.walk(world.path):
        inner[:] = [d for d in inner if d != "events"]
        here = Path(folder)
        out |= {str((here / d).relative_to(world.path)): "" for d in inner}
        for name in (n for n in files if not n.startswith("lease-")):
            path = here / name
            out[str(path.relative_to(world.path))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return out


def flip(path: Path, at: int) -> None:
    """Turn one bit of a file, as a failing medium would."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
