"""Regions against numpy slicing: where words lie, and copies into and out of windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.model import Box
from dcr_mpi.region import Region, region_of
from tests.strategies import seeds


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Box, tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=5)))
    start = tuple(draw(st.integers(0, n - 1)) for n in shape)
    stop = tuple(draw(st.integers(a + 1, n)) for a, n in zip(start, shape, strict=True))
    return Box(start, stop), shape


def inside(box: Box, shape: tuple[int, ...]) -> np.ndarray:
    """Flat indices of a box's words in its array, in the box's row-major order, by plain slicing."""
    whole = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    return whole[tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))].ravel()


@given(boxes())
def test_locate_and_span_are_numpys_order(where: tuple[Box, tuple[int, ...]]) -> None:
    box, shape = where
    region, flat = region_of(box, shape), inside(*where)
    assert region.size == box.size == len(flat)
    assert [region.locate(k) for k in range(len(flat))] == flat.tolist()
    assert region.contiguous == (flat.tolist() == list(range(flat[0], flat[0] + len(flat))) and len(region.shape) == 1)
    if flat[-1] - flat[0] + 1 == len(flat):
        assert len(region.shape) == 1  # whatever runs on collapses
    for a in range(len(flat)):
        for b in {a + 1, (a + len(flat) + 1) // 2, len(flat)} - set(range(a + 1)):
            assert region.span(a, b) == (flat[a], flat[b - 1] + 1)
        assert region.span(a, a) == (region.base, region.base)


@given(boxes(), st.sampled_from(["u1", "u2", "u4", "u8"]), seeds)
def test_gather_and_put_are_numpys_slices(where: tuple[Box, tuple[int, ...]], word: str, seed: int) -> None:
    box, shape = where
    rng, region, flat = np.random.default_rng(seed), region_of(box, shape), inside(*where)
    array = rng.integers(0, 256, int(np.prod(shape, dtype=int)) * np.dtype(word).itemsize, dtype=np.uint8).view(word)
    for _ in range(6):
        start, stop = sorted(rng.integers(0, len(flat) + 1, 2).tolist())
        first, last = region.span(start, stop)
        out = np.empty(stop - start, word)
        region.gather(array[first:last], start, stop, out)
        assert out.tolist() == array[flat[start:stop]].tolist()
        words = rng.integers(0, 256, out.nbytes, dtype=np.uint8).view(word)
        expected = array.copy()
        expected[flat[start:stop]] = words
        region.put(array[first:last], start, stop, words)
        assert array.tobytes() == expected.tobytes()


@given(boxes(), st.integers(1, 40), seeds)
def test_windows_cover_in_order_and_fit(where: tuple[Box, tuple[int, ...]], limit: int, seed: int) -> None:
    region = region_of(*where)
    start, stop = sorted(np.random.default_rng(seed).integers(0, region.size + 1, 2).tolist())
    at = start
    for a, b in region.windows(start, stop, limit):
        first, last = region.span(a, b)
        assert a == at < b and (last - first <= limit or b == a + 1)
        if b < stop:
            wider = region.span(a, b + 1)
            assert wider[1] - wider[0] > limit  # as long as it can be
        at = b
    assert at == max(start, stop)


def test_scalars_and_empty_boxes() -> None:
    assert region_of(Box((), ()), ()) == Region(0, (1,), (1,))
    empty = region_of(Box((2, 0), (2, 5)), (4, 5))
    assert empty.size == 0 and empty.span(0, 0) == (10, 10)
    assert list(empty.windows(0, 0, 8)) == []


@pytest.mark.parametrize("words", [2**31 - 1, 2**31, 2**32, 2**40])
def test_offsets_past_32_bits(words: int) -> None:
    """A column of a matrix whose rows are far apart: offsets grow past 2^31 and 2^32 without wrapping."""
    region = region_of(Box((0, 7), (5, 9)), (5, words))
    assert region.locate(9) == 4 * words + 8
    assert region.span(2, 10) == (words + 7, 4 * words + 9)
