"""prepare: fetch, relay and decode the next version into a durable journal. The weights are only read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..digest import Lanes, add, lanes_hex, lanes_of, sha256
from ..errors import BaseMismatch, CorruptInput, NotReady, Overtaken, VerifyFailed
from ..hdf5 import Inventory
from ..journal import JournalWriter
from ..lease import Fence
from ..model import Layout, Manifest, Open, PartEntry, Policy, Receipt, ReplicaRecord, Tiling
from ..waiting import wait_for
from .chain import Link, bundles, fetch_bundle, opening
from .folding import landing_of
from .holding import holding
from .ports import Ports
from .prepare_plan import PrepareJob, PreparePlan, check_fits, check_not_aborted, prepare_plan
from .publish import part_bytes
from .relay import relay
from .replica import RESTORE, Replica, journal
from .state import check_digests, check_manifest
from .stream import Awaited, Turn, other_than_sealed
from .stream import fetch as fetch_announced
from .taking import Supply, explain, find_supply
from .tiling import inventories, load_layout, load_policy, load_tiling, placement

_HEADERS = 1 << 20  # bytes of a part besides its words, at the very most
_NOTHING = b""  # no part is empty


def prepare(ports: Ports, job: PrepareJob) -> Receipt | None:
    """Prepare a version at one site. Every rank calls it; running it again fetches only what is missing.

    A version that is not sealed yet is followed while its publisher encodes it, if the job may wait.

    Returns
    -------
    Receipt or None
        The prepared receipt; None where the replica holds the newest committed version already.

    Raises
    ------
    NotReady
        No replica, no such version yet, its publisher fell silent, or an apply that was interrupted.
    BaseMismatch
        The replica is at another version, of another policy, or holds other bytes. It is untouched.
    GeometryError
        The version was not cut for this site's layout.
    Overtaken
        The version was aborted, or is sealed with other parts than were announced.
    CorruptInput, VerifyFailed
        A part is not what the manifest says, or does not decode to the target.
    """
    replica = Replica(job.replica, job.site)
    with holding(ports, replica) as fence:
        with ports.events.stage("plan"):
            plan = ports.agree(PreparePlan, "plan", lambda: prepare_plan(ports, job, replica))
            if (opened := plan.opened) is None:
                return None
            policy = load_policy(ports)
            tiling = load_tiling(ports, opened.tiling, policy, opened.policy_sha256, opened.parts)
            layout = load_layout(ports, job.site)
            check_fits(tiling, layout, opened.version)
            for link in plan.links:
                check_manifest(policy, link.manifest)
            what, record = f"record of replica {replica.directory}", plan.record
            check_digests(what, policy.tensors, record.tensors, record.state, RESTORE)
        supply = find_supply(ports, job, opened, plan.links)
        taken, lanes, came = _receive(ports, job, replica, policy, tiling, layout.layout, plan, opened, supply, fence)
        sealed = plan.links or (_sealed(ports, job, policy, opened),)
        if not plan.links:
            other = other_than_sealed(taken, sealed[0].manifest.parts, opened.version)
            ports.keep_in_step(other, "parts as they were sealed")
        _check_state(policy, plan.record, sealed[-1].manifest, lanes)
        return ports.agree(
            Receipt,
            "prepared receipt",
            lambda: _seal(ports, job, replica, plan, sealed, tiling, layout.layout, came, fence),
        )


def _sealed(ports: Ports, job: PrepareJob, policy: Policy, opened: Open) -> Link:
    """The manifest of the version that was followed, once there is one."""
    catalog, version = ports.catalog, opened.version

    def look() -> tuple[Manifest, str] | None:
        check_not_aborted(catalog, version)
        return catalog.manifest(version)

    def wait() -> Link:
        found = wait_for(f"manifest of version {version}", look, job.wait_s, job.poll_s)
        if opening(found[0]) != opened:
            raise CorruptInput(
                f"manifest of version {version}",
                found="one of another announcement",
                expected="that of the version that was followed",
                remedy="somebody wrote it who is no dcr encode: look at who may write to the store",
            )
        return Link(*found)

    with ports.events.stage("manifest"):
        link = ports.agree(Link, f"manifest of version {version}", wait)
    check_manifest(policy, link.manifest)
    return link


def _receive(
    ports: Ports,
    job: PrepareJob,
    replica: Replica,
    policy: Policy,
    tiling: Tiling,
    layout: Layout,
    plan: PreparePlan,
    opened: Open,
    supply: Supply | None,
    fence: Fence,
) -> tuple[set[tuple[int, str]], np.ndarray, dict[str, int]]:
    """Relay and journal: what this rank's journals are made of, as (part, its SHA-256), the summed lanes of all
    ranks, uint64 (tensors, 2), and bytes by the way they came, over all ranks, where there are two."""
    entries: Sequence[PartEntry | Awaited] = bundles(plan.links) or [Awaited(k) for k in range(opened.parts)]
    sources = {k: e.sha256 for k, e in enumerate(entries) if isinstance(e, PartEntry)}
    sizes = [] if plan.links else [part_bytes(tiling, policy, k) for k in range(opened.parts)]
    direct = ports.inlet.taken if ports.inlet is not None else 0
    own = replica.journals(opened.version, fence.epoch)
    earlier = [folder for folder in replica.sets(opened.version) if folder.name < own.name]
    journals: dict[int, JournalWriter] = {}
    with replica.checkpoint(layout, inventories(ports)) as checkpoint:
        try:
            listed: dict[int, Inventory] = {}
            for shard in range(ports.comm.rank, len(layout.shards), ports.comm.size):
                listed[shard] = checkpoint.inventory(shard)
                replica.check_size(listed[shard], plan.record)
                binding = replica.binding(plan.binding, listed[shard])
                older = [journal(e, shard) for e in earlier]
                journals[shard] = JournalWriter(journal(own, shard), binding, older, sources if plan.links else None)
            where = placement(ports, job.site, layout, policy)
            landing = landing_of(policy, tiling, opened, plan.links, checkpoint, listed, ports.kernels, where)
            missing = [
                landing.shards_of(k) - {s for s, j in journals.items() if k in j.done} for k in range(len(entries))
            ]
            _make_room(ports, replica, plan, any(missing), fence)
            total = sum(e.size or 0 for e, shards in zip(entries, missing, strict=True) if shards)
            progress = ports.events.progress(total, "refit", opened.version)
            overtaken: list[Overtaken] = []
            turn = Turn()

            def fetch(entry: PartEntry | Awaited) -> bytes:
                if overtaken:  # nor is there any later part to wait for
                    return _NOTHING
                try:
                    return _fetch(ports, job, plan, opened, supply, sizes, entry, turn)
                except Overtaken as error:
                    overtaken.append(error)
                    return _NOTHING  # travels in place of the part, so that all transfers end

            def consume(part: int, data: Any) -> None:
                if data == _NOTHING:
                    return
                with ports.events.stage("decode", len(data)), _said_of(plan):
                    frames = landing.land(part, data, missing[part])
                source = sources.get(part) or sha256(data)
                with ports.events.stage("journal"):
                    for shard, frame in frames.items():
                        journals[shard].append(part, dataclasses.replace(frame, source=source))

            with ports.events.stage("relay"):
                moved = relay(
                    ports.comm,
                    entries,
                    [bool(m) for m in missing],
                    fetch,
                    consume,
                    degree=job.degree,
                    window=job.window,
                    wait_s=job.wait_s,
                    moved=progress.add,
                )
            if not plan.links:
                ports.keep_in_step(next(iter(overtaken), None), "version that was followed")
            if ports.inlet is not None:
                moved |= {"direct": ports.inlet.taken - direct}
            ports.events.emit("relayed", version=opened.version, **moved)
            ports.events.note(version=opened.version, **moved)
            with ports.events.stage("journal"):
                for writer in journals.values():
                    writer.finish()
            progress.done()
            taken = {(part, source) for writer in journals.values() for part, source, _ in writer.frames}
            lanes = ports.comm.sum(_sum(journals, len(policy.tensors)), "state digest of the prepared version")
            return taken, lanes, _ways(ports, moved)
        finally:
            for writer in journals.values():
                writer.close()


def _ways(ports: Ports, moved: dict[str, int]) -> dict[str, int]:
    if ports.inlet is None:
        return {}
    mine = np.array([moved["direct"], moved["fetched"] - moved["direct"]], np.uint64)
    return dict(zip(("direct", "store"), map(int, ports.comm.sum(mine, "bytes by their way")), strict=True))


@contextmanager
def _said_of(plan: PreparePlan) -> Iterator[None]:
    """An error about a part that was only announced says so: the replica may be right, and the part nobody's."""
    try:
        yield
    except (BaseMismatch, CorruptInput, VerifyFailed) as error:
        if plan.links:
            raise
        remedy = (
            "the part was announced, not sealed: run dcr refit again once the version is sealed. If it says so then: "
        )
        raise type(error)(
            error.what, found=error.found, expected=error.expected, remedy=remedy + error.remedy
        ) from None


def _fetch(
    ports: Ports,
    job: PrepareJob,
    plan: PreparePlan,
    opened: Open,
    supply: Supply | None,
    sizes: Sequence[int],
    entry: PartEntry | Awaited,
    turn: Turn,
) -> bytes:
    """A part or bundle; ``sizes`` are the dense bytes that each part covers."""
    sealed = entry if isinstance(entry, PartEntry) else None
    # Dense coding of words that zstd cannot make smaller, and its tables.
    limit = sealed.size if sealed is not None else 2 * sizes[entry.index] + _HEADERS
    if supply is not None:
        return supply.take(entry.index, sealed, limit)
    try:
        if sealed is not None:
            return fetch_bundle(ports.catalog, plan.links, sealed, job.wait_s, job.poll_s)
        return fetch_announced(ports.catalog, opened.version, entry.index, limit, job.wait_s, job.poll_s, turn)
    except NotReady as error:
        raise explain(ports, opened, plan.links, entry.index, error) from None


def _make_room(ports: Ports, replica: Replica, plan: PreparePlan, missing: bool, fence: Fence) -> None:
    """Once every rank took over what unfinished tries hold, those go; there must be room for what is still to come,
    where that is known.

    A finished set stays until this job's own is finished.
    """
    assert plan.opened is not None
    short = int(ports.comm.sum(np.array([missing], np.uint64), "parts missing")[0])
    if ports.comm.rank == 0:
        replica.drop_sets(plan.opened.version, fence.epoch, fence, sealed=False)
    if short and plan.links and ports.comm.rank == 0:
        manifest, changed = plan.links[-1].manifest, sum(link.manifest.changed for link in plan.links)
        width = manifest.dense_bytes / max(manifest.elements, 1)
        need = int(min(manifest.dense_bytes, changed * (1 + width)))
        replica.check_room(need, "journals", f"{changed} changed words")
    ports.comm.barrier("room for the journals")


def _sum(journals: dict[int, JournalWriter], tensors: int) -> np.ndarray:
    total: dict[int, Lanes] = {}
    for writer in journals.values():
        for _, _, lanes in writer.frames:
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


def _seal(
    ports: Ports,
    job: PrepareJob,
    replica: Replica,
    plan: PreparePlan,
    sealed: Sequence[Link],
    tiling: Tiling,
    layout: Layout,
    came: dict[str, int],
    fence: Fence,
) -> Receipt:
    """Rank 0, once every rank's journals are durable: the local receipt, then the store's; then older sets may go."""
    manifest = sealed[-1].manifest
    receipt = ports.receipt(
        "prepared",
        replica.site,
        manifest,
        sealed[-1].sha256,
        detail={
            "layout": tiling.layouts[replica.site],
            "shards": len(layout.shards),
            "versions": [link.manifest.version for link in sealed],
            "binding": plan.binding,
            **({"fetched": came} if came else {}),
        },
    )
    receipt = dataclasses.replace(receipt, base=plan.record.version)
    replica.seal(manifest.version, receipt, fence)
    if job.report:
        ports.catalog.put_receipt(receipt)
    replica.drop_sets(manifest.version, fence.epoch, fence, sealed=True)
    return receipt
