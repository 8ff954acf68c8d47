"""prepare: fetch, relay and decode the next version into a durable journal. The weights are only read."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import durable
from ..catalog import check_policy
from ..digest import Lanes, add, lanes_hex, lanes_of, sha256
from ..errors import BaseMismatch, Conflict, GeometryError, NotReady, ResourceError, VerifyFailed
from ..hdf5 import Inventory
from ..journal import JournalWriter
from ..jsonable import dumps, loads
from ..model import Manifest, Policy, Receipt, ReplicaRecord, SiteLayout, Tiling
from ..units import bytes_text
from .landing import Landing
from .ports import Ports
from .relay import relay
from .replica import RESTORE, Replica
from .state import check_digests, check_manifest
from .tiling import load_tiling


@dataclass(frozen=True)
class PrepareJob:
    """What to prepare. ``version`` None: the next one that is made from the replica's. ``wait_s``: for its manifest,
    and for each part that the store shows later than the manifest.

    ``degree`` and ``window`` are the relay tree's children per rank and the parts in hand per rank.
    """

    site: str
    replica: Path
    version: int | None = None
    wait_s: float = 0.0
    poll_s: tuple[float, float] = (0.05, 2.0)
    degree: int = 2
    window: int = 4


@dataclass(frozen=True)
class _Plan:
    manifest_sha256: str
    manifest: Manifest | None  # None: the replica is up to date
    record: ReplicaRecord
    layout: SiteLayout


def prepare(ports: Ports, job: PrepareJob) -> Receipt | None:
    """Prepare a version at one site. Every rank calls it; running it again fetches only what is missing.

    Returns
    -------
    Receipt or None
        The prepared receipt; None where the replica holds the newest committed version already.

    Raises
    ------
    NotReady
        No replica, no such version yet, or an apply that was interrupted.
    BaseMismatch
        The replica is at another version, of another policy, or holds other bytes. It is untouched.
    GeometryError
        The version was not cut for this site's layout.
    CorruptInput, VerifyFailed
        A part is not what the manifest says, or does not decode to the target.
    """
    replica = Replica(job.replica, job.site)
    lease = replica.lease() if ports.comm.rank == 0 and replica.record() is not None else None
    try:
        with ports.events.stage("plan"):
            plan = loads(_Plan, ports.once("plan", lambda: dumps(_plan(ports, job, replica))), "plan")
            if plan.manifest is None:
                return None
            policy = loads(Policy, ports.once("policy", lambda: dumps(ports.catalog.policy()[0])), "policy.json")
            manifest = plan.manifest
            tiling = load_tiling(ports, manifest.tiling, policy, manifest.policy_sha256, len(manifest.parts))
            check_fits(tiling, plan.layout, manifest.version)
            check_manifest(policy, manifest)
            what, record = f"record of replica {replica.directory}", plan.record
            check_digests(what, policy.tensors, record.tensors, record.state, RESTORE)
        lanes = _receive(ports, job, replica, policy, tiling, plan)
        _check_state(policy, plan.record, manifest, lanes)
        raw = ports.once("prepared receipt", lambda: dumps(_seal(ports, replica, plan, tiling)))
        return loads(Receipt, raw, "prepared receipt")
    finally:
        if lease is not None:
            lease.release()


def check_fits(tiling: Tiling, site: SiteLayout, version: int) -> None:
    """Raise GeometryError unless a version's tiles were cut for this site's registered layout."""
    digest = sha256(dumps(site.layout))
    if tiling.layouts.get(site.site) != digest:
        have = (
            "cut for sites " + str(sorted(tiling.layouts))
            if site.site not in tiling.layouts
            else "cut for another layout of this site"
        )
        raise GeometryError(
            f"version {version}",
            found=have,
            expected=f"tiles for {site.site!r} with layout {digest[:16]}",
            remedy="let the trainer list this site in its configuration (trainer.sites): versions encoded from then on "
            f"fit; to join at the last one before, remove the replica and run dcr init --site {site.site} --from DIR",
        )


def _plan(ports: Ports, job: PrepareJob, replica: Replica) -> _Plan:
    record = replica.need()
    catalog = ports.catalog
    _, policy_sha = catalog.policy(f"replica {replica.directory} is at version {record.version} of it")
    check_policy(record.policy_sha256, policy_sha, f"replica {replica.directory}")
    if record.applying is not None:
        raise NotReady(
            f"replica {replica.directory}",
            found=f"an interrupted apply of version {record.applying}",
            expected="a whole version",
            remedy="run dcr apply: it rolls forward from the journal",
        )
    layout = catalog.layout(job.site)
    replica.check_layout(record, layout.layout)
    version = job.version if job.version is not None else next_version(ports, record, job.wait_s, job.poll_s)
    if version is None:
        return _Plan("", None, record, layout)
    found = catalog.wait(f"manifest of version {version}", lambda: catalog.manifest(version), job.wait_s, job.poll_s)
    manifest, manifest_sha = found
    check_policy(manifest.policy_sha256, policy_sha, f"manifest of version {version}")
    decision = catalog.decision(version)
    if decision is not None and not decision.commit:
        raise Conflict(
            f"version {version}",
            found=f"aborted ({decision.reason})",
            expected="a version to prepare",
            remedy="nothing to do: wait for the next version",
        )
    if record.version == version and record.state == manifest.state:
        return _Plan(manifest_sha, None, record, layout)
    if (record.version, record.state) != (manifest.base, manifest.base_state):
        raise BaseMismatch(
            f"replica {replica.directory}",
            found=f"version {record.version}, state {record.state[:16]}",
            expected=f"version {manifest.base}, state {manifest.base_state[:16]}: version {version} is made from it",
            remedy="let dcr refit choose the next version in the chain (--catch-up takes them all). Or: " + RESTORE,
        )
    return _Plan(manifest_sha, manifest, record, layout)


def next_version(
    ports: Ports, record: ReplicaRecord, wait_s: float = 0.0, poll_s: tuple[float, float] = (0.05, 2.0)
) -> int | None:
    """The version after a replica's: the first later one that was not aborted; None where there is none (yet)."""

    def look() -> int | None:
        for version in range(record.version + 1, ports.catalog.last_opened(record.version) + 1):
            decision = ports.catalog.decision(version)
            if decision is None or decision.commit:
                return version
        return None

    if not wait_s:
        return look()
    return ports.catalog.wait(f"a version after {record.version}", look, wait_s, poll_s)


def _receive(
    ports: Ports, job: PrepareJob, replica: Replica, policy: Policy, tiling: Tiling, plan: _Plan
) -> np.ndarray:
    """Relay and journal; returns the summed lanes of all ranks, uint64 (tensors, 2)."""
    manifest = plan.manifest
    assert manifest is not None
    layout = plan.layout.layout
    journals: dict[int, JournalWriter] = {}
    with replica.checkpoint(layout) as checkpoint:
        try:
            inventories: dict[int, Inventory] = {}
            for shard in range(ports.comm.rank, len(layout.shards), ports.comm.size):
                inventories[shard] = checkpoint.inventory(shard)
                replica.check_size(inventories[shard], plan.record)
                binding = replica.binding(plan.manifest_sha256, inventories[shard])
                journals[shard] = JournalWriter(replica.journal(manifest.version, shard), binding)
            landing = Landing(policy, tiling, manifest, checkpoint, inventories, ports.kernels)
            missing = [
                landing.shards_of(k) - {s for s, j in journals.items() if k in j.done}
                for k in range(len(manifest.parts))
            ]
            _withdraw(ports, replica, manifest, any(missing))
            total = sum(e.size for e, shards in zip(manifest.parts, missing, strict=True) if shards)
            progress = ports.events.progress(total, "refit")

            def consume(part: int, data: object) -> None:
                with ports.events.stage("decode", manifest.parts[part].size):
                    frames = landing.land(part, data, missing[part])
                with ports.events.stage("journal"):
                    for shard, frame in frames.items():
                        journals[shard].append(part, frame)

            with ports.events.stage("relay"):
                moved = relay(
                    ports.comm,
                    manifest.parts,
                    [bool(m) for m in missing],
                    lambda entry: ports.catalog.part(entry, job.wait_s, job.poll_s),
                    consume,
                    degree=job.degree,
                    window=job.window,
                    moved=progress.add,
                )
            ports.events.emit("relayed", version=manifest.version, **moved)
            with ports.events.stage("journal"):
                for writer in journals.values():
                    writer.finish()
            progress.done()
            return ports.comm.sum(_sum(journals, len(policy.tensors)), "state digest of the prepared version")
        finally:
            for writer in journals.values():
                writer.close()


def _withdraw(ports: Ports, replica: Replica, manifest: Manifest, missing: bool) -> None:
    """Before any journal changes: the local receipt goes, and there must be room for what is still to be written."""
    short = int(ports.comm.sum(np.array([missing], np.uint64), "parts missing")[0])
    if short and ports.comm.rank == 0:
        durable.remove(replica.prepared(manifest.version))
        width = manifest.dense_bytes / max(manifest.elements, 1)
        need = int(min(manifest.dense_bytes, manifest.changed * (1 + width)))
        free = shutil.disk_usage(replica.work).free
        if free < need:
            raise ResourceError(
                f"space for the journals in {replica.work}",
                found=f"{bytes_text(free)} free",
                expected=f"about {bytes_text(need)} for {manifest.changed} changed words",
                remedy="make room on that file system, then run dcr refit again",
            )
    ports.comm.barrier("local receipt withdrawn")


def _sum(journals: dict[int, JournalWriter], tensors: int) -> np.ndarray:
    total: dict[int, Lanes] = {}
    for writer in journals.values():
        for _, lanes in writer.frames:
            for tensor, pair in lanes.items():
                total[tensor] = add(total.get(tensor, (0, 0)), pair)
    out = np.zeros((tensors, 2), np.uint64)
    for tensor, pair in total.items():
        out[tensor] = pair
    return out


def _check_state(policy: Policy, record: ReplicaRecord, manifest: Manifest, moved: np.ndarray) -> None:
    """What the journals would make of the base must be the manifest's target, tensor by tensor."""
    for spec, base, target, (a, b) in zip(policy.tensors, record.tensors, manifest.tensors, moved, strict=True):
        have = lanes_hex(add(lanes_of(base), (int(a), int(b))))
        if have != target:
            raise VerifyFailed(
                f"tensor {spec.name!r} of version {manifest.version}",
                found=f"digest {have[:16]} after decoding",
                expected=f"{target[:16]}, as the manifest says",
                remedy="the replica is untouched: abort this version and encode it again",
            )


def _seal(ports: Ports, replica: Replica, plan: _Plan, tiling: Tiling) -> Receipt:
    """Rank 0, once every rank's journals are durable: the local receipt, then the store's."""
    manifest = plan.manifest
    assert manifest is not None
    receipt = ports.receipt(
        "prepared",
        replica.site,
        manifest,
        plan.manifest_sha256,
        detail={"layout": tiling.layouts[replica.site], "shards": len(plan.layout.layout.shards)},
    )
    durable.replace(str(replica.prepared(manifest.version)), dumps(receipt))
    return ports.catalog.put_receipt(receipt)
