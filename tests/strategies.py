"""Hypothesis strategies that several tests share: words of every dtype, buckets of blocks, tensors and layouts.

Shapes and structure are drawn by hypothesis, so that it can shrink them; bulk words come from a drawn seed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from dcr_mpi.codec import BlockTable, block_table
from dcr_mpi.dtypes import DType, dtype
from dcr_mpi.kernels.api import Changes, Kernels
from dcr_mpi.kernels.hazard import Model, axis
from dcr_mpi.layout import Span
from dcr_mpi.model import Box, DatasetLayout, Layout, Piece, ShardLayout, TensorSpec

# The same examples in every run, so that a red test is red for everybody; a long campaign loads another profile.
settings.register_profile(
    "unit", max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("campaign", settings.get_profile("unit"), max_examples=5000, derandomize=False)
settings.load_profile(os.environ.get("DCR_HYPOTHESIS", "unit"))

DTYPES = (
    "bf16", "f16", "f32", "f64", "f8e4m3", "f8e5m2", "bool", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64",
    "bf16be", "f32be", "i64be", "raw3", "raw6", "raw16",
)  # fmt: skip
HOWS = ("none", "one", "ends", "few", "many", "every", "run", "nudge")
seeds = st.integers(0, 2**32 - 1)


def word_type(kind: DType) -> np.dtype:
    """The numpy type of a dtype's words."""
    return np.dtype(f"<u{kind.word_bytes}")


def special_words(kind: DType) -> np.ndarray:
    """Words at the edges: zeros and ones of both signs, infinities, NaNs of both kinds, denormals, wrap-around."""
    bits = 8 * kind.word_bytes
    sign, top = 1 << (bits - 1), (1 << bits) - 1
    picks = {0, 1, sign, sign | 1, sign - 1, top, top - 1}
    if kind.is_float:
        infinity, quiet = ((1 << kind.exponent) - 1) << kind.mantissa, 1 << (kind.mantissa - 1)
        one = ((1 << (kind.exponent - 1)) - 1) << kind.mantissa
        for word in (one, infinity, infinity | 1, infinity | quiet, infinity | quiet | 1, (1 << kind.mantissa) - 1):
            picks |= {word, word | sign}
    return np.array(sorted(picks), np.uint64).astype(word_type(kind))


def random_words(kind: DType, size: int, rng: np.random.Generator) -> np.ndarray:
    """Random words, a third of them special ones."""
    words = rng.integers(0, 2**64, size, dtype=np.uint64).astype(word_type(kind))
    special = special_words(kind)
    return np.where(rng.random(size) < 1 / 3, rng.choice(special, size), words).astype(word_type(kind))


def change(words: np.ndarray, how: str, kind: DType, rng: np.random.Generator) -> None:
    """Change a block's words in place in one of the ways of ``HOWS``; every word that is touched differs after."""
    n = len(words)
    at = np.arange(n)
    chance = {"few": 0.03, "nudge": 0.1, "many": 0.5, "every": 1.0}.get(how, 0.0)
    mask = {
        "one": at == rng.integers(0, n),
        "ends": (at == 0) | (at == n - 1),
        "run": np.abs(at - n // 2) < n // 3,
    }.get(how, rng.random(n) < chance)
    one = words.dtype.type(1)
    if how == "nudge":
        words[mask] += one
    else:
        fresh = random_words(kind, n, rng)
        words[mask] = np.where(fresh == words, words ^ one, fresh)[mask]


@dataclass
class BucketCase:
    """A bucket before and after: both arrays are packed as ``table`` says."""

    kind: DType
    block: int
    table: BlockTable
    base: np.ndarray
    new: np.ndarray
    rng: np.random.Generator


@st.composite
def bucket_cases(draw: st.DrawFn, names: Sequence[str] = DTYPES) -> BucketCase:
    """A bucket of a few spans over a few tiles, each block changed in its own way."""
    kind = dtype(draw(st.sampled_from(names)))
    block = 1 << draw(st.integers(6, 10))
    spans: list[Span] = []
    tile, end = draw(st.integers(0, 300)), 0
    for _ in range(draw(st.integers(1, 4))):
        start = -(-end // block) * block + block * draw(st.sampled_from([0, 0, 1, 1000]))
        end = start + draw(st.sampled_from([1, 63, 64, block, 2 * block + 1]) | st.integers(1, 3 * block))
        spans.append(Span(tile, start, end))
        step = draw(st.sampled_from([0, 1, 5, 200]))
        tile, end = tile + step, 0 if step else end
    table = block_table(spans, block)
    rng = np.random.default_rng(draw(seeds))
    base = random_words(kind, table.length, rng)
    new = base.copy()
    ways = draw(st.lists(st.sampled_from(HOWS), min_size=1, max_size=6))
    for k in range(len(table)):
        change(table.view(new, k), ways[k % len(ways)], kind, rng)
    return BucketCase(kind, block, table, base, new, rng)


@st.composite
def tensor_tables(draw: st.DrawFn, names: Sequence[str] = DTYPES) -> tuple[TensorSpec, ...]:
    """A few small tensors of mixed dtypes: scalars, empty ones, up to three dimensions."""
    count = draw(st.integers(1, 4))
    shapes = st.lists(st.integers(0, 9) | st.just(1), max_size=3).map(tuple)
    return tuple(TensorSpec(f"t{k}", draw(st.sampled_from(names)), draw(shapes)) for k in range(count))


def _cut(draw: st.DrawFn, box: Box) -> list[Box]:
    """A box cut by up to a few guillotine cuts."""
    boxes = [box]
    for _ in range(draw(st.integers(0, 4))):
        victim = draw(st.sampled_from(boxes))
        wide = [d for d, n in enumerate(victim.shape) if n > 1]
        if wide:
            axis = draw(st.sampled_from(wide))
            at = draw(st.integers(victim.start[axis] + 1, victim.stop[axis] - 1))
            boxes.remove(victim)
            boxes.append(Box(victim.start, (*victim.stop[:axis], at, *victim.stop[axis + 1 :])))
            boxes.append(Box((*victim.start[:axis], at, *victim.start[axis + 1 :]), victim.stop))
    return boxes


def _dataset(draw: st.DrawFn, path: str, kind: str, held: Sequence[tuple[str, Box]]) -> DatasetLayout:
    """Boxes of equal trailing extents, one below the other in a dataset, with padding rows in between.

    Extents of 1 come and go: a box of shape (1, 4) may be one row of 4, as an expert in a stack is.
    """
    rows, trail, pieces, padding = 0, _rows(held[0][1])[1], [], []
    for tensor, box in held:
        gap = draw(st.integers(0, 2))
        if gap:
            padding.append(Box((rows, *(0,) * len(trail)), (rows + gap, *trail)))
        height = _rows(box)[0]
        local = Box((rows + gap, *(0,) * len(trail)), (rows + gap + height, *trail))
        pieces.append(Piece(tensor, local, box))
        rows += gap + height
    if draw(st.booleans()):
        padding.append(Box((rows, *(0,) * len(trail)), (rows + 1, *trail)))
        rows += 1
    return DatasetLayout(path, (rows, *trail), kind, tuple(pieces), tuple(padding))


def _rows(box: Box) -> tuple[int, tuple[int, ...]]:
    """A box's extents without its 1s, as rows and the extents of a row."""
    wide = [n for n in box.shape if n != 1]
    return (wide[0], tuple(wide[1:])) if wide else (1, ())


@st.composite
def layouts(draw: st.DrawFn, tensors: Sequence[TensorSpec], name: str) -> Layout:
    """A valid layout: tensors cut anyhow, replicated in part or whole, fused, padded, over 1 to 4 shards."""
    shards = draw(st.integers(1, 4))
    groups: dict[tuple[str, int | tuple[int, ...], int], list[tuple[str, Box]]] = {}
    serial = 0
    for spec in tensors:
        whole = Box.whole(spec.shape)
        boxes = _cut(draw, whole)
        boxes += draw(st.lists(st.sampled_from(boxes), max_size=2))  # replicas of pieces
        boxes += [whole] * draw(st.sampled_from([0, 0, 0, 1]))  # a replica of all of it
        for box in boxes:
            serial += 1
            alone = serial if draw(st.booleans()) else _rows(box)[1]
            groups.setdefault((spec.dtype, alone, draw(st.integers(0, shards - 1))), []).append((spec.name, box))
    placed: list[list[DatasetLayout]] = [[] for _ in range(shards)]
    for number, ((kind, alone, shard), held) in enumerate(groups.items()):
        if isinstance(alone, int) and draw(st.booleans()):  # the box as it is, all of its extents
            tensor, box = held[0]
            dataset = DatasetLayout(f"d{number}", box.shape, kind, (Piece(tensor, Box.whole(box.shape), box),))
        else:
            dataset = _dataset(draw, f"d{number}", kind, held)
        placed[shard].append(dataset)
    return Layout(name, tuple(ShardLayout(f"{name}-{k}.h5", tuple(d)) for k, d in enumerate(placed)))


def full_tensors(tensors: Sequence[TensorSpec], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random words of every tensor, shaped (*shape, words per element)."""
    out = {}
    for spec in tensors:
        kind = dtype(spec.dtype)
        shape = (*spec.shape, kind.words)
        out[spec.name] = random_words(kind, int(np.prod(shape)), rng).reshape(shape)
    return out


Arrays = dict[tuple[int, str], np.ndarray]


def materialise(layout: Layout, full: dict[str, np.ndarray], padding: int = 0xA5) -> Arrays:
    """A checkpoint in memory, by plain numpy slicing: (shard, dataset path) to words of (*shape, words per element).

    Bytes that no piece holds are ``padding``.
    """
    out: Arrays = {}
    for number, shard in enumerate(layout.shards):
        for dataset in shard.datasets:
            kind = dtype(dataset.dtype)
            raw = np.full((*dataset.shape, kind.words * kind.word_bytes), padding, np.uint8)
            words = raw.view(word_type(kind))
            for piece in dataset.pieces:
                inside = full[piece.tensor][_slices(piece.canonical)]
                target = words[_slices(piece.local)]
                target[...] = inside.reshape(target.shape)
            out[number, dataset.path] = words
    return out


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))


def random_split(size: int, pieces: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """``0..size`` cut at random into at most ``pieces`` non-empty ranges."""
    edges = sorted({0, size, *rng.integers(0, size + 1, max(pieces - 1, 0)).tolist()})
    return list(pairwise(edges))


def class_code(
    room: Kernels,
    model: Model,
    base: np.ndarray,
    offsets: np.ndarray,
    sizes: np.ndarray,
    changes: Changes,
    coded: np.ndarray,
) -> np.ndarray:
    """The class coder's code, in both its steps."""
    hazards = room.hazards(model, base, offsets, sizes, changes)
    return room.hazard_encode(model, axis(model.log2), hazards, changes.old, coded)
