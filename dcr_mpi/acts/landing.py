"""Where a part's blocks land in this rank's shards of a replica, and what they become there: journal patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint, by_name
from ..codec import BlockTable, BucketReader, Cover
from ..digest import Lanes, add, block_digest, running_block_digest
from ..errors import BaseMismatch, CorruptInput, VerifyFailed
from ..hdf5 import Inventory, region
from ..journal import Frame, Patch
from ..kernels.api import Changes, Kernels
from ..layout import Place, Placement, geometry_rows, part_spans, tile_region
from ..model import Open, Policy, Tiling
from ..scratch import Scratch
from ..wire import PartHeader, unpack_part
from .replica import RESTORE

NONE_HELD: Mapping[tuple[int, int], np.ndarray] = MappingProxyType({})


class Landing:
    """Decodes parts against this rank's shards.

    Parameters
    ----------
    replica : Checkpoint
        The site's shards under its layout, at the base version.
    inventories : mapping of shard index to Inventory
        The shards that this rank owns.
    placement : Placement, optional
        Of the replica's layout, where it is at hand.
    """

    def __init__(
        self,
        policy: Policy,
        tiling: Tiling,
        opened: Open,
        replica: Checkpoint,
        inventories: Mapping[int, Inventory],
        kernels: Kernels,
        scratch: Scratch | None = None,
        placement: Placement | None = None,
    ) -> None:
        self._policy, self._tiling, self._opened = policy, tiling, opened
        self._replica, self._kernels, self._scratch = replica, kernels, scratch or Scratch()
        self._datasets = {s: by_name(inv) for s, inv in inventories.items()}
        self._numbers = {s: {d.path: k for k, d in enumerate(inv.datasets)} for s, inv in inventories.items()}
        placement = placement or Placement(replica.layout, policy.tensors)
        self._places = placement.of(tiling)
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
        what, v = f"part {part}", self._opened
        spans = part_spans(self._tiling, self._policy.tensors, part)
        names = {s.tile: self._policy.tensors[self._tiling.tiles[s.tile].tensor].dtype for s in spans}
        cover = Cover(what, spans, names, self._tiling.block)
        header, buckets = unpack_part(data, what, cover.buckets)
        bound = PartHeader.bound(v.policy_sha256, v.tiling, v.version, v.base, part, len(buckets))
        if header != bound:
            raise CorruptInput(
                what,
                found=f"a part of version {header.version}, base {header.base}, index {header.index}",
                expected=f"version {v.version}, base {v.base}, index {part} of this policy and tiling",
            )
        readers = []
        for bucket in buckets:
            readers.append(BucketReader(bucket, anchor=False))
            cover.take(readers[-1])
            copies = [self.copies(s.tile) for s in readers[-1].table.spans]
            if max(copies) and not min(copies):
                raise CorruptInput(what, found="a bucket with several destinations", expected="one")
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
        words = self.read(reader, place_of)
        blocks, picked, changes = self.patch(reader, words)
        if len(blocks):
            digests = [reader.target[block] or b"" for block in blocks.tolist()]
            self.count(picked, changes, place_of, wanted[blocks], lanes)
            self.journal(picked, words, digests, changes, place_of, wanted[blocks], patches)

    def patch(self, reader: BucketReader, words: np.ndarray) -> tuple[np.ndarray, BlockTable, Changes]:
        """Take a bucket's changed blocks one version further, in place: (blocks, their table, changes).

        Raises
        ------
        CorruptInput, VerifyFailed
            As :meth:`land`.
        """
        table, blocks = reader.table, np.flatnonzero(reader.changed)
        changes, found = reader.patch(words, self._kernels)
        for block, digest in zip(blocks.tolist(), found, strict=True):
            if digest != reader.target[block]:
                raise VerifyFailed(
                    self._where(table, block),
                    found="another digest after decoding",
                    expected="the target's",
                    remedy="the part was made wrongly: abort this version and encode it again",
                )
        return blocks, table.only(blocks), changes

    def read(
        self, reader: BucketReader, place_of: Sequence[Place], held: Mapping[tuple[int, int], np.ndarray] = NONE_HELD
    ) -> np.ndarray:
        """The base's words, good until the next call; those of blocks that are ``held``, by (tile, first word), else
        the replica's.

        Each block is held against the gate while it is at hand: every changed block has its base's digest, and so have
        each span's unchanged blocks together.
        """
        table = reader.table
        words = self._scratch.words("base", table.length, reader.dtype.word_bytes)
        rest: dict[int, Any] = {}
        changed, spans = reader.changed.tolist(), table.span.tolist()
        start, stop = table.start.tolist(), (table.start + table.size).tolist()
        for block, span in enumerate(spans):
            view = table.view(words, block)
            if (mine := held.get((table.spans[span].tile, start[block]))) is not None:
                view[...] = mine
            else:
                self._replica.read(place_of[span], start[block], stop[block], view)
            if not changed[block]:
                rest.setdefault(span, running_block_digest()).update(view)
            elif block_digest(view) != reader.base[block]:
                raise self._mismatch(table, block)
        for span, running in rest.items():
            if running.digest() != reader.rest[span]:
                raise self._mismatch(table, int(np.flatnonzero((table.span == span) & ~reader.changed)[0]))
        return words

    def _mismatch(self, table: BlockTable, block: int) -> BaseMismatch:
        return BaseMismatch(
            self._where(table, block),
            found="other bytes in the replica",
            expected=f"those of version {self._opened.base}",
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
            words, gaps, far = table.view(target, k), None, None
            if count * (1 + words.itemsize) < words.nbytes:  # else the whole block takes less journal than its changes
                gaps, far = self._kernels.pack_gaps(changes.positions[here], np.array([count], np.int64))
                words = changes.new[here]
            else:
                words = words.copy()
            number = self._numbers[place.shard][dataset.path]
            assert dataset.offset is not None
            start, size = int(table.start[k]), int(table.size[k])
            patches[place.shard].append(Patch(number, dataset.offset, where, start, size, digest, words, gaps, far))
