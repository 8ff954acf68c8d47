"""Tiles: the common refinement of the trainer's and every site's boxes, in one agreed order, cut into parts.

A tile lies whole in one trainer shard and whole in one piece per replica of every site, so it is coded against its
own baseline and decoded where it lands. Order: by trainer shard, then by the shards that need it at each site, so
that a part travels to few ranks, then by dtype, so that a bucket has one word width, then by tensor and position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import dtype
from ..errors import GeometryError
from ..model import Box, Cut, DatasetLayout, Layout, Policy, TensorSpec, Tile, Tiling
from ..region import Region, region_of
from .boxes import refine, to_local
from .check import pieces

MIN_BLOCK = 64  # words, of any tiling: smaller ones would cost a reader more than the words they hold


@dataclass(frozen=True)
class Place:
    """Where a tile lies in a checkpoint: shard index, dataset path, and its box there (in elements)."""

    shard: int
    dataset: str
    box: Box


@dataclass(frozen=True, slots=True)
class Span:
    """Words ``start..stop`` of a tile: what a part, and a bucket, is made of."""

    tile: int
    start: int
    stop: int


class Placement:
    """A layout indexed by tensor: finds the places of a tile, and remembers them."""

    def __init__(self, layout: Layout, tensors: Sequence[TensorSpec]) -> None:
        self.layout = layout
        self._known: dict[tuple[int, Box], tuple[Place, ...]] = {}
        self._of: tuple[Tiling, list[tuple[Place, ...]]] | None = None  # versions in a row are cut alike
        number = {t.name: i for i, t in enumerate(tensors)}
        self._held = defaultdict(list)
        for shard, dataset, piece in pieces(layout):
            self._held[number[piece.tensor]].append((shard, dataset.path, piece))

    def boxes(self, tensor: int) -> list[Box]:
        """Distinct canonical boxes in which the layout keeps a tensor."""
        return list(dict.fromkeys(piece.canonical for _, _, piece in self._held[tensor]))

    def find(self, tensor: int, box: Box) -> tuple[Place, ...]:
        """All places of a canonical box, replicas included.

        Raises
        ------
        GeometryError
            The box straddles pieces of this layout, or lies in none.
        """
        if (known := self._known.get((tensor, box))) is not None:
            return known
        found, straddled = [], False
        for shard, dataset, piece in self._held[tensor]:
            if box.within(piece.canonical):
                found.append(Place(shard, dataset, to_local(piece, box)))
            elif piece.canonical.meet(box):
                straddled = True
        if straddled or not found:
            raise GeometryError(
                f"tile {box.start}..{box.stop} of tensor {tensor}",
                found="a tile that no piece holds whole",
                expected=f"tiles cut for the layout of {self.layout.name!r}",
                remedy="register this site's layout and let the trainer list the site: versions encoded from then on "
                "fit, and an anchor brings the site there",
            )
        return self._known.setdefault((tensor, box), tuple(found))

    def of(self, tiling: Tiling) -> list[tuple[Place, ...]]:
        """The places of each of a tiling's tiles. Raises GeometryError, as :meth:`find`."""
        if self._of is None or self._of[0] is not tiling:
            self._of = tiling, [self.find(tile.tensor, tile.box) for tile in tiling.tiles]
        return self._of[1]


def word_shape(spec: TensorSpec | DatasetLayout) -> tuple[int, ...]:
    """A tensor's or a dataset's shape in words: elements of several words get a last dimension."""
    words = dtype(spec.dtype).words
    return spec.shape if words == 1 else (*spec.shape, words)


def word_box(box: Box, words: int) -> Box:
    """A box in words, given words per element."""
    return box if words == 1 else Box((*box.start, 0), (*box.stop, words))


def tile_words(tile: Tile, tensors: Sequence[TensorSpec]) -> int:
    """Words in a tile."""
    return tile.box.size * dtype(tensors[tile.tensor].dtype).words


def tile_region(tile: Tile, tensors: Sequence[TensorSpec]) -> Region:
    """The tile's words as canonical flat word indices of its tensor."""
    spec = tensors[tile.tensor]
    return region_of(word_box(tile.box, dtype(spec.dtype).words), word_shape(spec))


def geometry_rows(regions: Sequence[Region], starts: np.ndarray) -> np.ndarray:
    """Rows for :meth:`Kernels.state_words`: first word in the tile, base, extents, strides, padded with 1s."""
    dims = max((len(r.shape) for r in regions), default=1)
    rows = np.ones((len(regions), 2 + 2 * dims), np.int64)
    for row, region, start in zip(rows, regions, starts, strict=True):
        spare = dims - len(region.shape)
        row[0], row[1] = start, region.base
        row[2 + spare : 2 + dims], row[2 + dims + spare :] = region.shape, region.strides
    return rows


def make_tiles(policy: Policy, sites: Mapping[str, Layout]) -> tuple[Tile, ...]:
    """All tiles of a policy for these sites, in order."""
    trainer = Placement(policy.trainer, policy.tensors)
    others = [Placement(sites[name], policy.tensors) for name in sorted(sites)]
    keyed = []
    for number, spec in enumerate(policy.tensors):
        cuts = [box for placement in (trainer, *others) for box in placement.boxes(number)]
        for cell, _ in refine(Box.whole(spec.shape), cuts):
            shard = min(place.shard for place in trainer.find(number, cell))
            needs = tuple(tuple(sorted({p.shard for p in o.find(number, cell)})) for o in others)
            keyed.append(((shard, needs), (spec.dtype, number, cell.start), cell))
    keyed.sort(key=lambda row: row[:2])
    groups = {key: k for k, key in enumerate(dict.fromkeys(key for key, _, _ in keyed))}
    return tuple(Tile(number, cell.start, cell.stop, key[0], groups[key]) for key, (_, number, _), cell in keyed)


def cut_parts(tiles: Sequence[Tile], tensors: Sequence[TensorSpec], block: int, part_bytes: int) -> tuple[Cut, ...]:
    """Cut the tiles into parts of about ``part_bytes`` dense bytes, at block limits, never across trainer shards."""
    cuts: list[Cut] = []
    room, shard = 0, -1
    for number, tile in enumerate(tiles):
        size, width = tile_words(tile, tensors), dtype(tensors[tile.tensor].dtype).word_bytes
        at = 0
        while at < size:
            if room < min(size - at, block) * width or tile.shard != shard:
                cuts.append(Cut(number, at))
                room, shard = part_bytes, tile.shard
            step = min(size - at, max(room // (block * width), 1) * block)
            room -= step * width
            at += step
    return tuple(cuts)


def part_spans(tiling: Tiling, tensors: Sequence[TensorSpec], part: int) -> tuple[Span, ...]:
    """The spans of one part, in order."""
    first = tiling.cuts[part]
    last = tiling.cuts[part + 1] if part + 1 < len(tiling.cuts) else Cut(len(tiling.tiles), 0)
    spans = []
    for number in range(first.tile, min(last.tile + 1, len(tiling.tiles))):
        start = first.element if number == first.tile else 0
        stop = last.element if number == last.tile else tile_words(tiling.tiles[number], tensors)
        if start < stop:
            spans.append(Span(number, start, stop))
    return tuple(spans)


def check_tiling(tiling: Tiling, tensors: Sequence[TensorSpec], max_block: int) -> None:
    """Check a tiling that came from a store: tiles inside their tensors, every element in one, parts in order.

    Raises
    ------
    GeometryError
    """
    boxes: list[list[Box]] = [[] for _ in tensors]
    for tile in tiling.tiles:
        spec = tensors[tile.tensor] if 0 <= tile.tensor < len(tensors) else None
        box = tile.box
        fits = len(box.start) == len(box.stop) and all(n > 0 for n in box.shape)
        if spec is None or not fits or not box.within(Box.whole(spec.shape)) or tile.shard < 0:
            raise GeometryError(
                "tiling",
                found=f"tile {box.start}..{box.stop} of tensor {tile.tensor}",
                expected="a box inside a tensor of the policy",
            )
        boxes[tile.tensor].append(box)
    for spec, held in zip(tensors, boxes, strict=True):
        whole = Box.whole(spec.shape)
        if sum(box.size for box in held) != whole.size or any(len(owners) != 1 for _, owners in refine(whole, held)):
            raise GeometryError(
                f"tiling, tensor {spec.name!r}", found="elements in no tile, or in two", expected="each in one tile"
            )
    block = tiling.block
    if not MIN_BLOCK <= block <= max_block or block & (block - 1):
        raise GeometryError(
            "tiling", found=f"blocks of {block} words", expected=f"a power of two from {MIN_BLOCK} to {max_block}"
        )
    order = [(c.tile, c.element) for c in tiling.cuts]
    inside = all(
        0 <= tile < len(tiling.tiles) and 0 <= at < tile_words(tiling.tiles[tile], tensors) and at % block == 0
        for tile, at in order
    )
    begins = order[0] == (0, 0) if order else not tiling.tiles
    if not inside or not begins or sorted(set(order)) != order:
        raise GeometryError("tiling", found=f"{len(order)} cuts", expected="increasing cuts at block limits from 0 on")
