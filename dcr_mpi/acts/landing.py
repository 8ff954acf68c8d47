"""Where a part's blocks land in this rank's shards of a replica, and what they become there: journal patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint, by_name
from ..codec import BlockTable, BucketReader, Cover, rest_digests
from ..digest import Lanes, add, block_digest
from ..errors import BaseMismatch, CorruptInput, VerifyFailed
from ..hdf5 import Inventory, region
from ..journal import Frame, Patch
from ..kernels.api import Changes, Kernels
from ..layout import Place, Placement, geometry_rows, part_spans, tile_region
from ..model import Manifest, Policy, Tiling
from ..wire import PartHeader, unpack_part
from .replica import RESTORE


class Landing:
    """Decodes parts against this rank's shards.

    Parameters
    ----------
    replica : Checkpoint
        The site's shards under its layout, at the base version.
    inventories : mapping of shard index to Inventory
        The shards that this rank owns.
    """

    def __init__(
        self,
        policy: Policy,
        tiling: Tiling,
        manifest: Manifest,
        replica: Checkpoint,
        inventories: Mapping[int, Inventory],
        kernels: Kernels,
    ) -> None:
        self._policy, self._tiling, self._manifest = policy, tiling, manifest
        self._replica, self._kernels = replica, kernels
        self._datasets = {s: by_name(inv) for s, inv in inventories.items()}
        self._numbers = {s: {d.path: k for k, d in enumerate(inv.datasets)} for s, inv in inventories.items()}
        placement = Placement(replica.layout, policy.tensors)
        self._places = [placement.find(tile.tensor, tile.box) for tile in tiling.tiles]
        self._mine = [tuple(p for p in places if p.shard in inventories) for places in self._places]

    def shards_of(self, part: int) -> set[int]:
        """This rank's shards in which a part lands."""
        return {p.shard for s in part_spans(self._tiling, self._policy.tensors, part) for p in self._mine[s.tile]}

    def land(self, part: int, data: Any, shards: set[int]) -> dict[int, Frame]:
        """Decode a part for some of this rank's shards: their journal frames.

        Raises
        ------
        CorruptInput
            The part is malformed or bound to something else.
        BaseMismatch
            The replica's words are not those that the part was made from; names tensor and range.
        VerifyFailed
            The decoded words are not the target's.
        """
        readers = self.open(part, data)
        patches: dict[int, list[Patch]] = {s: [] for s in shards}
        lanes: dict[int, dict[int, Lanes]] = {s: {} for s in shards}
        for reader in readers:
            for copy in range(max(self.copies(s.tile) for s in reader.table.spans)):
                self._land_copy(reader, copy, shards, patches, lanes)
        return {s: Frame(lanes[s], patches[s]) for s in shards}

    def open(self, part: int, data: Any) -> list[BucketReader]:
        """A part's buckets, known to be this version's and to cover exactly what the part must.

        Raises
        ------
        CorruptInput
            As :meth:`land`.
        """
        entry = self._manifest.parts[part]
        spans = part_spans(self._tiling, self._policy.tensors, part)
        names = {s.tile: self._policy.tensors[self._tiling.tiles[s.tile].tensor].dtype for s in spans}
        cover = Cover(f"part {entry.index}", spans, names, self._tiling.block)
        header, buckets = unpack_part(data, f"part {entry.index}", cover.buckets)
        m = self._manifest
        bound = PartHeader.bound(m.policy_sha256, m.tiling, m.version, m.base, entry.index, len(buckets))
        if header != bound:
            raise CorruptInput(
                f"part {entry.index}",
                found=f"a part of version {header.version}, base {header.base}, index {header.index}",
                expected=f"version {m.version}, base {m.base}, index {entry.index} of this policy and tiling",
            )
        readers = []
        for bucket in buckets:
            readers.append(BucketReader(bucket, anchor=False))
            cover.take(readers[-1])
            copies = [self.copies(s.tile) for s in readers[-1].table.spans]
            if max(copies) and not min(copies):
                raise CorruptInput(f"part {entry.index}", found="a bucket with several destinations", expected="one")
        cover.finish()
        return readers

    def copies(self, tile: int) -> int:
        """How many places this rank's shards keep a tile in."""
        return len(self._mine[tile])

    def destination(self, table: BlockTable, copy: int, shards: set[int]) -> tuple[list[Place], np.ndarray]:
        """The ``copy``-th place of each span (the last one where there are fewer), and bool per block: landed there.

        A bucket is decoded whole, so tiles with fewer places are read from their last one again, and left out after.
        """
        places = [self._mine[s.tile] for s in table.spans]
        if not all(places):
            return [], np.zeros(len(table), bool)
        place_of = [p[min(copy, len(p) - 1)] for p in places]
        wanted = [copy < len(places[s]) and place_of[s].shard in shards for s in table.span]
        return place_of, np.array(wanted, bool)

    def _land_copy(
        self,
        reader: BucketReader,
        copy: int,
        shards: set[int],
        patches: dict[int, list[Patch]],
        lanes: dict[int, dict[int, Lanes]],
    ) -> None:
        """Land a bucket in the ``copy``-th of this rank's places of each of its tiles."""
        table = reader.table
        place_of, wanted = self.destination(table, copy, shards)
        if not wanted.any():
            return
        blocks, picked, target, changes = self.decode(reader, self.read(table, place_of, reader.dtype.word_bytes))
        if len(blocks):
            digests = [reader.target[block] or b"" for block in blocks.tolist()]
            self.count(picked, changes, place_of, wanted[blocks], lanes)
            self.journal(picked, target, digests, changes, place_of, wanted[blocks], patches)

    def decode(self, reader: BucketReader, words: np.ndarray) -> tuple[np.ndarray, BlockTable, np.ndarray, Changes]:
        """The changed blocks of a bucket, given all its words before: (blocks, their table, words after, changes).

        Raises
        ------
        BaseMismatch, VerifyFailed
            As :meth:`land`.
        """
        table = reader.table
        self._check_base(reader, words)
        blocks = np.flatnonzero(reader.changed)
        picked = table.select(blocks)
        base = words
        if len(blocks) < len(table):
            base = np.empty(picked.length, words.dtype)
            for k, block in enumerate(blocks.tolist()):
                picked.view(base, k)[...] = table.view(words, block)
        target, changes = reader.decode(base, self._kernels)
        for k, block in enumerate(blocks.tolist()):
            if block_digest(picked.view(target, k)) != reader.target[block]:
                raise VerifyFailed(
                    self._where(table, block),
                    found="another digest after decoding",
                    expected="the target's",
                    remedy="the part was made wrongly: abort this version and encode it again",
                )
        return blocks, picked, target, changes

    def read(self, table: BlockTable, place_of: Sequence[Place], word_bytes: int) -> np.ndarray:
        """The replica's words of all blocks, as a bucket array."""
        words = np.empty(table.length, f"<u{word_bytes}")
        for block in range(len(table)):
            start = int(table.start[block])
            stop = start + int(table.size[block])
            self._replica.read(place_of[table.span[block]], start, stop, table.view(words, block))
        return words

    def _check_base(self, reader: BucketReader, words: np.ndarray) -> None:
        """The gate: every changed block has its base's digest, and so have each span's unchanged blocks together."""
        table = reader.table
        for block in np.flatnonzero(reader.changed).tolist():
            if block_digest(table.view(words, block)) != reader.base[block]:
                raise self._mismatch(table, block)
        for span, digest in rest_digests(table, words, reader.changed).items():
            if digest != reader.rest[span]:
                raise self._mismatch(table, int(np.flatnonzero((table.span == span) & ~reader.changed)[0]))

    def _mismatch(self, table: BlockTable, block: int) -> BaseMismatch:
        return BaseMismatch(
            self._where(table, block),
            found="other bytes in the replica",
            expected=f"those of version {self._manifest.base}",
            remedy="the replica is untouched; dcr verify names what differs. " + RESTORE,
        )

    def _where(self, table: BlockTable, block: int) -> str:
        tile = self._tiling.tiles[table.spans[table.span[block]].tile]
        start = int(table.start[block])
        name = self._policy.tensors[tile.tensor].name
        return f"tensor {name!r}, box {tile.start}..{tile.stop}, words {start}..{start + int(table.size[block])}"

    def count(
        self,
        table: BlockTable,
        changes: Changes,
        place_of: Sequence[Place],
        wanted: np.ndarray,
        lanes: dict[int, dict[int, Lanes]],
    ) -> None:
        """Add the changes to the state digest, once per tile: at the first place that the site keeps it in."""
        regions = [tile_region(self._tiling.tiles[s.tile], self._policy.tensors) for s in table.spans]
        rows = geometry_rows([regions[span] for span in table.span], table.start)
        moved = self._kernels.state_changes(rows, changes.counts, changes.positions, changes.old, changes.new)
        for k, (a, b) in enumerate(moved.tolist()):
            tile, place = table.spans[table.span[k]].tile, place_of[table.span[k]]
            if wanted[k] and place == self._places[tile][0]:
                tensor = self._tiling.tiles[tile].tensor
                mine = lanes[place.shard]
                mine[tensor] = add(mine.get(tensor, (0, 0)), (a, b))

    def journal(
        self,
        table: BlockTable,
        target: np.ndarray,
        digests: Sequence[bytes],
        changes: Changes,
        place_of: Sequence[Place],
        wanted: np.ndarray,
        patches: dict[int, list[Patch]],
    ) -> None:
        """Add a patch for each wanted block of ``table``; ``digests`` are the blocks' after it."""
        ends = np.cumsum(changes.counts).tolist()
        for k, digest in enumerate(digests):
            if not wanted[k]:
                continue
            count = int(changes.counts[k])
            here = slice(ends[k] - count, ends[k])
            place = place_of[table.span[k]]
            dataset = self._datasets[place.shard][place.dataset]
            where = region(dataset, place.box)
            words, gaps, far = table.view(target, k).copy(), None, None
            if count * (1 + words.itemsize) < words.nbytes:  # else the whole block takes less journal than its changes
                gaps, far = self._kernels.pack_gaps(changes.positions[here], np.array([count], np.int64))
                words = changes.new[here]
            number = self._numbers[place.shard][dataset.path]
            assert dataset.offset is not None
            start, size = int(table.start[k]), int(table.size[k])
            patches[place.shard].append(Patch(number, dataset.offset, where, start, size, digest, words, gaps, far))
