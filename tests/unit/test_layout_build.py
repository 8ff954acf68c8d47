"""Builders against explicit numpy constructions: tensors are built whole, then cut as a framework cuts them."""

from __future__ import annotations

import numpy as np
import pytest

from dcr_mpi.layout import build as make
from dcr_mpi.layout import check_layout, make_tiles, tensors_of
from dcr_mpi.model import DatasetLayout, Layout, Policy, ShardLayout, TensorSpec
from tests.strategies import materialise

BF16 = "bf16"


def tensors(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Words that tell where they are from: tensor number in the high byte, index in the low one."""
    out = {}
    for number, (name, shape) in enumerate(shapes.items()):
        out[name] = (
            (np.arange(int(np.prod(shape, dtype=int))) % 251 + 256 * (number + 1)).astype(np.uint16).reshape(shape)
        )
    return out


def spread(full: dict[str, np.ndarray], shards: list[list[DatasetLayout]]) -> dict[tuple[int, str], np.ndarray]:
    """What a layout of these datasets holds; the layout is checked on the way."""
    layout = Layout("x", tuple(ShardLayout(f"s{k}.h5", tuple(d)) for k, d in enumerate(shards)))
    check_layout(layout, [TensorSpec(n, BF16, a.shape) for n, a in full.items()])
    words = materialise(layout, {n: a[..., None] for n, a in full.items()}, padding=0xFF)
    return {key: array[..., 0] for key, array in words.items()}


@pytest.mark.parametrize(("extent", "parts"), [(8, 4), (7, 3), (3, 5), (0, 2), (1, 1)])
def test_chunks_are_numpys(extent: int, parts: int) -> None:
    for index, wanted in enumerate(np.array_split(np.arange(extent), parts)):
        start, stop = make.chunk(extent, parts, index)
        assert list(range(start, stop)) == wanted.tolist()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_row_column_and_other_splits(axis: int, parts: int) -> None:
    full = tensors(w=(5, 6, 4))
    held = spread(full, [[make.split("w", (5, 6, 4), BF16, axis, parts, k)] for k in range(parts)])
    for k, wanted in enumerate(np.array_split(full["w"], parts, axis)):
        assert np.array_equal(held[k, "w"], wanted)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_fused_qkv(parts: int) -> None:
    """Each rank: its query rows, then its key rows, then its value rows."""
    full = tensors(q=(12, 5), k=(6, 5), v=(6, 5))
    members = [(n, a.shape) for n, a in full.items()]
    held = spread(full, [[make.fused("qkv", members, BF16, 0, parts, r)] for r in range(parts)])
    for r in range(parts):
        wanted = np.concatenate([np.array_split(full[n], parts)[r] for n in "qkv"])
        assert np.array_equal(held[r, "qkv"], wanted)


def test_fused_gate_up_along_the_last_axis() -> None:
    full = tensors(gate=(3, 4, 6), up=(3, 4, 6))
    held = spread(full, [[make.fused("gu", [(n, (3, 4, 6)) for n in full], BF16, 2, 2, r)] for r in range(2)])
    for r in range(2):
        assert np.array_equal(held[r, "gu"], np.concatenate([full[n][..., 3 * r : 3 * r + 3] for n in full], axis=2))


@pytest.mark.parametrize(("groups", "parts"), [(4, 1), (4, 2), (4, 4), (3, 2)])
def test_group_interleaved_qkv(groups: int, parts: int) -> None:
    """Per key-value group: its query heads, its key head, its value head."""
    queries, head, hidden = 3, 2, 5
    full = tensors(q=(groups * queries * head, hidden), k=(groups * head, hidden), v=(groups * head, hidden))
    q = full["q"].reshape(groups, queries * head, hidden)
    k, v = (full[n].reshape(groups, head, hidden) for n in "kv")
    whole = np.concatenate([q, k, v], axis=1)  # (groups, rows of a group, hidden)
    geometry = {"groups": groups, "queries": queries, "head": head, "hidden": hidden}
    shards = [[make.grouped_qkv("qkv", "q", "k", "v", BF16, **geometry, parts=parts, index=r)] for r in range(parts)]
    held = spread(full, shards)
    for r, wanted in enumerate(np.array_split(whole, parts)):
        assert np.array_equal(held[r, "qkv"], wanted.reshape(-1, hidden))


def test_stacked_experts_against_one_tensor_each() -> None:
    full = tensors(**{f"expert{e}": (4, 3) for e in range(5)})
    stacked = spread(full, [[make.stacked("experts", list(full), (4, 3), BF16)]])
    assert np.array_equal(stacked[0, "experts"], np.stack(list(full.values())))
    single = spread(full, [[make.whole(n, (4, 3), BF16)] for n in full])
    for e, name in enumerate(full):
        assert np.array_equal(single[e, name], full[name])


def test_one_fused_expert_tensor_cut_by_experts_and_columns() -> None:
    """[experts, 2 * inner, hidden], split by experts in training and along the last axis in inference."""
    full = tensors(w=(4, 6, 5))
    by_expert = spread(full, [[make.split("w", (4, 6, 5), BF16, 0, 4, r)] for r in range(4)])
    by_column = spread(full, [[make.split("w", (4, 6, 5), BF16, 2, 2, r)] for r in range(2)])
    assert np.array_equal(np.concatenate([by_expert[r, "w"] for r in range(4)]), full["w"])
    assert np.array_equal(np.concatenate([by_column[r, "w"] for r in range(2)], axis=2), full["w"])


@pytest.mark.parametrize(
    ("vocabulary", "rows", "parts"), [(13, 16, 4), (13, 16, 2), (16, 16, 4), (5, 16, 4), (13, 64, 4)]
)
def test_padded_vocabulary(vocabulary: int, rows: int, parts: int) -> None:
    full = tensors(emb=(vocabulary, 3))
    held = spread(full, [[make.padded("emb", (vocabulary, 3), BF16, rows, parts, r)] for r in range(parts)])
    whole = np.full((rows, 3), 0xFFFF, np.uint16)
    whole[:vocabulary] = full["emb"]
    for r, wanted in enumerate(np.split(whole, parts)):
        assert np.array_equal(held[r, "emb"], wanted)


def test_replicas_and_ties() -> None:
    full = tensors(norm=(6,), emb=(4, 3))
    replicas = [[make.whole("norm", (6,), BF16), make.whole("emb", (4, 3), BF16, ("head",))] for _ in range(3)]
    held = spread(full, replicas)
    for r in range(3):
        assert np.array_equal(held[r, "norm"], full["norm"])
    layout = Layout("t", tuple(ShardLayout(f"s{k}", tuple(d)) for k, d in enumerate(replicas)))
    assert tensors_of(layout) == (TensorSpec("emb", BF16, (4, 3), ("head",)), TensorSpec("norm", BF16, (6,)))
    # Three equal places are still one tile: sent once.
    tiles = make_tiles(Policy("p", tensors_of(layout), layout), {})
    assert [(t.tensor, t.shard) for t in tiles] == [(0, 0), (1, 0)]


def test_a_dataset_under_another_path() -> None:
    full = tensors(w=(4, 6))
    held = spread(
        full, [[make.whole("model/w", (4, 6), BF16, tensor="w"), make.split("w", (4, 6), BF16, 1, 2, 1, "col")]]
    )
    assert np.array_equal(held[0, "model/w"], full["w"])
    assert np.array_equal(held[0, "col"], full["w"][:, 3:])
