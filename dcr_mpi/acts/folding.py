"""Several versions landed as one: each block is taken through all its deltas in memory, and journalled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint
from ..codec import BlockTable, BucketReader, block_table
from ..digest import Lanes, block_digest
from ..dtypes import dtype
from ..hdf5 import Inventory
from ..journal import Frame, Patch
from ..kernels.api import Kernels
from ..layout import Placement, Span, part_spans
from ..model import Open, Policy, Tiling
from ..scratch import Scratch
from .chain import Link, opening
from .landing import Landing

_Held = dict[tuple[int, int], np.ndarray]  # (tile, first word) of a block -> its words so far


class Folding:
    """Like :class:`Landing`, for the bundles of a chain that is cut alike throughout (see chain.foldable).

    Memory: the dense words of one part, besides what landing one version needs.
    """

    def __init__(
        self,
        policy: Policy,
        tiling: Tiling,
        links: Sequence[Link],
        replica: Checkpoint,
        inventories: Mapping[int, Inventory],
        kernels: Kernels,
        placement: Placement | None = None,
    ) -> None:
        self._policy, self._tiling, self._links = policy, tiling, links
        self._replica, self._kernels = replica, kernels
        scratch = Scratch()  # one for all: each bucket is done before the next is begun
        self._landings = [
            Landing(policy, tiling, opening(k.manifest), replica, inventories, kernels, scratch, placement)
            for k in links
        ]

    def shards_of(self, part: int) -> set[int]:
        """This rank's shards in which a part lands."""
        return self._landings[0].shards_of(part)

    def land(self, part: int, data: Any, shards: set[int]) -> dict[int, Frame]:
        """Decode a bundle for some of this rank's shards. Raises what :meth:`Landing.land` raises."""
        view, at, steps = memoryview(data).cast("B"), 0, []
        for landing, link in zip(self._landings, self._links, strict=True):
            size = link.manifest.parts[part].size
            steps.append((landing, landing.open(part, view[at : at + size])))
            at += size
        patches: dict[int, list[Patch]] = {s: [] for s in shards}
        lanes: dict[int, dict[int, Lanes]] = {s: {} for s in shards}
        spans = part_spans(self._tiling, self._policy.tensors, part)
        last = self._landings[-1]
        for copy in range(max(last.copies(s.tile) for s in spans)):
            held: _Held = {}
            for landing, readers in steps:
                for reader in readers:
                    self._advance(landing, reader, copy, shards, held)
            for name, table in self._tables(spans, held):
                self._finish(last, name, table, copy, shards, held, patches, lanes)
        return {s: Frame(lanes[s], patches[s]) for s in shards}

    def _advance(self, landing: Landing, reader: BucketReader, copy: int, shards: set[int], held: _Held) -> None:
        """Take a bucket's changed blocks one version further."""
        table = reader.table
        place_of, wanted = landing.destination(table, copy, shards)
        if not wanted.any():
            return
        words = landing.read(reader, place_of, held)
        blocks, picked, _ = landing.patch(reader, words)
        for k, block in enumerate(blocks.tolist()):
            held[table.spans[table.span[block]].tile, int(table.start[block])] = picked.view(words, k).copy()

    def _tables(self, spans: Sequence[Span], held: _Held) -> list[tuple[str, BlockTable]]:
        """The held blocks, in the part's order, by dtype."""
        out = []
        spans = [s for s in spans if self._landings[-1].copies(s.tile)]
        names = [self._policy.tensors[self._tiling.tiles[s.tile].tensor].dtype for s in spans]
        for name in sorted(set(names)):
            table = block_table([s for s, n in zip(spans, names, strict=True) if n == name], self._tiling.block)
            blocks = np.array([k for k, key in enumerate(_keys(table)) if key in held], np.int64)
            if len(blocks):
                out.append((name, table.select(blocks)))
        return out

    def _finish(
        self,
        landing: Landing,
        name: str,
        table: BlockTable,
        copy: int,
        shards: set[int],
        held: _Held,
        patches: dict[int, list[Patch]],
        lanes: dict[int, dict[int, Lanes]],
    ) -> None:
        """Compare what the blocks became with what they are in the replica, and journal the difference."""
        width = dtype(name).word_bytes
        place_of, wanted = landing.destination(table, copy, shards)
        base, target = np.zeros(table.length, f"<u{width}"), np.zeros(table.length, f"<u{width}")
        for block, key in enumerate(_keys(table)):
            start, stop = int(table.start[block]), int(table.start[block] + table.size[block])
            self._replica.read(place_of[table.span[block]], start, stop, table.view(base, block))
            table.view(target, block)[...] = held[key]
        changes = self._kernels.changes(base, target, table.offset, table.size)
        digests = [block_digest(held[key]) for key in _keys(table)]
        landing.count(table, changes, place_of, wanted, lanes)
        landing.journal(table, target, digests, changes, place_of, wanted & (changes.counts > 0), patches)


def _keys(table: BlockTable) -> list[tuple[int, int]]:
    return [(table.spans[s].tile, int(a)) for s, a in zip(table.span, table.start, strict=True)]


def landing_of(
    policy: Policy,
    tiling: Tiling,
    opened: Open,
    links: Sequence[Link],
    replica: Checkpoint,
    inventories: Mapping[int, Inventory],
    kernels: Kernels,
    placement: Placement | None = None,
) -> Landing | Folding:
    """What lands the parts of a version, sealed or not, or the bundles of several."""
    if len(links) < 2:
        return Landing(policy, tiling, opened, replica, inventories, kernels, placement=placement)
    return Folding(policy, tiling, links, replica, inventories, kernels, placement)
