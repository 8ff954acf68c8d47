"""restore: a replica rebuilt beside itself from an anchor and the chain; then only what differs is written into it.

What it starts from does not matter: flipped bytes, a torn apply whose journals are gone, a shard that is cut or
missing, a version so old that its chain was collected. The difference goes through a journal, so that a crash at any
point leaves a replica that is flagged, and that the same command brings home.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from .. import durable
from ..checkpoint import Checkpoint, by_name
from ..digest import block_digest, sha256
from ..dtypes import dtype
from ..errors import CorruptInput, DcrError, GeometryError, NotReady
from ..hdf5 import Inventory, region
from ..journal import Frame, JournalWriter, Patch
from ..jsonable import dumps, loads
from ..layout import Placement, make_tiles, tile_words
from ..lease import Fence
from ..model import Box, Layout, Policy, ReplicaRecord, Tile
from ..scratch import Scratch
from .apply import ApplyJob, apply
from .chain import missing_link
from .create import CreateJob, create_replica
from .holding import holding
from .ports import Ports
from .prepare_plan import PrepareJob
from .replay import replay
from .replica import Replica, journal
from .taking import is_within_reach
from .tiling import load_policy

_BLOCK = 1 << 18  # words that are compared, and journalled, at a time
_NAMED = 100  # ranges that are named; all are counted


@dataclass(frozen=True)
class RestoreJob:
    """What to restore: the replica at its own version, or (``forward``) at the newest committed one.

    ``write`` False: only find out what differs; the rebuilt copy stays, for the restore that follows.
    """

    site: str
    replica: Path
    forward: bool = False
    write: bool = True
    degree: int = 2
    window: int = 4


@dataclass(frozen=True)
class Damage:
    """A run of words that differ: ``start`` to ``stop`` of a box of a tensor, in the box's row-major order."""

    tensor: str
    box: Box
    start: int
    stop: int
    words: int
    shard: str


@dataclass(frozen=True)
class Restored:
    """``damage`` names the first ranges; ``ranges``, ``words`` and ``shards`` (made anew) count all of them."""

    version: int
    written: bool
    ranges: int
    words: int
    shards: tuple[str, ...]
    damage: tuple[Damage, ...]


@dataclass(frozen=True)
class _Plan:
    record: ReplicaRecord
    layout: Layout
    version: int
    manifest_sha256: str


def restore(ports: Ports, job: RestoreJob) -> Restored:
    """Bring a replica to exactly the bits of a committed version, whatever it holds. Every rank calls it.

    Raises
    ------
    NotReady
        No anchor at or before the version, or a link of the chain after it is gone.
    VerifyFailed
        What was rebuilt is not the version.
    """
    replica = Replica(job.replica, job.site)
    with holding(ports, replica) as fence:
        plan = ports.agree(_Plan, "plan", lambda: _plan(ports, job, replica))
        policy = load_policy(ports)
        aside = _rebuild(ports, job, replica, plan)
        with ports.events.stage("compare"):
            found = _compare(ports, job, replica, aside, policy, plan, fence)
        unfinished = plan.record.applying is not None or plan.record.version != plan.version
        due = job.write and bool(found.ranges or found.shards or unfinished)
        if due:
            _mark(ports, replica, aside, plan, found.shards, fence)
        if ports.comm.rank == 0 and not due:
            replica.drop_sets(plan.version, fence.epoch + 1, fence, sealed=False)
        if ports.comm.rank == 0 and job.write:  # the journals hold all that is needed
            shutil.rmtree(aside.directory, ignore_errors=True)
    if due:
        apply(ports, ApplyJob(job.site, job.replica, plan.version, full=True))
    return dataclasses.replace(found, written=due)


def _plan(ports: Ports, job: RestoreJob, replica: Replica) -> _Plan:
    record, catalog = replica.need(), ports.catalog
    layout = catalog.layout(job.site).layout
    replica.check_layout(record, layout)
    version = record.applying if record.applying is not None else record.version
    if job.forward:
        version = max(version, catalog.last_committed(catalog.last_opened(version))[0].version)
    decision = catalog.decision(version)
    if decision is None or not decision.commit:
        raise CorruptInput(
            f"record of {replica.directory}",
            found=f"version {version}",
            expected="a committed version",
            remedy="the record is another store's: check store.url",
        )
    return _Plan(record, layout, version, decision.manifest_sha256)


def _rebuild(ports: Ports, job: RestoreJob, replica: Replica, plan: _Plan) -> Replica:
    """The version in a directory beside the journals. An earlier try's is gone on from, or thrown away."""
    aside = Replica(replica.work / "rebuild", job.site)
    if ports.comm.rank == 0 and not _usable(ports, aside, plan):
        shutil.rmtree(aside.directory, ignore_errors=True)
    ports.comm.barrier("place to rebuild in")
    create_replica(ports, CreateJob(job.site, aside.directory, None, plan.version, job.degree, job.window))
    to = PrepareJob(job.site, aside.directory, degree=job.degree, window=job.window, until=plan.version, report=False)
    replay(ports, to, ApplyJob(job.site, aside.directory, report=False))
    record = ports.agree(ReplicaRecord, "rebuilt record", aside.need)
    if record.version != plan.version:
        raise NotReady(
            f"version {plan.version} from an anchor",
            found=f"a chain that ends at version {record.version}",
            expected=f"version {plan.version}",
            remedy="look at dcr status, and run this again",
        )
    return aside


def _usable(ports: Ports, aside: Replica, plan: _Plan) -> bool:
    """Whether there is nothing yet, or a whole replica on the way to the version, and a way from there."""
    try:
        record = aside.record()
    except DcrError:
        return False
    if record is None:
        return True
    gap = missing_link(ports.catalog, record.version, partial(is_within_reach, ports))
    if gap is not None and gap <= plan.version:
        return False  # there may be an anchor behind it by now
    sizes = {
        name: (aside.directory / name).stat().st_size for name in record.files if (aside.directory / name).exists()
    }
    return (
        record.version <= plan.version and record.layout_sha256 == plan.record.layout_sha256 and sizes == record.files
    )


def _compare(
    ports: Ports, job: RestoreJob, replica: Replica, aside: Replica, policy: Policy, plan: _Plan, fence: Fence
) -> Restored:
    """Hold every word against the rebuilt one; with ``job.write`` the difference is journalled, durably."""
    damage: list[Damage] = []
    anew: list[str] = []
    tiles = make_tiles(Policy("", policy.tensors, plan.layout), {})
    with replica.checkpoint(plan.layout) as mine, aside.checkpoint(plan.layout) as right:
        for shard in range(ports.comm.rank, len(plan.layout.shards), ports.comm.size):
            found = _whole(replica, mine, shard, plan.record)
            if found is None:
                anew.append(plan.layout.shards[shard].file)
            patches = _patches(ports, policy, tiles, mine, right, shard, found, damage)
            if not job.write:
                for _ in patches:
                    pass
                continue
            binding = replica.binding(_binding(plan), found or right.inventory(shard))
            writer = JournalWriter(journal(replica.journals(plan.version, fence.epoch), shard), binding)
            try:
                for number, patch in enumerate(patches):
                    writer.append(number, Frame({}, [patch]))
                writer.finish()
            finally:
                writer.close()
    mine_found = Restored(
        plan.version, False, len(damage), sum(d.words for d in damage), tuple(anew), tuple(damage[:_NAMED])
    )
    every = [loads(Restored, raw, "damage") for raw in ports.comm.allgather(dumps(mine_found), "damage of all ranks")]
    return dataclasses.replace(
        mine_found,
        ranges=sum(r.ranges for r in every),
        words=sum(r.words for r in every),
        shards=tuple(s for r in every for s in r.shards),
        damage=tuple(d for r in every for d in r.damage)[:_NAMED],
    )


def _binding(plan: _Plan) -> str:
    return sha256(f"restore\n{plan.manifest_sha256}".encode())


def _whole(replica: Replica, checkpoint: Checkpoint, shard: int, record: ReplicaRecord) -> Inventory | None:
    """The shard's inventory; None where it is no file that could be patched."""
    try:
        found = checkpoint.inventory(shard)
        replica.check_size(found, record)
    except (CorruptInput, GeometryError, NotReady):
        return None
    return found


def _patches(
    ports: Ports,
    policy: Policy,
    tiles: Sequence[Tile],
    mine: Checkpoint,
    right: Checkpoint,
    shard: int,
    found: Inventory | None,
    damage: list[Damage],
) -> Iterator[Patch]:
    """What makes a shard right, block by block; nothing for one that is made anew."""
    if found is None:
        return
    datasets, numbers = by_name(found), {d.path: k for k, d in enumerate(found.datasets)}
    placement, scratch = Placement(mine.layout, policy.tensors), Scratch()
    for tile in tiles:
        spec = policy.tensors[tile.tensor]
        for place in placement.find(tile.tensor, tile.box):
            if place.shard != shard:
                continue
            dataset, size = datasets[place.dataset], tile_words(tile, policy.tensors)
            for start in range(0, size, _BLOCK):
                count, width = min(_BLOCK, size - start), dtype(spec.dtype).word_bytes
                have, want = scratch.words("have", count, width), scratch.words("want", count, width)
                mine.read(place, start, start + len(have), have)
                right.read(place, start, start + len(have), want)
                offset, length = np.zeros(1, np.int64), np.array([len(have)], np.int64)
                changes = ports.kernels.changes(have, want, offset, length)
                if not len(changes.positions):
                    continue
                first, last = start + int(changes.positions[0]), start + int(changes.positions[-1]) + 1
                file, differ = mine.layout.shards[shard].file, len(changes.positions)
                damage.append(Damage(spec.name, tile.box, first, last, differ, file))
                gaps, far = ports.kernels.pack_gaps(changes.positions, changes.counts)
                where, number = region(dataset, place.box), numbers[dataset.path]
                assert dataset.offset is not None
                yield Patch(number, dataset.offset, where, start, len(have), block_digest(want), changes.new, gaps, far)


def _mark(ports: Ports, replica: Replica, aside: Replica, plan: _Plan, anew: Sequence[str], fence: Fence) -> None:
    """From here on the replica is *applying*; shards that cannot be patched (``anew``) are put in place whole.

    The journals have nothing for such a shard: they count as finished only once it is in place, so that an apply never
    takes whatever comes back under its name for the version.
    """
    if ports.comm.rank == 0:
        if not anew:
            _seal(ports, replica, plan, fence)
        replica.drop_sets(plan.version, fence.epoch, fence, sealed=True)
        replica.save(dataclasses.replace(plan.record, applying=plan.version), fence)
    ports.comm.barrier("mark of a replica being restored")
    for shard in plan.layout.shards[ports.comm.rank :: ports.comm.size]:
        if shard.file in anew:
            durable.copy(aside.directory / shard.file, replica.directory / shard.file, fence.check)
    ports.comm.barrier("shards that were no longer there")
    if ports.comm.rank == 0 and anew:
        _seal(ports, replica, plan, fence)


def _seal(ports: Ports, replica: Replica, plan: _Plan, fence: Fence) -> None:
    """The local receipt that finishes this repair's journals."""
    manifest, digest = ports.catalog.sealed(plan.version)
    receipt = ports.receipt("repaired", replica.site, manifest, digest, detail={"binding": _binding(plan)})
    replica.seal(plan.version, dataclasses.replace(receipt, base=None), fence)
