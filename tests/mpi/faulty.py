"""``dcr`` with a fault: ``python -m tests.mpi.faulty PHASE RANK HOW ARGUMENTS...`` under mpirun.

Every rank leaves its process id in ``pids/``; the one that meets its fault leaves a file ``tripped`` first.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from dcr_mpi.acts import patch, publish
from dcr_mpi.acts.parts import PartBuilder
from dcr_mpi.cli.main import main
from dcr_mpi.comm.mpi import MpiComm
from dcr_mpi.contents import Contents
from dcr_mpi.errors import CorruptInput
from dcr_mpi.journal import JournalWriter

# Phase: whose call, which (by its label, where it has one), and the how-manieth.
PHASES: dict[str, tuple[Any, str, str, int]] = {
    "fetch": (Contents, "part", "", 2),
    "send": (MpiComm, "send", "", 2),
    "receive": (MpiComm, "receive", "", 2),
    "journal": (JournalWriter, "append", "", 3),
    "agree": (MpiComm, "sum", "state digest of the prepared version", 1),
    "compare": (PartBuilder, "build", "", 2),
    "upload": (publish, "_put", "", 2),
    "seal": (MpiComm, "broadcast", "manifest", 1),
    "before": (MpiComm, "barrier", "mark of a version being applied", 1),
    "midway": (patch, "_write", "", 5),
}


def trip(how: str) -> None:
    Path("tripped").touch()
    if how in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    elif how == "error":
        raise CorruptInput("a fault of the test")
    elif how == "bug":
        raise RuntimeError("a bug of the test")
    elif how == "exit":
        sys.exit(3)
    elif how == "_exit":
        os._exit(3)


def arm(phase: str, how: str) -> None:
    """Let the phase's call fail, once."""
    owner, name, label, nth = PHASES[phase]
    whole, calls = getattr(owner, name), [0]

    def faulty(*args: Any, **kwargs: Any) -> Any:
        calls[0] += not label or any(isinstance(a, str) and a == label for a in args)
        if calls[0] == nth:
            calls[0] = nth + 1
            trip(how)
        return whole(*args, **kwargs)

    setattr(owner, name, faulty)


if __name__ == "__main__":
    rank = next(int(os.environ[name]) for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ)
    Path("pids").mkdir(exist_ok=True)
    Path(f"pids/{os.getpid()}").touch()
    if rank == int(sys.argv[2]):
        arm(sys.argv[1], sys.argv[3])
    sys.exit(main(sys.argv[4:]))
