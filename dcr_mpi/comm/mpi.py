"""MPI: the only door to mpi4py. Ranks of one cluster; no communicator ever spans two.

Every wait here polls: it sleeps between looks (so that more ranks than cores share them), it has a time-out that
names who was waited for, and it sees a failing rank's *notice*, so that no rank hangs in a collective that another
will never join. Messages are 1-D contiguous bytes in chunks far below the 2 GiB that an MPI count can say.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LaunchError, PeerFailed, by_code
from . import segments, stopping
from .api import Transfer, spin

_NOTICE = 1
_FIRST_TAG, _TAGS = 16, 16384
_HEADER = struct.Struct("<QQ")


@dataclass(frozen=True)
class Library:
    """The MPI library that mpi4py loads: ``kind`` is "Open MPI", "MPICH" or "" for another; ``path`` of its file.

    ``module`` is mpi4py's own file, whose name tells a wheel for any MPI from a build against one.
    """

    kind: str
    version: str
    path: str
    module: str


def library() -> Library:
    """Load the MPI library, without joining any job.

    Raises
    ------
    LaunchError
        There is none that mpi4py can load.
    """
    mpi = load()
    version = mpi.Get_library_version()
    with open("/proc/self/maps") as maps:
        mapped = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libmpi" in line}
    return Library(
        _kind(version), " ".join(re.split(r"[,\n]", version)[0].split()), min(mapped, default=""), mpi.__file__
    )


def initialize() -> Any:
    """Load mpi4py and initialise MPI; returns ``mpi4py.MPI``.

    Raises
    ------
    LaunchError
        There is no MPI library that mpi4py can load, or another MPI's mpirun started this process.
    """
    mpi = load()
    found = library()
    _check_launcher(mpi.Get_library_version(), os.environ, Path(sys.prefix) in Path(found.path).parents)
    if found.kind == "MPICH":
        segments.drop_stale(os.environ)
    mpi.Init_thread(mpi.THREAD_FUNNELED)
    return mpi


def load() -> Any:
    """mpi4py's module; it initialises and finalises nothing by itself.

    Raises
    ------
    LaunchError
        There is no MPI library that it can load.
    """
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            "MPI library",
            found=str(error).splitlines()[0],
            expected="one that mpi4py can load",
            remedy="install an MPI (pip install mpich, or your site's module) in this environment",
        ) from None
    return MPI


def _kind(text: str) -> str:
    return "Open MPI" if "Open MPI" in text else "MPICH" if "MPICH" in text else ""


def _check_launcher(library: str, env: Mapping[str, str], wheel: bool = False) -> None:
    """Refuse another MPI's mpirun before MPI is initialised: its own message would not say what to do.

    ``wheel``: the library came with this environment, and speaks PMI-2 but no PMIx.
    """
    if wheel and _kind(library) == "MPICH" and "PMIX_RANK" in env and "PMI_RANK" not in env:
        raise LaunchError(
            "launcher",
            found="ranks started through PMIx",
            expected="PMI-2, which the MPICH of the mpich wheel speaks",
            remedy="start with srun --mpi=pmi2, or build mpi4py against the site's MPI and leave the wheel out",
        )
    mine = _kind(library)
    theirs = "Open MPI" if "OMPI_COMM_WORLD_SIZE" in env else "MPICH" if "HYDI_CONTROL_FD" in env else ""
    if mine and theirs and mine != theirs:
        raise LaunchError(
            "launcher",
            found=f"the mpirun of {theirs}",
            expected=f"that of {mine}, which mpi4py loads ({library.splitlines()[0].strip()[:60]})",
            remedy="start with the mpirun beside this Python (.venv/bin/mpirun), or name the other library in "
            "MPI4PY_LIBMPI, or build mpi4py against it",
        )


class MpiComm:
    """A job of several ranks. See :class:`Comm`."""

    def __init__(
        self, mpi: Any, timeout_s: float, chunk_bytes: int, patience_s: float, world: Any | None = None
    ) -> None:
        self._mpi = mpi
        self._data, self._control = ((world or mpi.COMM_WORLD).Dup() for _ in range(2))
        self.rank, self.size = self._data.Get_rank(), self._data.Get_size()
        self.timeout_s, self.chunk_bytes, self.patience_s = timeout_s, chunk_bytes, patience_s

    def poll(self, ready: Callable[[], bool], what: str, more_s: float = 0.0) -> None:
        spin(ready, self.timeout_s + more_s, what, self.heed)

    def heed(self) -> None:
        stopping.heed()
        if self._control.Iprobe(source=self._mpi.ANY_SOURCE, tag=_NOTICE):
            status = self._mpi.Status()
            self._control.Probe(source=self._mpi.ANY_SOURCE, tag=_NOTICE, status=status)
            raw = bytearray(status.Get_count(self._mpi.BYTE))
            self._control.Recv([raw, self._mpi.BYTE], source=status.Get_source(), tag=_NOTICE)
            stopping.deafen()
            raise _from_notice(json.loads(raw.decode()))

    def notify(self, error: BaseException) -> None:
        """Tell every other rank that this one failed; gives up after two seconds."""
        notice = {
            "rank": self.rank,
            "host": socket.gethostname(),
            "code": getattr(error, "code", 1),
            "text": str(error)[:2000],
        }
        raw = json.dumps(notice).encode()
        requests = [
            self._control.Isend([raw, self._mpi.BYTE], dest=other, tag=_NOTICE)
            for other in range(self.size)
            if other != self.rank
        ]
        give_up = time.monotonic() + 2
        while time.monotonic() < give_up and not self._mpi.Request.Testall(requests):
            time.sleep(0.001)

    def agree_to_leave(self, patience_s: float) -> bool:
        """Wait until every rank of the job is about to leave it; False if some are not within ``patience_s``."""
        request, give_up = self._control.Ibarrier(), time.monotonic() + patience_s
        while not request.Test():
            if time.monotonic() > give_up:
                return False
            time.sleep(0.001)
        return True

    def abort(self, code: int) -> None:
        """End every rank of the job with ``code``."""
        segments.drop_own()
        self._mpi.COMM_WORLD.Abort(code)

    def free(self) -> None:
        """See :class:`Comm`."""
        self._data.Free()
        self._control.Free()

    def finalize(self) -> None:
        self.free()
        self._mpi.Finalize()

    def _finish(self, request: Any, what: str) -> None:
        # In a collective a rank may wait for another that computes, or that waits for the store: that is no silence.
        spin(request.Test, self.patience_s, what, self.heed)

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

    def receive(self, source: int, index: int, length: int | None) -> Transfer:
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
    def __init__(self, comm: MpiComm, source: int, index: int, length: int | None) -> None:
        self._comm, self._source, self._index, self._length = comm, source, index, length
        self._tag = _FIRST_TAG + index % _TAGS
        self._header = bytearray(_HEADER.size)
        self._requests = [comm._data.Irecv([self._header, comm._mpi.BYTE], source=source, tag=self._tag)]
        self._open = True
        self.data = bytearray()

    def test(self) -> bool:
        done = bool(self._comm._mpi.Request.Testall(self._requests))
        if not done or not self._open:
            return done
        self._open = False
        index, length = _HEADER.unpack(self._header)
        if index != self._index or self._length not in (None, length):
            raise PeerFailed(
                f"relay from rank {self._source}",
                found=f"part {index} of {length} bytes",
                expected=f"part {self._index}" + (f" of {self._length} bytes" if self._length is not None else ""),
            )
        self.data = bytearray(length)
        view, chunk, byte = memoryview(self.data), self._comm.chunk_bytes, self._comm._mpi.BYTE
        self._requests = [
            self._comm._data.Irecv([view[at : at + chunk], byte], source=self._source, tag=self._tag)
            for at in range(0, length, chunk)
        ]
        return not self._requests


def _from_notice(notice: Mapping[str, Any]) -> PeerFailed:
    cause = by_code(int(notice["code"]))
    error = PeerFailed(f"rank {notice['rank']} on {notice['host']} failed ({cause.__name__})", found=notice["text"])
    error.code = int(notice["code"])  # the job ends with the code of what went wrong, not of who heard of it
    return error
