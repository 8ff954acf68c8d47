"""Catching up: a replica brought to the newest committed version by the chain, or by an anchor where that is broken."""

from __future__ import annotations

import dataclasses
from functools import partial

from ..jsonable import dumps
from .apply import ApplyJob
from .chain import missing_link
from .ports import Ports
from .prepare_plan import PrepareJob
from .replay import finish_apply, replay
from .replica import Replica
from .restore import RestoreJob, restore
from .taking import is_within_reach


@dataclasses.dataclass(frozen=True)
class CaughtUp:
    """``replayed`` are the versions taken from the chain; ``anchored``: the version reached by way of an anchor."""

    replayed: tuple[int, ...]
    anchored: int | None = None


def catch_up(ports: Ports, prepare_job: PrepareJob, apply_job: ApplyJob) -> CaughtUp:
    """Bring a replica to the newest committed version in one run; every rank calls it.

    Raises
    ------
    NotReady
        A link of the chain was collected, and there is no anchor after it.
    """
    done = finish_apply(ports, prepare_job, apply_job)
    replica = Replica(prepare_job.replica, prepare_job.site)

    def look() -> bytes:
        return dumps(missing_link(ports.catalog, replica.need().version, partial(is_within_reach, ports)))

    broken = ports.once("chain", look) != b"null"
    anchored = None
    if broken:
        job = RestoreJob(
            prepare_job.site, prepare_job.replica, True, degree=prepare_job.degree, window=prepare_job.window
        )
        anchored = restore(ports, job).version
    return CaughtUp((*done, *replay(ports, prepare_job, apply_job)), anchored)
