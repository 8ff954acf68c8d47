"""Checkpoints of real pairs, without what trains them: written sharded, read back by tensor, taken by dcr."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.real.checkpoints import describe, found_pairs, layout_of, read, write
from bench.real.text import functions
from dcr_mpi.checkpoint import Checkpoint
from dcr_mpi.layout import check_layout, tensors_of

SHAPES = {"embeddings.weight": (31, 8), "layer.0.weight": (6, 4), "layer.0.bias": (6,)}


def test_what_was_written_is_read_back_whole(tmp_path: Path) -> None:
    layout = layout_of(SHAPES)
    check_layout(layout, tensors_of(layout))
    draw = np.random.default_rng(1)
    steps = [{n: draw.integers(0, 1 << 16, s, np.uint16) for n, s in SHAPES.items()} for _ in range(2)]
    for k, words in enumerate(steps):
        write(tmp_path / "run" / f"step-{k}", layout, words, k)
        with Checkpoint(tmp_path / "run" / f"step-{k}", layout) as checkpoint:
            assert [checkpoint.inventory(shard).step for shard in range(2)] == [k, k]
    describe(tmp_path, layout, [("a pair", "run/step-0", "run/step-1")], {"seed": 1})
    (pair,) = found_pairs(tmp_path)
    assert pair.name == "a pair"
    for directory, words in zip((pair.base, pair.new), steps, strict=True):
        found = {name: (shape, flat) for name, shape, flat in read(directory)}
        assert set(found) == set(SHAPES)
        for name, (shape, flat) in found.items():
            assert shape == SHAPES[name]
            assert (flat.reshape(shape) == words[name]).all()


def test_no_pairs_where_none_were_made(tmp_path: Path) -> None:
    assert found_pairs(tmp_path) == []


def test_text_comes_from_installed_packages_and_is_repeatable() -> None:
    once, again = functions(3, 20), functions(3, 20)
    assert once == again
    assert len(once) == 20
    assert all(len(words) >= 40 and body.startswith("def ") for words, body in once)
