"""Typing commands: without the ``--json`` that :class:`tests.world.World` adds; and looking at what they left."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

from dcr_mpi.cli import main
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


def here(world: World, *arguments: str) -> Done:
    """The same in this process, where a command starts at once: for many small ones, and what a test builds on."""
    out, error = io.StringIO(), io.StringIO()
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), contextlib.chdir(world.path):
            code = main(arguments)
    except SystemExit as leaving:  # argparse
        code = int(leaving.code or 0)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    return Done(code, out.getvalue(), error.getvalue())


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
