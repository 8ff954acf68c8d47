"""Building one part: read the spans of both checkpoints, find the changes, code them, check the result.

Pure of the store and of ranks; :mod:`.encode` decides which rank builds which part.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .. import codec
from ..checkpoint import Checkpoint
from ..codec import MAX_BLOCKS, BlockTable, BucketReader, Digests, Scheme, block_table
from ..digest import BLOCK_DIGEST_BYTES, Lanes, add
from ..dtypes import dtype
from ..errors import CorruptInput, VerifyFailed
from ..kernels.api import Kernels
from ..layout import Placement, Span, geometry_rows, part_spans, tile_region
from ..model import Policy, Tiling
from ..wire import PartHeader, pack_part, unpack_part
from .sides import Sides


@dataclass
class Built:
    """One part's bytes, and what it does: lanes and (words, changed) by tensor index, words changed and covered."""

    data: bytes
    lanes: dict[int, Lanes] = field(default_factory=dict)
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    changed: int = 0
    words: int = 0
    dense_bytes: int = 0


class PartBuilder:
    """Builds parts of one version.

    Parameters
    ----------
    base : Checkpoint or None
        None for an anchor.
    header : PartHeader
        Of any part; index and bucket count are filled in.
    bucket_bytes : int
        Dense bytes of a bucket: bounds the memory of one call.
    check : bool
        Decode every part again and compare it with the new checkpoint before it leaves.
    placement : Placement, optional
        Of the trainer's layout, where it is at hand.
    """

    def __init__(
        self,
        policy: Policy,
        tiling: Tiling,
        base: Checkpoint | None,
        new: Checkpoint,
        header: PartHeader,
        scheme: Scheme,
        kernels: Kernels,
        bucket_bytes: int,
        check: bool,
        placement: Placement | None = None,
    ) -> None:
        self._policy, self._tiling, self._anchor = policy, tiling, base is None
        self._header, self._scheme, self._kernels = header, scheme, kernels
        self._bucket_bytes, self._check = bucket_bytes, check
        self._sides = Sides(policy, tiling, base, new, placement)
        self.everywhere = new.everywhere  # any part; else those of this rank's shard

    def build(self, index: int) -> Built:
        """Part ``index`` of the tiling.

        Raises
        ------
        VerifyFailed
            Two training shards publish different bytes for one tile, or the part does not decode to the new words.
        """
        built, buckets = Built(b""), []
        for name, spans in self.buckets(index):
            table = block_table(spans, self._tiling.block)
            geometry, width = self._geometry(table), dtype(name).word_bytes
            new, base, changes = None, None, None
            if self._anchor:
                new = self._sides.new(table, width)
                digests = codec.digests_of(table, None, new, np.ones(len(table), bool))
                lanes = self._kernels.state_words(geometry, new, table.offset, table.size)
                changed = table.size
            else:
                base, read = self._sides.both(table, width)
                changes, digests = codec.compare(table, base, read, self._kernels)
                lanes = self._kernels.state_changes(
                    geometry, changes.counts, changes.positions, changes.old, changes.new
                )
                changed = changes.counts
            self._add(built, table, lanes, changed)
            row, block = self._row(table), self._tiling.block
            packed = codec.encode(self._scheme, name, table, block, base, new, changes, self._kernels, row, digests)
            if self._check:
                self._decode(packed, table, base, digests)
            buckets.append(packed)
            built.changed += int(changed.sum())
            built.words += int(table.size.sum())
            built.dense_bytes += int(table.size.sum()) * width
        h = self._header
        built.data = pack_part(PartHeader(h.policy, h.tiling, h.version, h.base, index, len(buckets)), buckets)
        return built

    def buckets(self, index: int) -> Iterator[tuple[str, list[Span]]]:
        """The part's spans in buckets of one dtype and one destination, of at most ``bucket_bytes``.

        One destination: a receiver owns a bucket whole or not at all, so a bucket may be coded as one.
        """
        group: list[Span] = []
        name, room, destination, blocks = "", 0, -1, 0
        for span in part_spans(self._tiling, self._policy.tensors, index):
            kind = self._dtype_of(span.tile)
            width, at = dtype(kind).word_bytes, span.start
            while at < span.stop:
                whither = self._tiling.tiles[span.tile].group
                full = blocks == MAX_BLOCKS or room < min(span.stop - at, self._tiling.block) * width
                if (kind, whither) != (name, destination) or full:
                    if group:
                        yield name, group
                    name, destination, group, blocks = kind, whither, [], 0
                    room = max(self._bucket_bytes, self._tiling.block * width)
                fit = min(max(room // (self._tiling.block * width), 1), MAX_BLOCKS - blocks)
                step = min(span.stop - at, fit * self._tiling.block)
                group.append(Span(span.tile, at, at + step))
                at, room, blocks = at + step, room - step * width, blocks - (-step // self._tiling.block)
        if group:
            yield name, group

    def _row(self, table: BlockTable) -> int:
        """Words of a row of most of a bucket's tiles; a map of touched rows is a gamble only on the others."""
        lengths: dict[int, int] = {}
        for span in table.spans:
            tile = self._tiling.tiles[span.tile]
            row = tile.box.shape[-1] * dtype(self._dtype_of(span.tile)).words if len(tile.start) > 1 else 0
            lengths[row] = lengths.get(row, 0) + span.stop - span.start
        return max(lengths, key=lambda row: lengths[row])

    def _dtype_of(self, tile: int) -> str:
        return self._policy.tensors[self._tiling.tiles[tile].tensor].dtype

    def _geometry(self, table: BlockTable) -> np.ndarray:
        regions = [tile_region(self._tiling.tiles[s.tile], self._policy.tensors) for s in table.spans]
        return geometry_rows([regions[s] for s in table.span], table.start)

    def _add(self, built: Built, table: BlockTable, lanes: np.ndarray, changed: np.ndarray) -> None:
        """Take a bucket's blocks into the sums of their tensors."""
        for span, (a, b), size, count in zip(table.span, lanes, table.size.tolist(), changed.tolist(), strict=True):
            tensor = self._tiling.tiles[table.spans[span].tile].tensor
            built.lanes[tensor] = add(built.lanes.get(tensor, (0, 0)), (int(a), int(b)))
            words, before = built.counts.get(tensor, (0, 0))
            built.counts[tensor] = words + size, before + count

    def _decode(self, packed: bytes, table: BlockTable, base: np.ndarray | None, digests: Digests) -> None:
        """Decode what was just coded, from its bytes, in place of its base: every changed block must become what was
        read, and the bucket must say so."""
        try:
            data = pack_part(PartHeader(bytes(16), bytes(16), 0, None, 0, 1), [packed])
            _, (bucket,) = unpack_part(data, "own output")
            reader = BucketReader(bucket, anchor=base is None)
            words = self._sides.room(table, reader.dtype.word_bytes) if base is None else base
            blocks = np.flatnonzero(reader.changed).tolist()
            if reader.table.spans != table.spans or len(digests.target) != len(blocks) * BLOCK_DIGEST_BYTES:
                raise CorruptInput("own output", found="other blocks", expected="those that changed")
            _, found = reader.patch(words, self._kernels)
            if b"".join(found) != digests.target or found != [reader.target[block] for block in blocks]:
                raise CorruptInput("own output", found="other words", expected="the new checkpoint's")
        except CorruptInput as error:
            raise VerifyFailed(
                "self-check of the encoder",
                found=f"in a bucket of {len(table)} blocks: {error.what}: {error.found}",
                expected=error.expected,
                remedy="nothing was published; run again with kernels: numpy and report this",
            ) from error


def share(sizes: Sequence[int], rank: int, ranks: int) -> list[int]:
    """The items of rank ``rank``, increasing: see :func:`deal`."""
    return [item for item, owner in enumerate(deal(sizes, ranks)) if owner == rank]


def deal(sizes: Sequence[int], ranks: int) -> list[int]:
    """The rank of each item: each in turn goes to the one that has least so far.

    All ranks together come through the items about in order, so that receivers, who take them in order, can follow.
    """
    loads = [(0, other) for other in range(ranks)]
    owners = []
    for size in sizes:
        load, owner = loads[0]
        heapq.heapreplace(loads, (load + size, owner))
        owners.append(owner)
    return owners
