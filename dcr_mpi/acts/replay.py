"""Replaying the chain: from where a replica is to the newest committed version, in as few passes as can be."""

from __future__ import annotations

import dataclasses
import json

from ..jsonable import dumps
from ..model import Receipt
from .apply import ApplyJob, apply
from .ports import Ports
from .prepare import prepare
from .prepare_plan import PrepareJob
from .replica import Replica


def finish_apply(ports: Ports, prepare_job: PrepareJob, apply_job: ApplyJob) -> list[int]:
    """Roll an interrupted apply forward, or only tell the store and tidy up where the words were all there; the
    version, where any were missing."""
    replica = Replica(prepare_job.replica, prepare_job.site)

    def look() -> bytes:
        record = replica.need()
        left = [number for number in replica.journaled() if number <= record.version]
        return dumps([record.applying, record.version if left else None])

    applying, untold = json.loads(ports.once("record", look))
    if applying is None and untold is None:
        return []
    receipt = apply(ports, dataclasses.replace(apply_job, version=untold if applying is None else applying))
    return [receipt.version] if applying is not None else []


def replay(ports: Ports, prepare_job: PrepareJob, apply_job: ApplyJob) -> list[int]:
    """Bring a replica to the newest committed version (or to ``prepare_job.until``); every rank calls it.

    Deltas that are cut alike are folded: they are decoded one after the other in memory, block by block, and written
    to the replica in one pass.

    Returns
    -------
    list of int
        The versions that were replayed.

    Raises
    ------
    NotReady
        A version of the chain was collected; names it.
    """
    replayed = finish_apply(ports, prepare_job, apply_job)
    folded = dataclasses.replace(prepare_job, version=None, wait_s=0.0, fold=True)
    while (receipt := prepare(ports, folded)) is not None:
        replayed += _versions(receipt)
        apply(ports, dataclasses.replace(apply_job, version=receipt.version))
    return replayed


def _versions(receipt: Receipt) -> list[int]:
    return [int(v) for v in receipt.detail.get("versions", [receipt.version])]
