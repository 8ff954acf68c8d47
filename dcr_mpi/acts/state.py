"""The state digest of a whole checkpoint, on any layout, over all ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..checkpoint import Checkpoint
from ..digest import lanes_hex, lanes_of, state_digest
from ..dtypes import dtype
from ..errors import BaseMismatch, CorruptInput, VerifyFailed
from ..hdf5 import listed_by, shard_names
from ..jsonable import dumps
from ..layout import Place, Placement, geometry_rows, make_tiles, tile_region, tile_words
from ..model import Manifest, Policy, TensorSpec, Tile
from .ports import Ports

_UNIT_BYTES = 16 << 20


@dataclass(frozen=True)
class _Unit:
    """Words ``start..stop`` of one place of one tile: what a rank reads at a time."""

    tile: int
    copy: int
    place: Place
    start: int
    stop: int
    bytes: int


def check_checkpoint(ports: Ports, checkpoint: Checkpoint) -> int | None:
    """Check that a directory holds exactly the layout's shards, whole, fitting and all of one step, which is returned.

    Every rank lists its share of the shards; all learn what is wrong with any, and what is in all of them: where many
    ranks each listed every shard, a file system would have as many to open as there are pairs.

    Raises
    ------
    NotReady, GeometryError, CorruptInput
        A shard is missing, extra, incomplete, of another shape, or of another step.
    """
    shards = checkpoint.layout.shards
    if ports.comm.rank == 0:
        shard_names(checkpoint.directory, [s.file for s in shards])
    mine = [checkpoint.inventory(k) for k in range(ports.comm.rank, len(shards), ports.comm.size)]
    said = dumps([all(map(checkpoint.is_known, range(len(shards)))), [found.step for found in mine]])
    told = list(map(json.loads, ports.comm.allgather(said, "steps of all shards")))
    if not all(known for known, _ in told):
        for rank, raw in enumerate(ports.comm.allgather(dumps(mine), "what is in all shards")):
            theirs = mine if rank == ports.comm.rank else listed_by(raw)
            for shard, found in zip(range(rank, len(shards), ports.comm.size), theirs, strict=True):
                checkpoint.take(shard, found)
    steps = {step for _, theirs in told for step in theirs}
    if len(steps) > 1:
        raise CorruptInput(
            f"shard set {checkpoint.directory}",
            found=f"steps {sorted(map(str, steps))[:5]}",
            expected="one step in all shards",
            remedy="the shards are from different steps: write them all again",
        )
    return next(iter(steps), None)


def check_digests(what: str, tensors: Sequence[TensorSpec], digests: Sequence[str], state: str, remedy: str) -> None:
    """Raise CorruptInput unless there is a digest for every tensor, and the state is what follows from them."""
    if len(digests) != len(tensors) or state_digest(tensors, digests) != state:
        raise CorruptInput(
            what,
            found=f"state {state[:16]} and {len(digests)} tensor digests",
            expected=f"{len(tensors)} digests, and the state that follows from them",
            remedy=remedy,
        )
    for digest in digests:
        lanes_of(digest)


def check_manifest(policy: Policy, manifest: Manifest) -> None:
    """What a manifest says of the target must follow from its tensors' digests; raises CorruptInput."""
    remedy = "abort this version (dcr commit --abort) and encode the next"
    what = f"manifest of version {manifest.version}"
    check_digests(what, policy.tensors, manifest.tensors, manifest.state, remedy)


def check_lanes(
    what: str, tensors: Sequence[TensorSpec], lanes: Sequence[str], manifest: Manifest, remedy: str
) -> None:
    """Raise BaseMismatch unless a checkpoint's lanes are those of the version; names the first tensor that differs."""
    for spec, have, want in zip(tensors, lanes, manifest.tensors, strict=True):
        if have != want:
            raise BaseMismatch(
                what,
                found=f"tensor {spec.name!r} with digest {have[:16]}",
                expected=f"{want[:16]}, as in version {manifest.version}",
                remedy=remedy,
            )


def checkpoint_lanes(
    ports: Ports,
    checkpoint: Checkpoint,
    tensors: Sequence[TensorSpec],
    label: str = "verify",
    only_copied: bool = False,
) -> list[str]:
    """State digest lanes of every tensor, as hex, in the tensors' order, the same on every rank.

    Every place of every tile is read; where a layout keeps a tile more than once, all copies must be equal.
    ``only_copied``: only such tiles are read, and the lanes are of those.

    Raises
    ------
    VerifyFailed
        Two copies of one tile differ; names tensor, box and shards.
    """
    tiles = make_tiles(Policy("", tuple(tensors), checkpoint.layout), {})
    placement = Placement(checkpoint.layout, tensors)
    places = [placement.find(tile.tensor, tile.box) for tile in tiles]
    copied = [i for i, p in enumerate(places) if len(p) > 1]
    units = _units(copied if only_copied else range(len(tiles)), tiles, places, tensors)
    row = {(tile, copy): k for k, (tile, copy) in enumerate((t, c) for t in copied for c in range(len(places[t])))}
    sums = np.zeros((len(tensors) + len(row), 2), np.uint64)
    if checkpoint.everywhere:
        total = sum(u.bytes for u in units)
        edges = [total * r // ports.comm.size for r in range(ports.comm.size + 1)]
        mine = _slice(units, edges[ports.comm.rank], edges[ports.comm.rank + 1])
    else:
        mine = [u for u in units if checkpoint.holds(u.place.shard)]
    progress = ports.events.progress(sum(u.bytes for u in mine), label)
    buffer = np.empty(_UNIT_BYTES, np.uint8)
    for unit in mine:
        ports.comm.heed()
        lanes = _unit_lanes(ports, checkpoint, tensors, tiles[unit.tile], unit, buffer)
        if unit.copy == 0:
            sums[tiles[unit.tile].tensor] += lanes
        if (unit.tile, unit.copy) in row:
            sums[len(tensors) + row[unit.tile, unit.copy]] += lanes
        progress.add(unit.bytes)
    progress.done()
    sums = ports.comm.sum(sums, "state digest")
    for (tile, copy), k in row.items():
        if bool((sums[len(tensors) + k] != sums[len(tensors) + row[tile, 0]]).any()):
            first, other = places[tile][0], places[tile][copy]
            files = [f"{p.dataset!r} of {checkpoint.path(p.shard)}" for p in (first, other)]
            raise VerifyFailed(
                f"tensor {tensors[tiles[tile].tensor].name!r}, box {tiles[tile].start}..{tiles[tile].stop}",
                found=f"different bytes in {files[0]} and {files[1]}",
                expected="equal copies",
                remedy="find out which writer is wrong: a replicated tensor has one value",
            )
    return [lanes_hex((int(a), int(b))) for a, b in sums[: len(tensors)]]


def _units(
    numbers: Iterable[int], tiles: Sequence[Tile], places: Sequence[Sequence[Place]], tensors: Sequence[TensorSpec]
) -> list[_Unit]:
    """The units of some tiles, ordered by shard, so that a rank's share touches few shards."""
    units = []
    for number in numbers:
        tile = tiles[number]
        width = dtype(tensors[tile.tensor].dtype).word_bytes
        step, size = _UNIT_BYTES // width, tile_words(tile, tensors)
        for copy, place in enumerate(places[number]):
            for at in range(0, size, step):
                stop = min(at + step, size)
                units.append(_Unit(number, copy, place, at, stop, (stop - at) * width))
    return sorted(units, key=lambda u: (u.place.shard, u.tile, u.copy, u.start))


def _slice(units: Sequence[_Unit], low: int, high: int) -> list[_Unit]:
    """The units that begin in bytes ``low..high`` of all units laid end to end."""
    at, mine = 0, []
    for unit in units:
        if low <= at < high:
            mine.append(unit)
        at += unit.bytes
    return mine


def _unit_lanes(
    ports: Ports, checkpoint: Checkpoint, tensors: Sequence[TensorSpec], tile: Tile, unit: _Unit, buffer: np.ndarray
) -> np.ndarray:
    words = buffer[: unit.bytes].view(f"u{dtype(tensors[tile.tensor].dtype).word_bytes}")
    checkpoint.read(unit.place, unit.start, unit.stop, words)
    geometry = geometry_rows([tile_region(tile, tensors)], np.array([unit.start]))
    return ports.kernels.state_words(geometry, words, np.zeros(1, np.int64), np.array([len(words)], np.int64))[0]
