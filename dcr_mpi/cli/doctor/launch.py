"""Whether ranks can find each other: the MPI library, the launcher that belongs to it, and the job itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ...comm import Library, library
from ...errors import LaunchError
from .finding import Finding, fail, ok, warn

_PROBE = (
    "from dcr_mpi import comm\n"
    "ranks = comm.start(30.0, expected=2, patience_s=30.0)\n"
    "raise SystemExit(comm.run(ranks, lambda: ranks.barrier('a first word') or 0))\n"
)
_PROBE_S = 90.0
_BUILD = "build mpi4py against the MPI of that launcher, or start with the other's: docs/installing.md"


def mpi_library() -> Iterator[Finding]:
    """What mpi4py loads."""
    from importlib.metadata import version

    found = library()
    built = "for any MPI (a wheel)" if "MPI." + _short(found) in Path(found.module).name else "against this MPI"
    yield ok("mpi library", f"{found.version} ({found.path or 'linked in'}); mpi4py {version('mpi4py')}, built {built}")


def launcher(path: str | None = None) -> Iterator[Finding]:
    """Whether the mpirun that a user would type belongs to the library, and does start ranks that see each other.

    Not asked for inside a job: a launcher does not start another.
    """
    mpirun = path or shutil.which("mpirun") or shutil.which("mpiexec")
    if mpirun is None:
        yield warn("launcher", "no mpirun on PATH", "one, or a scheduler's own (srun)",
                   "activate the environment that has it, load the site's module, or start with srun and see that "
                   "`srun -n 2 dcr doctor` counts 2 ranks")  # fmt: skip
        return
    mine = library()
    shown = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60, check=False)
    theirs = kind_of_launcher(shown.stdout + shown.stderr)
    if mine.kind and theirs and mine.kind != theirs:
        raise LaunchError(
            f"launcher {mpirun}",
            found=f"the mpirun of {theirs}: every rank would believe to be alone",
            expected=f"that of {mine.kind}, which mpi4py loads",
            remedy=_BUILD,
        )
    try:
        done = subprocess.run(
            [mpirun, "-n", "2", sys.executable, "-c", _PROBE],
            capture_output=True, text=True, timeout=_PROBE_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{mpirun} -n 2", found=f"no end after {_PROBE_S:g} s", expected="2 ranks that meet",
                          remedy="look at the network settings of the MPI; " + _BUILD) from None  # fmt: skip
    if done.returncode:
        raise LaunchError(
            f"{mpirun} -n 2",
            found=f"exit code {done.returncode}: {_telling(done.stderr + done.stdout)}",
            expected="2 ranks that meet",
            remedy="start with the mpirun of the library that mpi4py loads; Open MPI as root wants "
            "OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        )
    yield ok("launcher", f"{mpirun} ({theirs or 'unknown kind'}); it started 2 ranks that met")


def kind_of_launcher(text: str) -> str:
    """Whose mpirun says this of itself; "" for another."""
    if "Open MPI" in text or "OpenRTE" in text or "PRRTE" in text:
        return "Open MPI"
    return "MPICH" if "HYDRA" in text or "Intel(R) MPI" in text else ""


def refused(error: LaunchError) -> Iterator[Finding]:
    """The job that did not come about, told by one of its ranks."""
    yield fail("ranks", error)
    if "SLURM_JOB_ID" in os.environ:
        yield warn("ranks", "a Slurm job", "srun with the interface that this MPI has",
                   "srun --mpi=list names those there are: pmix for Open MPI, pmi2 for MPICH")  # fmt: skip


def _telling(text: str) -> str:
    """The lines that say something, of a launcher's much."""
    lines = [line.strip() for line in text.splitlines() if any(c.isalnum() for c in line)]
    ours = [line for line in lines if "exit code" in line or "error" in line.lower()]
    return " ".join((ours or lines)[:4])[:400] or "no words"


def _short(found: Library) -> str:
    return {"Open MPI": "openmpi", "MPICH": "mpich"}.get(found.kind, "mpi")
