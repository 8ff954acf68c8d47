"""MPI: the only door to mpi4py. Ranks of one cluster; no communicator ever spans two.

Every wait here polls: it sleeps between looks (so that more ranks than cores share them), it has a time-out that
names who was waited for, and it sees a failing rank's *notice*, so that no rank hangs in a collective that another
will never join. A rank that fails tells all others what happened before it aborts the job with its error's code.

Messages are 1-D contiguous bytes in chunks far below the 2 GiB that an MPI count can say. A process that no
launcher started is a job of one rank and never imports MPI.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from .errors import DcrError, LaunchError, PeerFailed, by_code

_NOTICE = 1
_FIRST_TAG, _TAGS = 16, 16384
_HEADER = struct.Struct("<QQ")


class Transfer(Protocol):
    """A send or a receive under way; ``data`` holds the bytes once ``test`` said True."""

    data: Any

    def test(self) -> bool: ...


class Comm(Protocol):
    """What the acts need of a job. Collectives are called by every rank in the same order."""

    rank: int
    size: int

    def poll(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until ``ready()``; raises PeerFailed on a notice or after the time-out, naming ``what``."""
        ...

    def barrier(self, what: str) -> None: ...

    def broadcast(self, data: bytes | None, what: str) -> bytes:
        """Rank 0's bytes on every rank."""
        ...

    def allgather(self, data: bytes, what: str) -> list[bytes]:
        """Every rank's bytes, by rank."""
        ...

    def sum(self, values: np.ndarray, what: str) -> np.ndarray:
        """Element-wise sum modulo 2^64 of a uint64 array of the same shape on every rank."""
        ...

    def send(self, to: int, index: int, data: Any) -> Transfer:
        """Start to send part ``index`` to a rank; ``data`` must stay alive until it is done."""
        ...

    def receive(self, source: int, index: int, length: int) -> Transfer:
        """Start to receive part ``index`` of ``length`` bytes; a sender that says otherwise is an error."""
        ...


class Solo:
    """A job of one rank."""

    rank, size = 0, 1

    def poll(self, ready: Callable[[], bool], what: str) -> None:
        _spin(ready, None, what, lambda: None)

    def barrier(self, what: str) -> None:
        pass

    def broadcast(self, data: bytes | None, what: str) -> bytes:
        assert data is not None
        return data

    def allgather(self, data: bytes, what: str) -> list[bytes]:
        return [data]

    def sum(self, values: np.ndarray, what: str) -> np.ndarray:
        return values.copy()

    def send(self, to: int, index: int, data: Any) -> Transfer:
        raise AssertionError("a job of one rank has nobody to send to")

    def receive(self, source: int, index: int, length: int) -> Transfer:
        raise AssertionError("a job of one rank has nobody to receive from")


class MpiComm:
    """A job of several ranks. See :class:`Comm`."""

    def __init__(self, mpi: Any, timeout_s: float, chunk_bytes: int) -> None:
        self._mpi = mpi
        self._data = mpi.COMM_WORLD.Dup()
        self._control = mpi.COMM_WORLD.Dup()
        self.rank, self.size = self._data.Get_rank(), self._data.Get_size()
        self.timeout_s, self.chunk_bytes = timeout_s, chunk_bytes

    def poll(self, ready: Callable[[], bool], what: str) -> None:
        _spin(ready, self.timeout_s, what, self._heed)

    def _heed(self) -> None:
        """Raise if a rank sent a notice of its failure."""
        status = self._mpi.Status()
        if self._control.Iprobe(source=self._mpi.ANY_SOURCE, tag=_NOTICE, status=status):
            raw = bytearray(status.Get_count(self._mpi.BYTE))
            self._control.Recv([raw, self._mpi.BYTE], source=status.Get_source(), tag=_NOTICE)
            raise _from_notice(json.loads(raw.decode()))

    def notify(self, error: BaseException) -> None:
        """Tell every other rank that this one failed; gives up after two seconds."""
        notice = {"rank": self.rank, "host": socket.gethostname(), "code": getattr(error, "code", 1), "text": str(error)[:2000]}
        raw = json.dumps(notice).encode()
        requests = [
            self._control.Isend([raw, self._mpi.BYTE], dest=other, tag=_NOTICE)
            for other in range(self.size)
            if other != self.rank
        ]
        give_up = time.monotonic() + 2
        while time.monotonic() < give_up and not self._mpi.Request.Testall(requests):
            time.sleep(0.001)

    def abort(self, code: int) -> None:
        """End every rank of the job with ``code``."""
        self._mpi.COMM_WORLD.Abort(code)

    def finalize(self) -> None:
        self._data.Free()
        self._control.Free()
        self._mpi.Finalize()

    def _finish(self, request: Any, what: str) -> None:
        self.poll(request.Test, what)

    def barrier(self, what: str) -> None:
        self._finish(self._data.Ibarrier(), what)

    def broadcast(self, data: bytes | None, what: str) -> bytes:
        length = np.array([len(data) if data is not None else 0], np.int64)
        self._finish(self._data.Ibcast([length, self._mpi.INT64_T], root=0), what)
        buffer = bytearray(data) if self.rank == 0 and data is not None else bytearray(int(length[0]))
        view = memoryview(buffer)
        for at in range(0, len(view), self.chunk_bytes):
            self._finish(self._data.Ibcast([view[at : at + self.chunk_bytes], self._mpi.BYTE], root=0), what)
        return bytes(buffer)

    def allgather(self, data: bytes, what: str) -> list[bytes]:
        lengths = np.zeros(self.size, np.int64)
        mine = np.array([len(data)], np.int64)
        self._finish(self._data.Iallgather([mine, self._mpi.INT64_T], [lengths, self._mpi.INT64_T]), what)
        out = [bytearray() for _ in range(self.size)]
        # In rounds, so that no count passes what an MPI integer holds.
        for at in range(0, int(lengths.max()), self._round()):
            counts = np.clip(lengths - at, 0, self._round())
            buffer = bytearray(int(counts.sum()))
            piece = data[at : at + self._round()]
            target = [buffer, [int(c) for c in counts], None, self._mpi.BYTE]
            self._finish(self._data.Iallgatherv([piece, self._mpi.BYTE], target), what)
            ends = np.cumsum(counts)
            for other in range(self.size):
                out[other] += buffer[int(ends[other] - counts[other]) : int(ends[other])]
        return [bytes(b) for b in out]

    def _round(self) -> int:
        return max(1, self.chunk_bytes // self.size)

    def sum(self, values: np.ndarray, what: str) -> np.ndarray:
        flat = np.ascontiguousarray(values, np.uint64).reshape(-1)
        out = np.empty_like(flat)
        step = max(1, self.chunk_bytes // 8)
        for at in range(0, len(flat), step):
            piece = [flat[at : at + step], self._mpi.UINT64_T], [out[at : at + step], self._mpi.UINT64_T]
            self._finish(self._data.Iallreduce(*piece, op=self._mpi.SUM), what)
        return out.reshape(values.shape)

    def send(self, to: int, index: int, data: Any) -> Transfer:
        return _Sending(self, to, index, memoryview(data).cast("B"))

    def receive(self, source: int, index: int, length: int) -> Transfer:
        return _Receiving(self, source, index, length)


class _Sending:
    def __init__(self, comm: MpiComm, to: int, index: int, view: memoryview) -> None:
        world, byte, tag = comm._data, comm._mpi.BYTE, _FIRST_TAG + index % _TAGS
        self.data = view
        self._mpi, self._header = comm._mpi, _HEADER.pack(index, len(view))
        self._requests = [world.Isend([self._header, byte], dest=to, tag=tag)]
        for at in range(0, len(view), comm.chunk_bytes):
            self._requests.append(world.Isend([view[at : at + comm.chunk_bytes], byte], dest=to, tag=tag))

    def test(self) -> bool:
        return bool(self._mpi.Request.Testall(self._requests))


class _Receiving:
    def __init__(self, comm: MpiComm, source: int, index: int, length: int) -> None:
        self._comm, self._source, self._index, self._length = comm, source, index, length
        self._tag = _FIRST_TAG + index % _TAGS
        self._header = bytearray(_HEADER.size)
        self._requests = [comm._data.Irecv([self._header, comm._mpi.BYTE], source=source, tag=self._tag)]
        self._open = True
        self.data = bytearray(length)

    def test(self) -> bool:
        done = bool(self._comm._mpi.Request.Testall(self._requests))
        if not done or not self._open:
            return done
        self._open = False
        index, length = _HEADER.unpack(self._header)
        if (index, length) != (self._index, self._length):
            raise PeerFailed(f"relay from rank {self._source}", found=f"part {index} of {length} bytes",
                             expected=f"part {self._index} of {self._length} bytes")  # fmt: skip
        view, chunk, byte = memoryview(self.data), self._comm.chunk_bytes, self._comm._mpi.BYTE
        self._requests = [
            self._comm._data.Irecv([view[at : at + chunk], byte], source=self._source, tag=self._tag)
            for at in range(0, length, chunk)
        ]
        return not self._requests


def _spin(ready: Callable[[], bool], timeout_s: float | None, what: str, heed: Callable[[], None]) -> None:
    """Call ``ready`` until it is true: often at first, then about every millisecond."""
    begun, pause = time.monotonic(), 20e-6
    while not ready():
        heed()
        if timeout_s is not None and time.monotonic() - begun > timeout_s:
            raise PeerFailed(what, found=f"no progress for {timeout_s:g} s", expected="an answer from the other ranks",
                             remedy="look at the other ranks' logs, then run again: only what is missing is redone")  # fmt: skip
        time.sleep(pause)
        pause = min(pause * 1.5, 1e-3)


def _from_notice(notice: Mapping[str, Any]) -> PeerFailed:
    cause = by_code(int(notice["code"]))
    error = PeerFailed(f"rank {notice['rank']} on {notice['host']} failed ({cause.__name__})", found=notice["text"])
    error.code = int(notice["code"])  # the job ends with the code of what went wrong, not of who heard of it
    return error


def launched_size(env: Mapping[str, str]) -> int | None:
    """Ranks that the launcher says it started; None where no MPI launcher started this process."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE"):
        if env.get(name, "").isdigit():
            return int(env[name])
    if env.get("PMIX_RANK") or (env.get("SLURM_STEP_ID", "").isdigit() and env.get("SLURM_STEP_NUM_TASKS", "1") != "1"):
        return int(env.get("SLURM_STEP_NUM_TASKS", "1"))
    return None


def start(timeout_s: float = 60.0, chunk_bytes: int = 64 << 20, expected: int | None = None) -> Comm:
    """Join the job: MPI where a launcher started this process, else a job of one rank.

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
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError("MPI library", found=str(error).splitlines()[0], expected="one that mpi4py can load",
                          remedy="install an MPI (pip install mpich, or your site's module) in this environment") from None  # fmt: skip
    MPI.Init_thread(MPI.THREAD_FUNNELED)
    size = MPI.COMM_WORLD.Get_size()
    try:
        _check_size(size, told, f"the launcher (library: {MPI.Get_library_version().split(chr(10))[0].strip()[:60]})")
        _check_size(size, expected, "the configuration")
    except LaunchError:
        MPI.Finalize()
        raise
    if size == 1:
        MPI.Finalize()
        return Solo()
    return MpiComm(MPI, timeout_s, min(chunk_bytes, 1 << 30))


def _check_size(size: int, expected: int | None, who: str) -> None:
    if expected is not None and expected != size:
        raise LaunchError("size of the job", found=f"{size} ranks by MPI", expected=f"{expected} by {who}",
                          remedy="start with the mpirun or srun of the same MPI library that mpi4py loads")  # fmt: skip


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
        comm.finalize()
        return code
    except BaseException as error:
        code = error.code if isinstance(error, DcrError) else 130 if isinstance(error, KeyboardInterrupt) else 1
        if not isinstance(error, PeerFailed) or not error.what.startswith("rank "):
            where = f"[{comm.rank}/{comm.size} {socket.gethostname()}]"
            print(f"{where} error ({type(error).__name__}, exit code {code}): {error}", file=sys.stderr, flush=True)
            if not isinstance(error, DcrError):
                import traceback

                traceback.print_exc()
            comm.notify(error)
            time.sleep(0.2)  # the others get to say what they were doing before the launcher ends them
        else:
            time.sleep(3)  # the rank that failed ends the job; this is for the case that it cannot
        comm.abort(code)
        raise
