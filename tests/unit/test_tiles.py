"""Tiles, parts and tilings, and the heart of it all in memory: a refit over any two layouts is a full transfer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.codec import BucketReader, Cover, Scheme, block_table, encode, rest_digests
from dcr_mpi.digest import Lanes, add, block_digest
from dcr_mpi.dtypes import dtype
from dcr_mpi.errors import GeometryError
from dcr_mpi.kernels import get_kernels
from dcr_mpi.kernels.api import MAX_BLOCK
from dcr_mpi.layout import (
    Place,
    Placement,
    Span,
    check_layout,
    check_tiling,
    cut_parts,
    geometry_rows,
    make_tiles,
    part_spans,
    tile_region,
    tile_words,
    word_box,
)
from dcr_mpi.layout import build as make
from dcr_mpi.model import Box, Cut, Layout, Policy, ShardLayout, TensorSpec, Tile, Tiling
from dcr_mpi.region import Region, region_of
from dcr_mpi.wire import PartHeader, pack_part, unpack_part
from tests.strategies import Arrays, full_tensors, layouts, materialise, random_words, seeds, tensor_tables, word_type

REFERENCE, JIT = get_kernels("numpy"), get_kernels("numba")


@dataclass
class World:
    """A policy with some sites, and the tiling that they share."""

    policy: Policy
    sites: dict[str, Layout]
    tiling: Tiling


@st.composite
def worlds(draw: st.DrawFn, sites: int = 2) -> World:
    tensors = draw(tensor_tables())
    policy = Policy("p", tensors, draw(layouts(tensors, "trainer")))
    others = {f"site{k}": draw(layouts(tensors, f"site{k}")) for k in range(draw(st.integers(0, sites)))}
    tiles = make_tiles(policy, others)
    block = 1 << draw(st.integers(6, 8))
    part_bytes = draw(st.sampled_from([1, 100, 700, 1 << 20]))
    tiling = Tiling("p" * 64, {}, block, tiles, cut_parts(tiles, tensors, block, part_bytes))
    return World(policy, others, tiling)


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))


@given(worlds())
def test_tiles_are_disjoint_complete_and_whole_everywhere(world: World) -> None:
    tensors = world.policy.tensors
    seen = [np.zeros(t.shape, int) for t in tensors]
    for tile in world.tiling.tiles:
        seen[tile.tensor][slices(tile.box)] += 1
        for layout in (world.policy.trainer, *world.sites.values()):
            places = Placement(layout, tensors).find(tile.tensor, tile.box)
            pieces = [
                (s, d.path, p)
                for s, shard in enumerate(layout.shards)
                for d in shard.datasets
                for p in d.pieces
                if p.tensor == tensors[tile.tensor].name and p.canonical.meet(tile.box)
            ]
            assert [(p.shard, p.dataset) for p in places] == [(s, d) for s, d, _ in pieces]
            assert all(tile.box.within(p.canonical) for _, _, p in pieces)
            assert all(place.box.size == tile.box.size for place in places)
            if layout is world.policy.trainer:
                assert tile.shard == min(s for s, _, _ in pieces)
    assert all((s == 1).all() for s in seen)
    check_tiling(world.tiling, tensors, MAX_BLOCK)


@given(worlds())
def test_order_puts_shards_and_dtypes_together(world: World) -> None:
    """By trainer shard, then by the shards that need it, then dtype: a part has few readers, a bucket one width."""
    tiles = world.tiling.tiles
    shards = [t.shard for t in tiles]
    assert shards == sorted(shards)
    assert make_tiles(world.policy, dict(reversed(world.sites.items()))) == tiles  # whatever order sites are named in
    placements = [Placement(world.sites[name], world.policy.tensors) for name in sorted(world.sites)]
    keys = [(t.shard, *(tuple(sorted({p.shard for p in o.find(t.tensor, t.box)})) for o in placements)) for t in tiles]
    assert len([k for k, _ in groupby(keys)]) == len(set(keys))
    assert [t.group for t in tiles] == [list(dict.fromkeys(keys)).index(k) for k in keys]


@given(worlds())
def test_parts_cover_every_word_once_at_block_limits(world: World) -> None:
    tiling, tensors = world.tiling, world.policy.tensors
    at = dict.fromkeys(range(len(tiling.tiles)), 0)
    order = []
    for part in range(len(tiling.cuts)):
        spans = part_spans(tiling, tensors, part)
        assert spans
        assert len({tiling.tiles[s.tile].shard for s in spans}) == 1
        assert len({s.tile for s in spans}) == len(spans)
        for span in spans:
            assert span.start == at[span.tile] and span.start % tiling.block == 0 and span.start < span.stop
            at[span.tile] = span.stop
            order.append((span.tile, span.start))
    assert at == {k: tile_words(t, tensors) for k, t in enumerate(tiling.tiles)}
    assert order == sorted(order)


def test_part_sizes() -> None:
    tensors = (TensorSpec("a", "bf16", (1000,)), TensorSpec("b", "f32", (100,)))
    tiles = (Tile(0, (0,), (1000,), 0), Tile(1, (0,), (100,), 1))
    assert cut_parts(tiles, tensors, 64, 1 << 20) == (Cut(0, 0), Cut(1, 0))  # never across trainer shards
    assert cut_parts(tiles, tensors, 64, 1024) == (Cut(0, 0), Cut(0, 512), Cut(1, 0))
    assert cut_parts(tiles, tensors, 64, 1) == (*(Cut(0, 64 * k) for k in range(16)), Cut(1, 0), Cut(1, 64))
    assert cut_parts((), tensors, 64, 1024) == ()


def test_tensors_past_32_bits_are_cut_without_holding_them() -> None:
    spec = TensorSpec("t", "u8", (2**33 + 5,))
    policy = Policy("p", (spec,), Layout("trainer", (ShardLayout("x", (make.whole("t", spec.shape, "u8"),)),)))
    tiles = make_tiles(policy, {})
    cuts = cut_parts(tiles, policy.tensors, 1 << 24, 1 << 32)
    assert cuts == (Cut(0, 0), Cut(0, 2**32), Cut(0, 2**33))
    tiling = Tiling("p", {}, 1 << 24, tiles, cuts)
    check_tiling(tiling, policy.tensors, MAX_BLOCK)
    assert part_spans(tiling, policy.tensors, 2) == (Span(0, 2**33, 2**33 + 5),)


def test_a_site_that_the_tiles_were_not_cut_for() -> None:
    tensors = (TensorSpec("a", "bf16", (4, 6)),)
    trainer = Layout("trainer", (ShardLayout("x", (make.whole("a", (4, 6), "bf16"),)),))
    halves = Layout("late", tuple(ShardLayout(f"y{k}", (make.split("a", (4, 6), "bf16", 1, 2, k),)) for k in range(2)))
    (tile,) = make_tiles(Policy("p", tensors, trainer), {})
    with pytest.raises(GeometryError, match=r"layout of 'late'.*Next: register this site's layout"):
        Placement(halves, tensors).find(tile.tensor, tile.box)
    with pytest.raises(GeometryError, match="no piece holds whole"):
        Placement(Layout("none", ()), tensors).find(0, tile.box)
    # One replica has it whole, another in part: the second would miss an update.
    both = Layout("both", (*trainer.shards, halves.shards[0]))
    with pytest.raises(GeometryError, match="no piece holds whole"):
        Placement(both, tensors).find(0, tile.box)
    assert len(Placement(both, tensors).find(0, Box((0, 0), (4, 3)))) == 2


# -- tilings from a store -------------------------------------------------------------------------------------

TENSORS = (TensorSpec("a", "bf16", (8, 8)), TensorSpec("s", "i64", ()), TensorSpec("e", "u8", (0, 3)))
LEFT, RIGHT, SCALAR = Tile(0, (0, 0), (8, 4), 0), Tile(0, (0, 4), (8, 8), 0), Tile(1, (), (), 1)
GOOD = Tiling("p", {}, 64, (LEFT, RIGHT, SCALAR), (Cut(0, 0), Cut(1, 0), Cut(2, 0)))
BAD: dict[str, Tiling] = {
    "a tile is missing": replace(GOOD, tiles=(LEFT, SCALAR), cuts=(Cut(0, 0),)),
    "a tile twice": replace(GOOD, tiles=(LEFT, RIGHT, SCALAR, RIGHT)),
    "tiles that overlap and leave as much out": replace(GOOD, tiles=(LEFT, Tile(0, (0, 2), (8, 6), 0), SCALAR)),
    "one tile for another": replace(GOOD, tiles=(LEFT, LEFT, SCALAR)),
    "a tile outside": replace(GOOD, tiles=(LEFT, Tile(0, (0, 5), (8, 9), 0), SCALAR)),
    "a tile below zero": replace(GOOD, tiles=(LEFT, Tile(0, (0, -4), (8, 0), 0), SCALAR)),
    "an inverted tile": replace(GOOD, tiles=(LEFT, Tile(0, (8, 8), (0, 4), 0), SCALAR)),
    "an empty tile": replace(GOOD, tiles=(LEFT, RIGHT, SCALAR, Tile(2, (0, 0), (0, 3), 0))),
    "bounds of unequal length": replace(GOOD, tiles=(LEFT, Tile(0, (0, 4), (8,), 0), SCALAR)),
    "other dimensions": replace(GOOD, tiles=(LEFT, RIGHT, Tile(1, (0,), (1,), 0))),
    "an unknown tensor": replace(GOOD, tiles=(LEFT, RIGHT, replace(SCALAR, tensor=3))),
    "a negative tensor": replace(GOOD, tiles=(LEFT, RIGHT, replace(SCALAR, tensor=-2))),
    "a negative shard": replace(GOOD, tiles=(LEFT, RIGHT, replace(SCALAR, shard=-1))),
    "no cuts": replace(GOOD, cuts=()),
    "a first cut that leaves words out": replace(GOOD, cuts=(Cut(1, 0), Cut(2, 0))),
    "cuts out of order": replace(GOOD, cuts=(Cut(0, 0), Cut(2, 0), Cut(1, 0))),
    "a cut twice": replace(GOOD, cuts=(Cut(0, 0), Cut(1, 0), Cut(1, 0))),
    "a cut at the end of a tile": replace(GOOD, block=32, cuts=(Cut(0, 0), Cut(0, 32))),
    "a cut inside a block": replace(GOOD, block=16, cuts=(Cut(0, 0), Cut(0, 8))),
    "a cut past the tiles": replace(GOOD, cuts=(Cut(0, 0), Cut(3, 0))),
    "a negative cut": replace(GOOD, cuts=(Cut(0, 0), Cut(1, -64))),
    "a block of zero": replace(GOOD, block=0),
    "a negative block": replace(GOOD, block=-64),
    "a block that is no power of two": replace(GOOD, block=96),
    "a block over the largest": replace(GOOD, block=2 * MAX_BLOCK),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tilings_are_refused(case: str) -> None:
    check_tiling(GOOD, TENSORS, MAX_BLOCK)
    with pytest.raises(GeometryError, match="tiling"):
        check_tiling(BAD[case], TENSORS, MAX_BLOCK)


# -- a refit in memory ----------------------------------------------------------------------------------------


def place_region(layout: Layout, place: Place) -> Region:
    """Where a place's words lie in its dataset."""
    (dataset,) = [d for d in layout.shards[place.shard].datasets if d.path == place.dataset]
    words = dtype(dataset.dtype).words
    shape = dataset.shape if words == 1 else (*dataset.shape, words)
    return region_of(word_box(place.box, words), shape)


def gather(layout: Layout, arrays: Arrays, place: Place, start: int, stop: int) -> np.ndarray:
    region, array = place_region(layout, place), arrays[place.shard, place.dataset].reshape(-1)
    first, last = region.span(start, stop)
    out = np.empty(stop - start, array.dtype)
    region.gather(array[first:last], start, stop, out)
    return out


def mutate(tensors: tuple[TensorSpec, ...], old: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """The next version: nothing, a little, or everything changes, tensor by tensor."""
    rng, new = np.random.default_rng(seed), {}
    for spec in tensors:
        words = old[spec.name].copy()
        hit = rng.random(words.shape) < rng.choice([0, 0.02, 0.3, 1])
        fresh = random_words(dtype(spec.dtype), words.size, rng).reshape(words.shape)
        step = words + words.dtype.type(1)
        words[hit] = np.where(rng.random() < 0.5, step, fresh)[hit]
        new[spec.name] = words
    return new


def encode_part(world: World, part: int, scheme: Scheme, old: Arrays, new: Arrays, lanes: list[Lanes]) -> bytes:
    """One part as the trainer makes it: buckets of one dtype and one destination; adds to the state digest."""
    tensors, tiling = world.policy.tensors, world.tiling
    placement = Placement(world.policy.trainer, tensors)
    buckets = []
    spans = part_spans(tiling, tensors, part)
    tiles = tiling.tiles
    for (name, _), some in groupby(spans, lambda s: (tensors[tiles[s.tile].tensor].dtype, tiles[s.tile].group)):
        table = block_table(list(some), tiling.block)
        before, after = (np.zeros(table.length, word_type(dtype(name))) for _ in range(2))
        for k in range(len(table)):
            tile = tiling.tiles[table.spans[table.span[k]].tile]
            place = placement.find(tile.tensor, tile.box)[-1]
            start, stop = int(table.start[k]), int(table.start[k] + table.size[k])
            table.view(before, k)[...] = gather(world.policy.trainer, old, place, start, stop)
            table.view(after, k)[...] = gather(world.policy.trainer, new, place, start, stop)
        changes = JIT.changes(before, after, table.offset, table.size)
        regions = [tile_region(tiling.tiles[s.tile], tensors) for s in table.spans]
        rows = geometry_rows([regions[s] for s in table.span], table.start)
        moved = JIT.state_changes(rows, changes.counts, changes.positions, changes.old, changes.new).tolist()
        for k, (a, b) in enumerate(moved):
            tensor = tiling.tiles[table.spans[table.span[k]].tile].tensor
            lanes[tensor] = add(lanes[tensor], (a, b))
        buckets.append(encode(scheme, name, table, tiling.block, before, after, changes, JIT))
    return pack_part(PartHeader(bytes(16), bytes(16), 1, 0, part, len(buckets)), buckets)


def land(world: World, layout: Layout, arrays: Arrays, part: int, data: bytes) -> None:
    """Decode a part into every place of its tiles at a site, behind the gate of the base digests."""
    tensors, tiling = world.policy.tensors, world.tiling
    names = {k: tensors[t.tensor].dtype for k, t in enumerate(tiling.tiles)}
    placement = Placement(layout, tensors)
    allowed = part_spans(tiling, tensors, part)
    cover = Cover("part", allowed, names, tiling.block)
    for bucket in unpack_part(data, "part", cover.buckets)[1]:
        reader = BucketReader(bucket, anchor=False)
        cover.take(reader)
        table = reader.table
        places = [placement.find(tiling.tiles[s.tile].tensor, tiling.tiles[s.tile].box) for s in table.spans]
        assert len({frozenset(p.shard for p in found) for found in places}) == 1  # one destination
        ready = []  # lands once every copy is decoded, as a journal does: tiles with fewer copies are read again
        for copy in range(max(map(len, places))):
            base = np.zeros(table.length, word_type(reader.dtype))
            place_of = [found[min(copy, len(found) - 1)] for found in places]
            for k in range(len(table)):
                start, stop = int(table.start[k]), int(table.start[k] + table.size[k])
                table.view(base, k)[...] = gather(layout, arrays, place_of[table.span[k]], start, stop)
                if reader.changed[k]:
                    assert block_digest(table.view(base, k)) == reader.base[k]
            assert rest_digests(table, base, reader.changed) == reader.rest
            blocks = np.flatnonzero(reader.changed)
            chosen = table.select(blocks)
            words = np.zeros(chosen.length, base.dtype)
            for k, block in enumerate(blocks.tolist()):
                chosen.view(words, k)[...] = table.view(base, block)
            target, _ = reader.decode(words, REFERENCE)
            for k, block in enumerate(blocks.tolist()):
                assert block_digest(chosen.view(target, k)) == reader.target[block]
                ready.append((place_of[chosen.span[k]], int(chosen.start[k]), chosen.view(target, k)))
        for place, start, landed in ready:
            region, array = place_region(layout, place), arrays[place.shard, place.dataset].reshape(-1)
            first, last = region.span(start, start + len(landed))
            region.put(array[first:last], start, start + len(landed), landed)
    cover.finish()


def state(tensors: tuple[TensorSpec, ...], full: dict[str, np.ndarray]) -> list[Lanes]:
    out = []
    for spec in tensors:
        words = full[spec.name].reshape(-1)
        rows = np.array([[0, 0, max(len(words), 1), 1]], np.int64)
        a, b = REFERENCE.state_words(rows, words, np.zeros(1, np.int64), np.array([len(words)], np.int64))[0].tolist()
        out.append((a, b))
    return out


@given(
    worlds(),
    seeds,
    st.sampled_from(["plain", "class", "auto", "dense"]),
    st.sampled_from(["ulp", "xor", "overwrite"]),
    st.sampled_from([None, 1]),
)
def test_refit_is_full_transfer(world: World, seed: int, positions: str, values: str, level: int | None) -> None:
    """Any two layouts, any change: what the site holds after is what copying the new version there would have left."""
    tensors = world.policy.tensors
    scheme = Scheme(positions, values, level)  # type: ignore[arg-type]
    old = full_tensors(tensors, np.random.default_rng(seed))
    new = mutate(tensors, old, seed)
    before, after = (materialise(world.policy.trainer, full) for full in (old, new))
    replicas = {name: materialise(layout, old, padding=0x5C) for name, layout in world.sites.items()}
    lanes = state(tensors, old)
    for part in range(len(world.tiling.cuts)):
        data = encode_part(world, part, scheme, before, after, lanes)
        for name, layout in world.sites.items():
            land(world, layout, replicas[name], part, data)
    for name, layout in world.sites.items():
        expected = materialise(layout, new, padding=0x5C)
        assert {k: a.tobytes() for k, a in replicas[name].items()} == {k: a.tobytes() for k, a in expected.items()}
    assert lanes == state(tensors, new)


def test_refit_of_the_usual_splits() -> None:
    """Group-interleaved to fused QKV, padded to column-split vocabulary, stacked to single experts, row to column."""
    shapes = {
        "q": (16, 6),
        "k": (8, 6),
        "v": (8, 6),
        "emb": (13, 4),
        "w": (7, 9),
        "norm": (6,),
        "x0": (4, 5),
        "x1": (4, 5),
    }
    tensors = tuple(TensorSpec(n, "bf16", s) for n, s in sorted(shapes.items()))
    geometry = {"groups": 4, "queries": 2, "head": 2, "hidden": 6}
    trainer = Layout(
        "trainer",
        tuple(
            ShardLayout(
                f"t{k}",
                (
                    make.grouped_qkv("qkv", "q", "k", "v", "bf16", **geometry, parts=4, index=k),
                    make.padded("emb", (13, 4), "bf16", 16, 4, k),
                    make.split("w", (7, 9), "bf16", 0, 4, k),
                    make.whole("norm", (6,), "bf16"),
                    make.stacked("experts", ["x0", "x1"], (4, 5), "bf16"),
                ),
            )
            for k in range(4)
        ),
    )
    site = Layout(
        "site",
        tuple(
            ShardLayout(
                f"r{k}",
                (
                    make.fused("qkv", [(n, shapes[n]) for n in "qkv"], "bf16", 0, 2, k),
                    make.split("emb", (13, 4), "bf16", 1, 2, k),
                    make.split("w", (7, 9), "bf16", 1, 2, k),
                    make.whole("norm", (6,), "bf16"),
                    make.whole(f"x{k}", (4, 5), "bf16"),
                ),
            )
            for k in range(2)
        ),
    )
    check_layout(trainer, tensors)
    check_layout(site, tensors)
    tiles = make_tiles(Policy("p", tensors, trainer), {"site": site})
    world = World(
        Policy("p", tensors, trainer), {"site": site}, Tiling("p", {}, 64, tiles, cut_parts(tiles, tensors, 64, 200))
    )
    old = full_tensors(tensors, np.random.default_rng(0))
    for name in shapes:  # each tensor alone, so that nothing hides behind another
        new = {n: a.copy() for n, a in old.items()}
        new[name] ^= np.uint16(0x8001)
        before, after = materialise(trainer, old), materialise(trainer, new)
        replica = materialise(site, old, padding=0x5C)
        lanes = state(tensors, old)
        for part in range(len(world.tiling.cuts)):
            land(world, site, replica, part, encode_part(world, part, Scheme(), before, after, lanes))
        expected = materialise(site, new, padding=0x5C)
        assert all(np.array_equal(replica[k], expected[k]) for k in expected), name
        assert lanes == state(tensors, new)
    assert sum(math.prod(t.box.shape) for t in tiles) == sum(math.prod(s) for s in shapes.values())
