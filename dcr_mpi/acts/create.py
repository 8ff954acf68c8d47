"""Creating a replica: new shards in the site's layout, filled from an anchor in the store or from a checkpoint at hand.

Shards are written under temporary names and appear only when their whole state digest is right; the record, which
makes them a replica, comes last. A run that was interrupted leaves nothing that looks like a replica.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import durable
from ..catalog import check_policy
from ..checkpoint import Checkpoint
from ..codec import BucketReader, check_spans
from ..digest import block_digest, sha256
from ..dtypes import dtype
from ..errors import BaseMismatch, Conflict, CorruptInput, NotReady, VerifyFailed, from_os_error
from ..hdf5 import create_shard, region
from ..jsonable import dumps, loads
from ..layout import Placement, make_tiles, part_spans, tile_words, to_local, word_box
from ..model import Box, Layout, Manifest, Policy, ReplicaRecord, ShardLayout, SiteLayout, Tiling
from ..region import Region, region_of
from ..wire import unpack_part
from .ports import Ports
from .relay import relay
from .replica import Replica
from .state import checkpoint_lanes

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


def create_replica(ports: Ports, job: CreateJob) -> ReplicaRecord:
    """Create a site's replica at a committed version. Every rank calls it; a finished one is left alone.

    Raises
    ------
    Conflict
        The directory holds another replica, or shards that are no replica of ours.
    NotReady
        No anchor in the store (and no ``source`` given).
    VerifyFailed
        The new shards do not have the version's state digest; they are removed.
    """
    replica = Replica(job.replica, job.site)
    if ports.comm.rank == 0:
        durable.make_dirs(str(replica.work))
    lease = replica.lease() if ports.comm.rank == 0 else None
    try:
        plan = loads(_Plan, ports.once("plan", lambda: dumps(_plan(ports, job, replica))), "plan")
        policy = loads(Policy, ports.once("policy", lambda: dumps(ports.catalog.policy()[0])), "policy.json")
        if not plan.exists:
            _fill(ports, job, replica, policy, plan)
        raw = ports.once("replica record", lambda: dumps(replica.need()))
        return loads(ReplicaRecord, raw, "replica record")
    finally:
        if lease is not None:
            lease.release()


def _plan(ports: Ports, job: CreateJob, replica: Replica) -> _Plan:
    catalog = ports.catalog
    _, policy_sha = catalog.policy()
    layout = catalog.layout(job.site)
    check_policy(layout.policy_sha256, policy_sha, f"layout of site {job.site!r}")
    record = replica.record()
    if record is not None:
        check_policy(record.policy_sha256, policy_sha, f"replica {replica.directory}")
        if record.site != job.site or record.layout_sha256 != sha256(dumps(layout.layout)):
            raise Conflict(f"replica {replica.directory}", found=f"a replica of site {record.site!r}", expected=f"none, or one of {job.site!r}",
                           remedy="choose another directory, or remove this one first")  # fmt: skip
        return _Plan(policy_sha, layout, catalog.sealed(record.version)[0], True)
    for shard in layout.layout.shards:
        if (replica.directory / shard.file).exists():
            raise Conflict(f"{replica.directory / shard.file}", found="a file without a replica record", expected="an empty directory",
                           remedy="move it away: dcr-mpi never writes over files it did not make")  # fmt: skip
    if job.source is not None:
        newest, _ = catalog.last_committed(catalog.last_opened())
        manifest = newest if job.version is None else catalog.sealed(job.version)[0]
        return _Plan(policy_sha, layout, manifest, False)
    return _Plan(policy_sha, layout, newest_anchor(ports, job.version), False)


def newest_anchor(ports: Ports, version: int | None = None) -> Manifest:
    """The manifest of the newest anchor, or of the newest one at or before ``version``."""
    last = ports.catalog.last_opened() if version is None else version
    for number in range(last, -1, -1):
        found = ports.catalog.manifest(number, anchor=True)
        if found is not None:
            return found[0]
    raise NotReady(f"anchor of policy {ports.catalog.name!r}", found="none in the store", expected="one at or before "
                   f"version {last}", remedy="publish one at the trainer (dcr init --anchor), or name a checkpoint with --from")  # fmt: skip


def _fill(ports: Ports, job: CreateJob, replica: Replica, policy: Policy, plan: _Plan) -> None:
    layout = plan.layout.layout
    hidden = Layout(layout.name, tuple(ShardLayout(_TEMP + s.file, s.datasets) for s in layout.shards))
    mine = [s for s in range(len(layout.shards)) if s % ports.comm.size == ports.comm.rank]
    with ports.events.stage("create"):
        target = _Target(replica.directory, hidden, policy, mine)
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
                raise VerifyFailed(f"tensor {spec.name!r} of the new replica", found=have[:16], expected=f"{want[:16]} of version {plan.manifest.version}",
                                   remedy="the source is not that version: name the right one; the new shards were removed")  # fmt: skip
    except BaseException:
        target.discard()
        raise
    target.publish(layout)
    ports.comm.barrier("all new shards in place")
    if ports.comm.rank == 0:
        files = {s.file: (replica.directory / s.file).stat().st_size for s in layout.shards}
        m = plan.manifest
        replica.save(ReplicaRecord(job.site, plan.policy_sha256, sha256(dumps(layout)), m.version, m.state, m.tensors, files))


class _Target:
    """This rank's new shards: takes words of tiles and puts them wherever the layout keeps them."""

    def __init__(self, directory: Path, layout: Layout, policy: Policy, mine: Sequence[int]) -> None:
        self._directory, self._layout, self._policy, self._mine = directory, layout, policy, list(mine)
        self._fds: dict[int, int] = {}
        self._datasets = {}
        for shard in mine:
            path = directory / layout.shards[shard].file
            try:
                path.unlink(missing_ok=True)
                found = create_shard(path, layout.shards[shard])
                self._fds[shard] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise from_os_error(error, f"creating {path}") from error
            self._datasets.update({(shard, d.path): d for d in found.datasets})
        self._pieces: dict[str, list[tuple[int, Any, Any]]] = {}
        for shard in mine:
            for dataset in layout.shards[shard].datasets:
                for piece in dataset.pieces:
                    self._pieces.setdefault(piece.tensor, []).append((shard, dataset, piece))

    def needs(self, tensor: int, box: Box) -> bool:
        return any(p.canonical.meet(box) is not None for _, _, p in self._pieces.get(self._policy.tensors[tensor].name, []))

    def put(self, tensor: int, box: Box, start: int, words: np.ndarray) -> None:
        """Put words ``start...`` (in the row-major order of ``box``) of a tensor's box into every piece that meets it."""
        spec = self._policy.tensors[tensor]
        per = dtype(spec.dtype).words
        for shard, layout, piece in self._pieces.get(spec.name, []):
            common = piece.canonical.meet(box)
            if common is None:
                continue
            inside = Box(tuple(a - o for a, o in zip(common.start, box.start, strict=True)),
                         tuple(b - o for b, o in zip(common.stop, box.start, strict=True)))  # fmt: skip
            source = region_of(word_box(inside, per), box.shape if per == 1 else (*box.shape, per))
            low, high = first_at(source, start), first_at(source, start + len(words))
            if low >= high:
                continue
            first, last = source.span(low, high)
            picked = np.empty(high - low, words.dtype)
            source.gather(words[first - start : last - start], low, high, picked)
            dataset = self._datasets[shard, layout.path]
            where = region(dataset, to_local(piece, common))
            assert dataset.offset is not None
            _write_region(self._fds[shard], dataset.offset, where, low, picked)

    def sync(self) -> None:
        for shard, fd in self._fds.items():
            try:
                durable.sync(fd)
            except OSError as error:
                raise from_os_error(error, f"fsync of {self._layout.shards[shard].file}") from error

    def publish(self, layout: Layout) -> None:
        """Give the shards their names."""
        self._close()
        for shard in self._mine:
            durable.rename(str(self._directory / self._layout.shards[shard].file), str(self._directory / layout.shards[shard].file))

    def discard(self) -> None:
        self._close()
        for shard in self._mine:
            durable.remove(str(self._directory / self._layout.shards[shard].file))

    def _close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


def first_at(where: Region, offset: int) -> int:
    """The first word of a region that lies at ``offset`` or later (its size where none does): offsets grow with it."""
    low, high = 0, where.size
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if where.locate(middle) < offset else (low, middle)
    return low


def _write_region(fd: int, at: int, where: Region, start: int, words: np.ndarray) -> None:
    """Write words of a strided region of a new file, keeping what lies between them."""
    width = words.itemsize
    try:
        for a, b in where.windows(start, start + len(words), 1 << 22):
            first, last = where.span(a, b)
            window = np.empty(last - first, words.dtype)
            if last - first != b - a:
                _exactly(os.preadv(fd, [window.view(np.uint8)], at + first * width), window.nbytes)
            where.put(window, a, b, words[a - start : b - start])
            view = memoryview(window).cast("B")
            done = 0
            while done < len(view):
                done += os.pwrite(fd, view[done:], at + first * width + done)
    except OSError as error:
        raise from_os_error(error, "writing a new shard") from error


def _exactly(have: int, want: int) -> None:
    if have != want:
        raise CorruptInput("new shard", found=f"{have} bytes", expected=str(want), remedy="somebody cut it: run again")


def _from_checkpoint(ports: Ports, source: Path, policy: Policy, target: _Target) -> None:
    tiles = [t for t in make_tiles(policy, {}) if target.needs(t.tensor, t.box)]
    placement = Placement(policy.trainer, policy.tensors)
    widths = [dtype(policy.tensors[t.tensor].dtype).word_bytes for t in tiles]
    progress = ports.events.progress(sum(tile_words(t, policy.tensors) * w for t, w in zip(tiles, widths, strict=True)), "copy")
    with Checkpoint(source, policy.trainer) as checkpoint:
        for tile, width in zip(tiles, widths, strict=True):
            place, size, step = placement.find(tile.tensor, tile.box)[0], tile_words(tile, policy.tensors), _UNIT_BYTES // width
            for at in range(0, size, step):
                words = np.empty(min(step, size - at), f"<u{width}")
                checkpoint.read(place, at, at + len(words), words)
                target.put(tile.tensor, tile.box, at, words)
                progress.add(words.nbytes)
    progress.done()


def _from_anchor(ports: Ports, job: CreateJob, policy: Policy, manifest: Manifest, target: _Target) -> None:
    tiling = loads(Tiling, ports.once("tiling", lambda: dumps(ports.catalog.tiling(manifest.tiling))), "tiling")
    names = {t: policy.tensors[tile.tensor].dtype for t, tile in enumerate(tiling.tiles)}
    spans = [part_spans(tiling, policy.tensors, k) for k in range(len(manifest.parts))]
    needed = [any(target.needs(tiling.tiles[s.tile].tensor, tiling.tiles[s.tile].box) for s in some) for some in spans]
    progress = ports.events.progress(sum(e.size for e, n in zip(manifest.parts, needed, strict=True) if n), "anchor")

    def consume(part: int, data: Any) -> None:
        header, buckets = unpack_part(data, f"part {part} of anchor {manifest.version}")
        if (header.base, header.version, header.index) != (None, manifest.version, part) or header.policy.hex() != manifest.policy_sha256[:32]:
            raise BaseMismatch(f"part {part} of anchor {manifest.version}", found=f"a part of version {header.version}, base {header.base}",
                               expected="a part of this anchor", remedy="the store's objects were mixed up: publish the anchor again")  # fmt: skip
        for bucket in buckets:
            reader = BucketReader(bucket, anchor=True)
            check_spans(reader, spans[part], names)
            for tile, start, words in _whole_blocks(ports, reader, part):
                target.put(tiling.tiles[tile].tensor, tiling.tiles[tile].box, start, words)

    relay(ports.comm, manifest.parts, needed, ports.catalog.part, consume, degree=job.degree, window=job.window, moved=progress.add)
    progress.done()


def _whole_blocks(ports: Ports, reader: BucketReader, part: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """(tile, first word, words) of each block of an anchor's bucket, checked."""
    table = reader.table
    empty = np.zeros(table.length, f"<u{reader.dtype.word_bytes}")
    words, _ = reader.decode(np.arange(len(table)), empty, ports.kernels)
    for block in range(len(table)):
        if block_digest(table.view(words, block)) != reader.target[block]:
            raise CorruptInput(f"part {part} of the anchor, block {block}", found="another digest", expected="the one in the part")
        yield table.spans[table.span[block]].tile, int(table.start[block]), table.view(words, block)
