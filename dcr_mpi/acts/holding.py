"""A replica's lease over all ranks of a job: rank 0 takes it, every rank has its fence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..jsonable import dumps, loads
from ..lease import Fence, Grant, Lease
from .ports import Ports
from .replica import Replica


@contextmanager
def holding(ports: Ports, replica: Replica, *, new: bool = False) -> Iterator[Fence]:
    """Hold a replica's lease in a ``with`` block that every rank enters; yields this rank's fence.

    ``new``: the replica need not be there yet.

    Raises
    ------
    NotReady
        There is no replica.
    Conflict
        Another job holds the lease.
    """
    lease: Lease | None = None
    if ports.comm.rank == 0:
        if not new:
            replica.need()
        lease = Lease(replica.work)
    try:
        raw = ports.once("lease", lambda: dumps(lease.grant if lease is not None else None))
        yield lease or Fence(replica.work, loads(Grant, raw, "lease"))
    finally:
        if lease is not None:
            lease.release()
