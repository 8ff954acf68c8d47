"""Creating a replica: new shards in the site's layout, filled from an anchor in the store or from a checkpoint at hand.

Shards are written under temporary names and appear only when their whole state digest is right; the record, which
makes them a replica, comes last. A run that was interrupted leaves nothing that looks like a replica.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import durable
from ..catalog import check_policy
from ..checkpoint import Checkpoint
from ..codec import BucketReader, Cover
from ..digest import block_digest, content_sha256
from ..dtypes import dtype
from ..errors import BaseMismatch, Conflict, CorruptInput, NotReady, VerifyFailed
from ..layout import Placement, check_layout, make_tiles, part_spans, tile_words
from ..lease import Fence
from ..model import Hold, Layout, Manifest, Policy, ReplicaRecord, ShardLayout, SiteLayout
from ..wire import PartHeader, unpack_part
from .anchor import check_anchor
from .holding import holding
from .ports import Ports
from .relay import relay
from .replica import RESTORE, Replica
from .state import check_manifest, checkpoint_lanes
from .target import ShardTarget
from .tiling import load_policy, load_tiling

_TEMP = ".dcr-new-"
_UNIT_BYTES = 16 << 20


@dataclass(frozen=True)
class CreateJob:
    """``source`` None: the newest anchor in the store; else a checkpoint directory in the trainer's layout that holds
    ``version`` (None: the newest committed one; its state digest is checked)."""

    site: str
    replica: Path
    source: Path | None = None
    version: int | None = None
    degree: int = 2
    window: int = 4


@dataclass(frozen=True)
class _Plan:
    policy_sha256: str
    layout: SiteLayout
    manifest: Manifest
    exists: bool


def create_replica(ports: Ports, job: CreateJob) -> tuple[ReplicaRecord, bool]:
    """Create a site's replica at a committed version: its record, and whether it was created now.

    Every rank calls it; a finished replica is left alone, and its bits are not looked at.

    Raises
    ------
    Conflict
        The directory holds another replica, or shards that are no replica of ours.
    NotReady
        No anchor in the store (and no ``source`` given).
    ResourceError
        No room for the shards: found before one is begun.
    VerifyFailed
        The new shards do not have the version's state digest; they are removed.
    """
    replica = Replica(job.replica, job.site)
    with holding(ports, replica, new=True) as fence:
        plan = ports.agree(_Plan, "plan", lambda: _plan(ports, job, replica))
        policy = load_policy(ports)
        check_manifest(policy, plan.manifest)
        if not plan.exists:
            if ports.comm.rank == 0:
                hold = Hold(job.site, plan.policy_sha256, plan.manifest.version)
                ports.catalog.put_hold(hold)
            _fill(ports, job, replica, policy, plan, fence)
        return ports.agree(ReplicaRecord, "replica record", replica.need), not plan.exists


def _plan(ports: Ports, job: CreateJob, replica: Replica) -> _Plan:
    catalog = ports.catalog
    policy, policy_sha = catalog.policy()
    layout = catalog.layout(job.site)
    check_policy(layout.policy_sha256, policy_sha, f"layout of site {job.site!r}")
    for known in (policy.trainer, layout.layout):  # whoever wrote them: files are named after them from here on
        check_layout(known, policy.tensors)
    record = replica.record()
    if record is not None:
        check_policy(record.policy_sha256, policy_sha, f"replica {replica.directory}")
        if record.site != job.site or record.layout_sha256 != content_sha256(layout.layout):
            raise Conflict(
                f"replica {replica.directory}",
                found=f"a replica of site {record.site!r}",
                expected=f"none, or one of {job.site!r}",
                remedy="choose another directory, or remove this one first",
            )
        check_replica(replica, record, layout.layout)
        if job.source is not None and record.version != (asked := _held(ports, job).version):
            raise Conflict(
                f"replica {replica.directory}",
                found=f"a replica at version {record.version}",
                expected=f"none, to fill one at version {asked} from a checkpoint",
                remedy="remove the directory first, or leave --from out",
            )
        durable.remove(replica.work / "creating")  # a run that died just before left it
        return _Plan(policy_sha, layout, catalog.sealed(record.version)[0], True)
    ours = replica.creating() == _creating(layout.layout)
    for shard in layout.layout.shards:
        if (replica.directory / shard.file).exists() and not ours:
            raise Conflict(
                f"{replica.directory / shard.file}",
                found="a file without a replica record",
                expected="an empty directory",
                remedy="move it away: dcr-mpi never writes over files it did not make",
            )
    for left in replica.directory.glob(_TEMP + "*"):  # of a job that died: were it alive, it could not publish them now
        durable.remove(left)
    manifest = _held(ports, job) if job.source is not None else newest_anchor(ports, job.version)
    replica.check_room(_bytes(layout.layout), "new shards", f"version {manifest.version} in layout {job.site!r}")
    return _Plan(policy_sha, layout, manifest, False)


def _held(ports: Ports, job: CreateJob) -> Manifest:
    """The version that a job says its checkpoint holds."""
    if job.version is not None:
        return ports.catalog.sealed(job.version)[0]
    return ports.catalog.last_committed(ports.catalog.last_opened())[0]


def _bytes(layout: Layout) -> int:
    """What a layout's datasets take, padding and repeated tensors included."""
    datasets = (d for shard in layout.shards for d in shard.datasets)
    return sum(math.prod(d.shape) * dtype(d.dtype).itemsize for d in datasets)


def _creating(layout: Layout) -> str:
    return content_sha256(layout)


def check_replica(replica: Replica, record: ReplicaRecord, layout: Layout) -> None:
    """Raise NotReady or CorruptInput unless a recorded replica has all its files, and no apply was interrupted."""
    if record.applying is not None:
        raise NotReady(
            f"replica {replica.directory}",
            found=f"an interrupted apply of version {record.applying}",
            expected="a whole version",
            remedy="run dcr apply: it rolls forward from the journal",
        )
    for shard in layout.shards:
        path = replica.directory / shard.file
        size = path.stat().st_size if path.is_file() else None
        if size != record.files.get(shard.file):
            raise CorruptInput(
                f"replica shard {path}",
                found="no such file" if size is None else f"{size} bytes",
                expected=f"{record.files.get(shard.file)} bytes, as recorded",
                remedy=RESTORE,
            )


def newest_anchor(ports: Ports, version: int | None = None) -> Manifest:
    """The manifest of the newest anchor, or of the newest one at or before ``version``."""
    catalog = ports.catalog
    last = catalog.last_committed(catalog.last_opened())[0].version if version is None else version
    for number in range(last, -1, -1):
        found = ports.catalog.manifest(number, anchor=True)
        if found is not None:
            sealed = ports.catalog.manifest(number)  # None where it was collected since
            if sealed is not None:
                check_anchor(found[0], sealed[0])
            return found[0]
    raise NotReady(
        f"anchor of policy {ports.catalog.name!r}",
        found="none in the store",
        expected=f"one at or before version {last}",
        remedy="run dcr init --checkpoint at the trainer without --no-anchor, or give the newest version with --from",
    )


def _fill(ports: Ports, job: CreateJob, replica: Replica, policy: Policy, plan: _Plan, fence: Fence) -> None:
    layout, temporary = plan.layout.layout, f"{_TEMP}{fence.epoch:08d}-"
    hidden = Layout(layout.name, tuple(ShardLayout(temporary + s.file, s.datasets) for s in layout.shards))
    mine = [s for s in range(len(layout.shards)) if s % ports.comm.size == ports.comm.rank]
    with ports.events.stage("create"):
        target = ShardTarget(replica.directory, hidden, policy, mine)
    try:
        with ports.events.stage("fill"):
            if job.source is not None:
                _from_checkpoint(ports, job.source, policy, target)
            else:
                _from_anchor(ports, job, policy, plan.manifest, target)
            target.sync()
        ports.comm.barrier("all new shards filled")
        with ports.events.stage("verify"), Checkpoint(replica.directory, hidden) as fresh:
            lanes = checkpoint_lanes(ports, fresh, policy.tensors)
        for spec, have, want in zip(policy.tensors, lanes, plan.manifest.tensors, strict=True):
            if have != want:
                raise VerifyFailed(
                    f"tensor {spec.name!r} of the new replica",
                    found=have[:16],
                    expected=f"{want[:16]} of version {plan.manifest.version}",
                    remedy="the source is not that version: name the right one; the new shards were removed",
                )
    except BaseException:
        target.discard()
        raise
    if ports.comm.rank == 0:
        replica.mark_creating(_creating(layout), fence)
    ports.comm.barrier("mark of a replica being created")
    target.publish(layout, fence.check)
    ports.comm.barrier("all new shards in place")
    if ports.comm.rank == 0:
        files = {s.file: (replica.directory / s.file).stat().st_size for s in layout.shards}
        m = plan.manifest
        record = ReplicaRecord(
            job.site, plan.policy_sha256, content_sha256(layout), m.version, m.state, m.tensors, files
        )
        replica.save(record, fence)
        fence.check()
        durable.remove(replica.work / "creating")


def _from_checkpoint(ports: Ports, source: Path, policy: Policy, target: ShardTarget) -> None:
    tiles = [t for t in make_tiles(policy, {}) if target.needs(t.tensor, t.box)]
    placement = Placement(policy.trainer, policy.tensors)
    widths = [dtype(policy.tensors[t.tensor].dtype).word_bytes for t in tiles]
    progress = ports.events.progress(
        sum(tile_words(t, policy.tensors) * w for t, w in zip(tiles, widths, strict=True)), "copy"
    )
    with Checkpoint(source, policy.trainer) as checkpoint:
        for tile, width in zip(tiles, widths, strict=True):
            place, size, step = (
                placement.find(tile.tensor, tile.box)[0],
                tile_words(tile, policy.tensors),
                _UNIT_BYTES // width,
            )
            for at in range(0, size, step):
                ports.comm.heed()
                words = np.empty(min(step, size - at), f"<u{width}")
                checkpoint.read(place, at, at + len(words), words)
                target.put(tile.tensor, tile.box, at, words)
                progress.add(words.nbytes)
    progress.done()


def _from_anchor(ports: Ports, job: CreateJob, policy: Policy, manifest: Manifest, target: ShardTarget) -> None:
    tiling = load_tiling(ports, manifest.tiling, policy, manifest.policy_sha256, len(manifest.parts))
    names = {t: policy.tensors[tile.tensor].dtype for t, tile in enumerate(tiling.tiles)}
    spans = [part_spans(tiling, policy.tensors, k) for k in range(len(manifest.parts))]
    needed = [any(target.needs(tiling.tiles[s.tile].tensor, tiling.tiles[s.tile].box) for s in some) for some in spans]
    progress = ports.events.progress(sum(e.size for e, n in zip(manifest.parts, needed, strict=True) if n), "anchor")

    def consume(part: int, data: Any) -> None:
        what = f"part {part} of anchor {manifest.version}"
        cover = Cover(what, spans[part], names, tiling.block)
        header, buckets = unpack_part(data, what, cover.buckets)
        m = manifest
        if header != PartHeader.bound(m.policy_sha256, m.tiling, m.version, None, part, len(buckets)):
            raise BaseMismatch(
                what,
                found=f"a part of version {header.version}, base {header.base}, index {header.index}",
                expected="a part of this anchor",
                remedy="the store's objects were mixed up: publish the anchor again",
            )
        readers = [BucketReader(bucket, anchor=True) for bucket in buckets]
        for reader in readers:
            cover.take(reader)
        cover.finish()
        for reader in readers:
            for tile, start, words in _whole_blocks(ports, reader, part):
                target.put(tiling.tiles[tile].tensor, tiling.tiles[tile].box, start, words)

    relay(
        ports.comm,
        manifest.parts,
        needed,
        ports.catalog.contents.part,
        consume,
        degree=job.degree,
        window=job.window,
        moved=progress.add,
    )
    progress.done()


def _whole_blocks(ports: Ports, reader: BucketReader, part: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """(tile, first word, words) of each block of an anchor's bucket, checked."""
    table = reader.table
    empty = np.zeros(table.length, f"<u{reader.dtype.word_bytes}")
    words, _ = reader.decode(empty, ports.kernels)
    for block in range(len(table)):
        if block_digest(table.view(words, block)) != reader.target[block]:
            raise CorruptInput(
                f"part {part} of the anchor, block {block}", found="another digest", expected="the one in the part"
            )
        yield table.spans[table.span[block]].tile, int(table.start[block]), table.view(words, block)
