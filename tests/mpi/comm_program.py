"""Run under mpirun by test_comm: exercises every call of Comm, then fails in the way that its argument names."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import numpy as np

from dcr_mpi import comm
from dcr_mpi.errors import BaseMismatch, DcrError


def main(ranks: comm.Comm, mode: str) -> int:
    size, rank = ranks.size, ranks.rank
    assert ranks.broadcast(b"x" * 5000 if rank == 0 else None, "text") == b"x" * 5000
    assert ranks.broadcast(b"" if rank == 0 else None, "nothing") == b""
    assert ranks.allgather(bytes([rank]) * (rank * 3000), "bytes") == [bytes([r]) * (r * 3000) for r in range(size)]
    total = ranks.sum(np.full((70, 10), 2**63 + rank, np.uint64), "sum")
    assert total.shape == (70, 10)
    assert set(total.reshape(-1).tolist()) == {(size * 2**63 + sum(range(size))) % 2**64}
    if size > 1:
        _ring(ranks, 10000, 10000 if mode != "length" else 9999)
        _ring(ranks, 0, 0)
    last = rank == size - 1
    if mode == "raise" and last:
        raise BaseMismatch(f"rank {rank} is wrong")
    if mode == "bug" and last:
        raise ValueError("a bug")
    if mode == "kill" and last:
        os.kill(os.getpid(), 9)
    if mode == "exit" and last:
        os._exit(3)
    if mode == "silent" and last:
        time.sleep(60)
    if mode == "preempt" and last:
        os.kill(os.getpid(), signal.SIGUSR1)
    if mode == "swallow" and last:
        with contextlib.suppress(DcrError):  # as a tidying that must not fail
            os.kill(os.getpid(), signal.SIGTERM)
    if mode == "both":
        os.kill(os.getpid(), signal.SIGUSR1)
    if mode in ("preempt", "swallow", "absent"):
        while True:  # as if there was no end to the parts
            if not (mode == "absent" and last):
                ranks.heed()
            time.sleep(0.01)
            if mode == "absent" and rank == 0:
                os.kill(os.getpid(), signal.SIGTERM)
    ranks.barrier("end")
    if rank == 0:
        print("fine", size)
    return 0


def _ring(ranks: comm.Comm, length: int, believed: int) -> None:
    """Everybody sends to the next rank; chunks are 1 KiB, so 10,000 bytes are ten messages."""
    data = bytes([ranks.rank]) * length
    sending = ranks.send((ranks.rank + 1) % ranks.size, 7, data)
    receiving = ranks.receive((ranks.rank - 1) % ranks.size, 7, believed)
    ranks.poll(lambda: receiving.test() & sending.test(), "ring")
    assert bytes(receiving.data) == bytes([(ranks.rank - 1) % ranks.size]) * length


if __name__ == "__main__":
    try:
        expected = os.environ.get("EXPECTED")
        job = comm.start(timeout_s=5, chunk_bytes=1024, expected=int(expected) if expected else None, patience_s=5)
        comm.listen()
        sys.exit(comm.run(job, lambda: main(job, sys.argv[1])))
    except DcrError as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)
