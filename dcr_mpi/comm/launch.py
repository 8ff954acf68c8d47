"""Joining a job and leaving it: how many ranks the launcher means, and one end for all of them.

A process that no launcher started is a job of one rank and never imports MPI. A rank that fails tells all others
what happened before it aborts the job with its error's code. A job that is told to stop is not aborted: its ranks leave
together, each with that code, so that no launcher reports one that it had to kill.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import DcrError, LaunchError, PeerFailed, Preempted
from .api import Comm, Solo
from .mpi import MpiComm, initialize, load
from .segments import drop_own
from .stopping import deafen

_LEAVE_S = 10.0  # longer than a part takes between two looks at the notices, shorter than schedulers' patience


def launched_size(env: Mapping[str, str]) -> int | None:
    """Ranks that the launcher says it started; None where no MPI launcher started this process."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE"):
        if env.get(name, "").isdigit():
            return int(env[name])
    if env.get("PMIX_RANK") or (env.get("SLURM_STEP_ID", "").isdigit() and env.get("SLURM_STEP_NUM_TASKS", "1") != "1"):
        return int(env.get("SLURM_STEP_NUM_TASKS", "1"))
    return None


def launched_rank(env: Mapping[str, str]) -> int:
    """This process's number by the launcher's word, before MPI has one; 0 where it says nothing."""
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "SLURM_PROCID")
    return next((int(env[name]) for name in names if env.get(name, "").isdigit()), 0)


def start(
    timeout_s: float = 600.0, chunk_bytes: int = 64 << 20, expected: int | None = None, patience_s: float = 3600.0
) -> Comm:
    """Join the job: MPI where a launcher started this process, else a job of one rank.

    ``timeout_s`` is for a part that does not come through the relay, ``patience_s`` for a rank that does not come to a
    collective (it may be computing).

    Raises
    ------
    LaunchError
        MPI sees another number of ranks than the launcher or the configuration says: every rank would believe
        to be alone and do the whole work over the others.
    """
    told = launched_size(os.environ)
    if told is None:
        _check_size(1, expected, "the configuration")
        return Solo()
    mpi = initialize()
    size = mpi.COMM_WORLD.Get_size()
    try:
        _check_size(size, told, f"the launcher (library: {mpi.Get_library_version().split(chr(10))[0].strip()[:60]})")
        _check_size(size, expected, "the configuration")
    except LaunchError:
        mpi.Finalize()
        raise
    if size == 1:
        mpi.Finalize()
        return Solo()
    return MpiComm(mpi, timeout_s, min(chunk_bytes, 1 << 30), patience_s)


def join(world: Any, timeout_s: float = 600.0, chunk_bytes: int = 64 << 20, patience_s: float = 3600.0) -> Comm:
    """The ranks of a program that has MPI running already, by its communicator (of mpi4py); None: this process alone.

    The times are those of :func:`start`. Every rank of ``world`` calls it.
    """
    if world is None or world.Get_size() == 1:
        return Solo()
    return MpiComm(load(), timeout_s, min(chunk_bytes, 1 << 30), patience_s, world)


def _check_size(size: int, expected: int | None, who: str) -> None:
    if expected is not None and expected != size:
        raise LaunchError(
            "size of the job",
            found=f"{size} ranks by MPI",
            expected=f"{expected} by {who}",
            remedy="start with the mpirun or srun of the same MPI library that mpi4py loads",
        )


def run(comm: Comm, main: Callable[[], int]) -> int:
    """Run ``main`` on this rank and own its end: no error of one rank leaves another waiting.

    Returns ``main``'s value. On an error, prints it once (the rank that failed), tells the others, and ends the job
    with the error's exit code; on a job of one rank the error is raised for the caller.
    """
    if not isinstance(comm, MpiComm):
        return main()
    try:
        code = main()
        comm.barrier("end of the job")
        deafen()
        comm.finalize()
        return code
    except KeyboardInterrupt:
        sys.stderr.write("dcr: interrupted; run the same command again to go on\n" if comm.rank == 0 else "")
        comm.abort(130)
        os._exit(130)
    except BaseException as error:
        code = error.code if isinstance(error, DcrError) else 1
        heard = isinstance(error, PeerFailed) and error.what.startswith("rank ")
        if not heard:
            where = f"[{comm.rank}/{comm.size} {socket.gethostname()}]"
            sys.stderr.write(f"{where} error ({type(error).__name__}, exit code {code}): {error}\n")
            if not isinstance(error, DcrError):
                traceback.print_exc()
            comm.notify(error)
        # MPICH's own mpirun kills the others as soon as one ends, and may report that; of an abort it reports the code.
        if code == Preempted.code and comm.agree_to_leave(_LEAVE_S) and "HYDI_CONTROL_FD" not in os.environ:
            sys.stdout.flush()
            sys.stderr.flush()
            drop_own()
            os._exit(code)  # no finalize: what was under way between the ranks is left unfinished
        # The others get to say what they were doing before the launcher ends them; the rank that failed ends the job,
        # and who heard of it only if that cannot.
        time.sleep(3 if heard else 0.2)
        comm.abort(code)
        os._exit(code)  # MPICH's abort may come back before the launcher ends this rank; all has been said above
