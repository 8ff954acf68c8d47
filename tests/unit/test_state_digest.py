"""The state digest: the same on every layout, moved by changes alone, and sensitive to all that it should be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.digest import MASK64, MIX_A, MIX_B, MIX_C, MIX_D, MIX_E, Lanes, add, lanes_hex, lanes_of, state_digest
from dcr_mpi.dtypes import dtype
from dcr_mpi.errors import CorruptInput
from dcr_mpi.kernels import get_kernels
from dcr_mpi.kernels.api import Kernels
from dcr_mpi.layout import geometry_rows, make_tiles, tile_region
from dcr_mpi.model import Box, Layout, Policy, TensorSpec, Tile
from tests.strategies import DTYPES, full_tensors, layouts, random_split, seeds, tensor_tables

REFERENCE, JIT = get_kernels("numpy"), get_kernels("numba")


def mix(index: int, word: int) -> Lanes:
    """docs/format.md, word for word, in Python integers."""
    x = (index * MIX_A + word * MIX_B) & MASK64
    x ^= x >> 32
    x = (x * MIX_C) & MASK64
    x ^= x >> 29
    x = (x * MIX_D) & MASK64
    x ^= x >> 32
    return x, ((x ^ (x >> 31)) * MIX_E) & MASK64


def plain(words: Sequence[int]) -> Lanes:
    total: Lanes = (0, 0)
    for index, word in enumerate(words):
        total = add(total, mix(index, word))
    return total


def digest(kernels: Kernels, words: np.ndarray) -> Lanes:
    """Of a one-dimensional tensor, in one block."""
    rows = np.array([[0, 0, len(words), 1]], np.int64)
    (pair,) = kernels.state_words(rows, words, np.zeros(1, np.int64), np.array([len(words)], np.int64)).tolist()
    return pair[0], pair[1]


def test_worked_example_of_the_format_document() -> None:
    """These numbers stand in docs/format.md."""
    assert mix(0, 0) == (0, 0)
    assert lanes_hex(mix(0, 0x3F80)) == "f0f67ba5b4047ea878b4b93dbe51ee0d"
    assert lanes_hex(mix(1, 0x3F80)) == "4157ee2295f4128ae8e515d24898d6e1"
    assert lanes_hex(mix(2, 0xBF80)) == "62f9cd79c43e95e7e43467df53af032c"
    lanes = plain([0x3F80, 0x3F80, 0xBF80])
    assert lanes_hex(lanes) == "954837420e37271945ce36ef5a99c81a"
    for kernels in (REFERENCE, JIT):
        assert digest(kernels, np.array([0x3F80, 0x3F80, 0xBF80], np.uint16)) == lanes
    tensors = [TensorSpec("w", "bf16", (3,)), TensorSpec("b", "i64", ())]
    texts = [lanes_hex(lanes), lanes_hex(plain([7]))]
    assert texts[1] == "e702b931268e323085aee53758ec1f4e"
    state = state_digest(tensors, texts)
    assert state == "663063df2d0cb8d38a9ec5f0a44a5567fffe687408d69a6757cc97b6d9bd8181"
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    for shown in (*texts, state, *(lanes_hex(mix(*pair)) for pair in [(0, 0x3F80), (1, 0x3F80), (2, 0xBF80)])):
        assert f"`{shown}`" in text


def test_constants() -> None:
    """Constants are part of the format."""
    assert [MIX_A, MIX_B, MIX_C, MIX_D, MIX_E] == [
        0x9E3779B97F4A7C15,
        0xD6E8FEB86659FD93,
        0xBF58476D1CE4E5B9,
        0x94D049BB133111EB,
        0xC2B2AE3D27D4EB4F,
    ]
    assert all(c % 2 for c in (MIX_A, MIX_B, MIX_C, MIX_D, MIX_E))  # odd: each step can be undone


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[TensorSpec, ...], tuple[Tile, ...], int]:
    tensors = draw(tensor_tables())
    trainer = draw(layouts(tensors, "trainer"))
    sites: dict[str, Layout] = {"a": draw(layouts(tensors, "a"))}
    return tensors, make_tiles(Policy("p", tensors, trainer), sites), draw(seeds)


@given(tilings())
def test_random_tilings_sum_to_the_same_lanes(drawn: tuple[tuple[TensorSpec, ...], tuple[Tile, ...], int]) -> None:
    """Any tiles of any layouts, cut into any blocks, summed in any order; a change moves the sum by itself."""
    tensors, tiles, seed = drawn
    rng = np.random.default_rng(seed)
    old, new = full_tensors(tensors, rng), full_tensors(tensors, rng)
    for name, words in new.items():
        keep = rng.random(words.shape) < 0.7
        words[keep] = old[name][keep]
    expected = {s.name: plain(old[s.name].ravel().tolist()) for s in tensors}
    after = {s.name: plain(new[s.name].ravel().tolist()) for s in tensors}
    found: dict[str, Lanes] = {s.name: (0, 0) for s in tensors}
    moved = dict(expected)
    for k in rng.permutation(len(tiles)).tolist():
        tile = tiles[k]
        spec = tensors[tile.tensor]
        region = tile_region(tile, tensors)
        where = tuple(slice(a, b) for a, b in zip(tile.start, tile.stop, strict=True))
        before, later = (full[spec.name][where].ravel() for full in (old, new))
        for start, stop in random_split(region.size, 3, rng):
            rows = geometry_rows([region], np.array([start], np.int64))
            at, size = np.zeros(1, np.int64), np.array([stop - start], np.int64)
            kernels = (REFERENCE, JIT)[int(rng.integers(0, 2))]
            a, b = kernels.state_words(rows, before[start:stop].copy(), at, size)[0].tolist()
            found[spec.name] = add(found[spec.name], (a, b))
            changes = kernels.changes(before[start:stop].copy(), later[start:stop].copy(), at, size)
            a, b = kernels.state_changes(rows, changes.counts, changes.positions, changes.old, changes.new)[0].tolist()
            moved[spec.name] = add(moved[spec.name], (a, b))
    assert found == expected
    assert moved == after


@pytest.mark.parametrize("name", DTYPES)
def test_sensitive_to_every_bit_to_swaps_and_to_the_index(name: str) -> None:
    kind = dtype(name)
    rng = np.random.default_rng(1)
    base = rng.permutation(256)[:24].astype(f"<u{kind.word_bytes}")
    seen = {digest(JIT, base)}
    for k in range(24):
        for bit in range(8 * kind.word_bytes):
            mutant = base.copy()
            mutant[k] ^= mutant.dtype.type(1 << bit)
            seen.add(digest(JIT, mutant))
        for j in range(k):
            mutant = base.copy()
            mutant[[k, j]] = mutant[[j, k]]
            seen.add(digest(JIT, mutant))
    shifted = np.concatenate((base[1:], base[:1]))
    seen |= {digest(JIT, shifted), digest(JIT, base[:-1]), digest(JIT, base[::-1].copy())}
    assert len(seen) == 1 + 24 * 8 * kind.word_bytes + 24 * 23 // 2 + 3
    assert len({a for a, _ in seen}) == len({b for _, b in seen}) == len(seen)  # in either lane alone


def test_zero_words_past_the_first_still_count() -> None:
    """Only word 0 at index 0 adds nothing, so the shape must be part of a version's digest, and is."""
    assert digest(JIT, np.zeros(1, np.uint16)) == (0, 0) != digest(JIT, np.zeros(2, np.uint16))
    one, none = TensorSpec("t", "u16", (1,)), TensorSpec("t", "u16", (0,))
    assert state_digest([one], ["0" * 32]) != state_digest([none], ["0" * 32])


def test_the_version_digest_depends_on_content_not_on_order() -> None:
    a, b = TensorSpec("a", "bf16", (2, 3)), TensorSpec("b", "bf16", (2, 3))
    x, y = "1" * 32, "2" * 32
    assert state_digest([a, b], [x, y]) == state_digest([b, a], [y, x])
    assert TensorSpec("a", "bf16", (2, 3), ("tied",)) != a
    others = [
        state_digest([a, b], [y, x]),
        state_digest([TensorSpec("a", "f16", (2, 3)), b], [x, y]),
        state_digest([TensorSpec("a", "bf16", (3, 2)), b], [x, y]),
        state_digest([TensorSpec("c", "bf16", (2, 3)), b], [x, y]),
        state_digest([a], [x]),
    ]
    assert len({state_digest([a, b], [x, y]), *others}) == 6
    with pytest.raises(ValueError, match="zip"):
        state_digest([a, b], [x])


@given(st.integers(0, MASK64), st.integers(0, MASK64))
def test_lanes_as_text(a: int, b: int) -> None:
    assert lanes_of(lanes_hex((a, b))) == (a, b)


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "0" * 31 + "g", "A" * 32, "0x" + "0" * 30, " " * 32])
def test_bad_lanes_are_refused(text: str) -> None:
    with pytest.raises(CorruptInput, match="32 hex digits"):
        lanes_of(text)


def test_big_indices_do_not_wrap() -> None:
    """Words on both sides of 2^31 and 2^32 of a tensor that is never held."""
    for at in (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40):
        region = tile_region(Tile(0, (at - 1, 1), (at + 1, 2), 0), [TensorSpec("t", "u16", (2**41, 3))])
        rows = geometry_rows([region], np.zeros(1, np.int64))
        words = np.array([5, 6], np.uint16)
        expected = add(mix((at - 1) * 3 + 1, 5), mix(at * 3 + 1, 6))
        for kernels in (REFERENCE, JIT):
            found = kernels.state_words(rows, words, np.zeros(1, np.int64), np.array([2], np.int64))
            assert tuple(found[0].tolist()) == expected


def test_whole_box_is_one_run() -> None:
    assert tile_region(Tile(0, (0, 0), (4, 5), 0), [TensorSpec("t", "raw16", (4, 5))]).shape == (40,)
    assert Box.whole((4, 5)).size == 20
