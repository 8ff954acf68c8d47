"""Which mpirun to use, and how: found in this environment first (the mpich wheel), then on the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# More ranks than cores, as root, on one machine: what a laptop and a CI runner need of Open MPI 4.
_OPENMPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo",
}  # fmt: skip


@dataclass(frozen=True)
class Launcher:
    """An mpirun: its kind ("mpich" or "openmpi"), its path, the environment that it wants."""

    kind: str
    path: str
    env: dict[str, str]

    def command(self, ranks: int, *arguments: str) -> list[str]:
        """argv that runs ``python -m dcr_mpi ARGUMENTS`` on some ranks; one rank needs no launcher."""
        return self.python(ranks, "-m", "dcr_mpi", *arguments)

    def python(self, ranks: int, *arguments: str) -> list[str]:
        """argv that runs this Python on some ranks."""
        alone = [sys.executable, *arguments]
        return alone if ranks == 1 else [self.path, "-n", str(ranks), *alone]

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.env}


def find_all() -> list[Launcher]:
    """Every usable launcher, the environment's own first."""
    found: list[Launcher] = []
    here = str(Path(sys.executable).parent)
    for folder in [here, *os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/bin"]:
        for name in ("mpirun", "mpiexec"):
            path = shutil.which(name, path=folder)
            kind = _kind(path) if path else None
            if path and kind and kind not in [launcher.kind for launcher in found]:
                found.append(Launcher(kind, path, _environment(kind)))
    return found


def find() -> Launcher:
    """The first usable launcher.

    Raises
    ------
    SystemExit
        There is none; says how to get one.
    """
    found = find_all()
    if not found:
        raise SystemExit("no mpirun found. Next: pip install mpich (or apt-get install openmpi-bin)")
    return found[0]


def _kind(path: str) -> str | None:
    try:
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    if "Open MPI" in shown or "OpenRTE" in shown:
        return "openmpi"
    return "mpich" if "HYDRA" in shown or "MPICH" in shown else None


def _environment(kind: str) -> dict[str, str]:
    if kind == "openmpi":
        return {**_OPENMPI, **_library("openmpi")}
    return _library("mpich")


def _library(kind: str) -> dict[str, str]:
    """mpi4py loads the first MPI library that it finds; with two MPIs on a machine, tell it which one this is."""
    if kind == "openmpi":
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64/openmpi/lib", "/usr/lib"):
            for name in ("libmpi.so.40", "libmpi.so"):
                path = Path(folder) / name
                if path.exists():
                    return {"MPI4PY_LIBMPI": str(path)}
    return {}
