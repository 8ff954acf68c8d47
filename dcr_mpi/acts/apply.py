"""apply: after a commit, write the journal's absolute words into the replica. The only act that changes weights.

Order, which a crash at any point must survive: the record says *applying* (durable) - words are written - files are
fsynced on every rank - the record says the new version (durable) - the applied receipt - the journals go. Until the
last record stands, replaying the journal from any state gives the target.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from .. import durable
from ..catalog import check_policy
from ..checkpoint import Checkpoint
from ..errors import BaseMismatch, Conflict, CorruptInput, NotReady, VerifyFailed
from ..journal import check_journal, read_journal
from ..jsonable import loads
from ..lease import Fence
from ..model import Decision, Layout, Manifest, Receipt, ReplicaRecord
from ..waiting import wait_for
from .holding import holding
from .patch import patch_file
from .ports import Ports
from .prepare_plan import next_version
from .replica import RESTORE, Replica, journal, prepared
from .state import checkpoint_lanes
from .tiling import inventories, load_layout, load_policy


@dataclass(frozen=True)
class ApplyJob:
    """What to apply. ``version`` None: the one that is prepared. ``full`` reads the whole replica again afterwards.

    ``report``: put the receipt in the store.
    """

    site: str
    replica: Path
    version: int | None = None
    wait_s: float = 0.0
    poll_s: tuple[float, float] = (0.05, 2.0)
    full: bool = False
    report: bool = True


@dataclass(frozen=True)
class _Plan:
    action: str  # "apply", "discard" (aborted) or "done"
    record: ReplicaRecord
    manifest_sha256: str
    manifest: Manifest
    journals: str = ""  # the finished set to replay
    binding: str = ""  # what the journals are bound to


def apply(ports: Ports, job: ApplyJob) -> Receipt:
    """Roll the replica forward to a committed version, or drop what was prepared for an aborted one.

    Every rank calls it; a replica that holds the version already only has its receipt put again.

    Raises
    ------
    NotReady
        Not decided within the wait, or not prepared here.
    VerifyFailed
        A block is not the target after patching: the replica was changed by somebody else since prepare.
    """
    replica = Replica(job.replica, job.site)
    with holding(ports, replica) as fence:
        with ports.events.stage("plan"):
            plan = ports.agree(_Plan, "plan", lambda: _plan(ports, job, replica, fence))
            layout = load_layout(ports, job.site).layout
        manifest = plan.manifest
        if plan.action == "apply":
            with replica.checkpoint(layout, inventories(ports)) as checkpoint:
                with ports.events.stage("check"):
                    _check_journals(ports, replica, plan, checkpoint, fence)
                if ports.comm.rank == 0:
                    replica.save(dataclasses.replace(plan.record, applying=manifest.version), fence)
                ports.comm.barrier("mark of a version being applied")
                _roll_forward(ports, replica, plan, checkpoint, fence)
            ports.events.note(version=manifest.version)
            if job.full:
                _verify(ports, replica, plan, layout)
            if ports.comm.rank == 0:
                replica.save(
                    dataclasses.replace(
                        plan.record,
                        version=manifest.version,
                        state=manifest.state,
                        tensors=manifest.tensors,
                        applying=None,
                    ),
                    fence,
                )
        return ports.agree(Receipt, "applied receipt", lambda: _close(ports, job, replica, plan, fence))


def _plan(ports: Ports, job: ApplyJob, replica: Replica, fence: Fence) -> _Plan:
    record, catalog = replica.need(), ports.catalog
    _, policy_sha = catalog.policy(f"replica {replica.directory} is at version {record.version} of it")
    check_policy(record.policy_sha256, policy_sha, f"replica {replica.directory}")
    replica.check_layout(record, catalog.layout(job.site).layout)
    version = _version(job, replica, record)
    if version == record.version and record.applying is None:
        _check_newest(ports, job, replica, record)
        manifest, digest = catalog.sealed(version)
        return _Plan("done", record, digest, manifest)
    if version < record.version:
        raise Conflict(
            f"version {version}",
            found=f"a replica at version {record.version}",
            expected="an older one",
            remedy="replicas only go forward: leave --version out",
        )
    if record.applying is not None and version != record.applying:
        raise Conflict(
            f"replica {replica.directory}",
            found=f"an interrupted apply of version {record.applying}",
            expected=f"nothing under way before version {version}",
            remedy="run dcr apply without a version first",
        )
    decision = wait_for(f"decision on version {version}", lambda: catalog.decision(version), job.wait_s, job.poll_s)
    check_policy(decision.policy_sha256, policy_sha, f"decision on version {version}")
    if not decision.commit:
        replica.drop_journals(version, fence)
        if job.version is not None and version != record.version:
            raise Conflict(
                f"version {version}",
                found=f"a decision to abort it ({decision.reason})",
                expected="a commit",
                remedy="nothing is applied, what was prepared is dropped: wait for the next version",
            )
        base, digest = catalog.sealed(record.version)
        return _Plan("discard", record, digest, base)
    manifest, digest = catalog.sealed(version)
    folder, binding = _prepared(replica, record, decision, digest, version)
    return _Plan("apply", record, digest, manifest, str(folder), binding)


def _check_newest(ports: Ports, job: ApplyJob, replica: Replica, record: ReplicaRecord) -> None:
    """Nothing is prepared: that is fine only where no later version was committed."""
    following = next_version(ports, record) if job.version is None else None
    decision = ports.catalog.decision(following) if following is not None else None
    if decision is not None and decision.commit:
        raise NotReady(
            f"version {following} at {replica.directory}",
            found=f"version {record.version} and nothing prepared",
            expected="a finished prepare of the committed version",
            remedy=f"run dcr refit --site {replica.site} first (--catch-up also applies)",
        )


def _version(job: ApplyJob, replica: Replica, record: ReplicaRecord) -> int:
    """The version asked for, under way, or prepared here; the replica's own where none is."""
    if job.version is not None:
        return job.version
    if record.applying is not None:
        return record.applying
    return max([record.version, *replica.sealed_versions()])


def _prepared(
    replica: Replica, record: ReplicaRecord, decision: Decision, manifest_sha: str, version: int
) -> tuple[Path, str]:
    """The finished set of journals to replay, of a prepare or a repair, and what they are bound to."""
    folder = replica.sealed(version)
    if folder is None:
        raise NotReady(
            f"version {version} at {replica.directory}",
            found="nothing prepared",
            expected="a finished prepare",
            remedy=f"run dcr repair --site {replica.site}: an apply was under way, and its journals are gone"
            if record.applying is not None
            else f"run dcr refit --site {replica.site} first: the version is committed, so it may be prepared late",
        )
    receipt = loads(Receipt, prepared(folder).read_bytes(), str(prepared(folder)))
    found = (receipt.manifest_sha256, receipt.base, decision.manifest_sha256)
    # A repair's journals hold what differs from the replica as it is: they have no base.
    if found != (manifest_sha, None if receipt.act == "repaired" else record.version, manifest_sha):
        raise BaseMismatch(
            f"version {version}",
            found=f"journals for manifest {receipt.manifest_sha256[:16]} from version {receipt.base}",
            expected=f"{decision.manifest_sha256[:16]}, which was committed, from version {record.version}",
            remedy="run dcr refit again",
        )
    return folder, str(receipt.detail.get("binding", manifest_sha))


def _check_journals(ports: Ports, replica: Replica, plan: _Plan, checkpoint: Checkpoint, fence: Fence) -> None:
    """Every shard is there and every journal whole, on every rank, before the first word is written anywhere."""
    for shard in _mine(ports, checkpoint):
        found = checkpoint.inventory(shard)
        replica.check_size(found, plan.record)
        path = journal(Path(plan.journals), shard)
        try:
            check_journal(path, replica.binding(plan.binding, found))
        except CorruptInput as error:
            if plan.record.applying is None:
                fence.check()
                durable.remove(prepared(Path(plan.journals)))
                raise
            remedy = f"run dcr repair --site {replica.site}: it makes the version anew, from an anchor and the chain"
            raise CorruptInput(error.what, found=error.found, expected=error.expected, remedy=remedy) from None
    ports.comm.barrier("all journals whole")


def _mine(ports: Ports, checkpoint: Checkpoint) -> range:
    """The shards that this rank writes."""
    return range(ports.comm.rank, len(checkpoint.layout.shards), ports.comm.size)


def _roll_forward(ports: Ports, replica: Replica, plan: _Plan, checkpoint: Checkpoint, fence: Fence) -> None:
    mine = _mine(ports, checkpoint)
    total = sum(plan.record.files.get(checkpoint.layout.shards[s].file, 0) for s in mine)
    progress = ports.events.progress(total, "apply", plan.manifest.version)

    def allowed() -> None:
        ports.comm.heed()
        fence.heed()

    for shard in mine:
        found = checkpoint.inventory(shard)
        replica.check_size(found, plan.record)
        binding = replica.binding(plan.binding, found)
        path = journal(Path(plan.journals), shard)
        with ports.events.stage("write", found.size):
            after = patch_file(
                Path(found.path),
                (p for _, p in read_journal(path, binding)),
                ports.kernels,
                [d.path for d in found.datasets],
                allowed,
            )
        checkpoint.written(shard, after)
        progress.add(found.size)
    progress.done()
    with ports.events.stage("wait"):
        ports.comm.barrier("all shards written and durable")


def _verify(ports: Ports, replica: Replica, plan: _Plan, layout: Layout) -> None:
    with ports.events.stage("verify"), replica.checkpoint(layout) as checkpoint:
        policy = load_policy(ports)
        lanes = checkpoint_lanes(ports, checkpoint, policy.tensors)
        for spec, have, want in zip(policy.tensors, lanes, plan.manifest.tensors, strict=True):
            if have != want:
                raise VerifyFailed(
                    f"tensor {spec.name!r} after apply",
                    found=have[:16],
                    expected=want[:16],
                    remedy="run dcr apply again; if it stays so: " + RESTORE,
                )


def _close(ports: Ports, job: ApplyJob, replica: Replica, plan: _Plan, fence: Fence) -> Receipt:
    """Rank 0: the receipt in the store, then the journals go."""
    receipt = ports.receipt(
        "applied", replica.site, plan.manifest, plan.manifest_sha256, detail={"action": plan.action}
    )
    if plan.action != "discard":
        standing = ports.catalog.put_receipt(receipt) if job.report else receipt
        _tidy(ports, replica, plan.manifest.version, fence)
        return receipt if plan.action == "done" else standing
    return receipt


def _tidy(ports: Ports, replica: Replica, version: int, fence: Fence) -> None:
    """Remove the journals of a version and of older ones, and of those that were aborted and never looked at again."""
    for number in replica.journaled():
        decision = ports.catalog.decision(number) if number > version else None
        if number <= version or (decision is not None and not decision.commit):
            replica.drop_journals(number, fence)
