"""prepare: fetch, relay and decode the next version into a durable journal. The weights are only read."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..digest import Lanes, add, lanes_hex, lanes_of
from ..errors import VerifyFailed
from ..hdf5 import Inventory
from ..journal import JournalWriter
from ..jsonable import dumps, loads
from ..lease import Fence
from ..model import Manifest, Policy, Receipt, ReplicaRecord, Tiling
from .chain import bundles, fetch_bundle
from .folding import landing_of
from .holding import holding
from .ports import Ports
from .prepare_plan import PrepareJob, PreparePlan, check_fits, prepare_plan
from .relay import relay
from .replica import RESTORE, Replica, journal
from .state import check_digests, check_manifest
from .tiling import load_tiling


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
    with holding(ports, replica) as fence:
        with ports.events.stage("plan"):
            plan = loads(PreparePlan, ports.once("plan", lambda: dumps(prepare_plan(ports, job, replica))), "plan")
            if not plan.links:
                return None
            policy = loads(Policy, ports.once("policy", lambda: dumps(ports.catalog.policy()[0])), "policy.json")
            manifest = plan.last
            tiling = load_tiling(ports, manifest.tiling, policy, manifest.policy_sha256, len(manifest.parts))
            check_fits(tiling, plan.layout, manifest.version)
            for link in plan.links:
                check_manifest(policy, link.manifest)
            what, record = f"record of replica {replica.directory}", plan.record
            check_digests(what, policy.tensors, record.tensors, record.state, RESTORE)
        lanes = _receive(ports, job, replica, policy, tiling, plan, fence)
        _check_state(policy, plan.record, manifest, lanes)
        raw = ports.once("prepared receipt", lambda: dumps(_seal(ports, job, replica, plan, tiling, fence)))
        return loads(Receipt, raw, "prepared receipt")


def _receive(
    ports: Ports, job: PrepareJob, replica: Replica, policy: Policy, tiling: Tiling, plan: PreparePlan, fence: Fence
) -> np.ndarray:
    """Relay and journal; returns the summed lanes of all ranks, uint64 (tensors, 2)."""
    manifest, entries = plan.last, bundles(plan.links)
    own = replica.journals(manifest.version, fence.epoch)
    earlier = [folder for folder in replica.sets(manifest.version) if folder.name < own.name]
    layout = plan.layout.layout
    journals: dict[int, JournalWriter] = {}
    with replica.checkpoint(layout) as checkpoint:
        try:
            inventories: dict[int, Inventory] = {}
            for shard in range(ports.comm.rank, len(layout.shards), ports.comm.size):
                inventories[shard] = checkpoint.inventory(shard)
                replica.check_size(inventories[shard], plan.record)
                binding = replica.binding(plan.binding, inventories[shard])
                journals[shard] = JournalWriter(journal(own, shard), binding, [journal(e, shard) for e in earlier])
            landing = landing_of(policy, tiling, plan.links, checkpoint, inventories, ports.kernels)
            missing = [
                landing.shards_of(k) - {s for s, j in journals.items() if k in j.done} for k in range(len(entries))
            ]
            _make_room(ports, replica, manifest, sum(e.changed for e in entries), any(missing), fence)
            total = sum(e.size for e, shards in zip(entries, missing, strict=True) if shards)
            progress = ports.events.progress(total, "refit")

            def consume(part: int, data: object) -> None:
                with ports.events.stage("decode", entries[part].size):
                    frames = landing.land(part, data, missing[part])
                with ports.events.stage("journal"):
                    for shard, frame in frames.items():
                        journals[shard].append(part, frame)

            with ports.events.stage("relay"):
                moved = relay(
                    ports.comm,
                    entries,
                    [bool(m) for m in missing],
                    lambda entry: fetch_bundle(ports.catalog, plan.links, entry, job.wait_s, job.poll_s),
                    consume,
                    degree=job.degree,
                    window=job.window,
                    moved=progress.add,
                )
            ports.events.emit("relayed", version=manifest.version, **moved)
            ports.events.note(version=manifest.version, **moved)
            with ports.events.stage("journal"):
                for writer in journals.values():
                    writer.finish()
            progress.done()
            return ports.comm.sum(_sum(journals, len(policy.tensors)), "state digest of the prepared version")
        finally:
            for writer in journals.values():
                writer.close()


def _make_room(ports: Ports, replica: Replica, manifest: Manifest, changed: int, missing: bool, fence: Fence) -> None:
    """Once every rank took over what unfinished tries hold, those go; there must be room for what is still to come.

    A finished set stays until this job's own is finished.
    """
    short = int(ports.comm.sum(np.array([missing], np.uint64), "parts missing")[0])
    if ports.comm.rank == 0:
        replica.drop_sets(manifest.version, fence.epoch, fence, sealed=False)
    if short and ports.comm.rank == 0:
        width = manifest.dense_bytes / max(manifest.elements, 1)
        need = int(min(manifest.dense_bytes, changed * (1 + width)))
        replica.check_room(need, "journals", f"{changed} changed words")
    ports.comm.barrier("room for the journals")


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


def _seal(ports: Ports, job: PrepareJob, replica: Replica, plan: PreparePlan, tiling: Tiling, fence: Fence) -> Receipt:
    """Rank 0, once every rank's journals are durable: the local receipt, then the store's; then older sets may go."""
    manifest = plan.last
    receipt = ports.receipt(
        "prepared",
        replica.site,
        manifest,
        plan.links[-1].sha256,
        detail={
            "layout": tiling.layouts[replica.site],
            "shards": len(plan.layout.layout.shards),
            "versions": [link.manifest.version for link in plan.links],
            "binding": plan.binding,
        },
    )
    receipt = dataclasses.replace(receipt, base=plan.record.version)
    replica.seal(manifest.version, receipt, fence)
    if job.report:
        ports.catalog.put_receipt(receipt)
    replica.drop_sets(manifest.version, fence.epoch, fence, sealed=True)
    return receipt
