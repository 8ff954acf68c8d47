"""Layouts: boxes and their refinement, what a layout says about tensors, and everything that validation refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.errors import GeometryError
from dcr_mpi.layout import check_file_name, check_layout, refine, tensors_of, to_local
from dcr_mpi.model import Box, DatasetLayout, Layout, Piece, ShardLayout, TensorSpec
from tests.strategies import layouts, tensor_tables


@st.composite
def shapes_and_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    edges = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape for _ in range(5)]
    boxes = []
    for k in range(draw(st.integers(0, 5))):
        mine = [edges[d * 5 + k] for d in range(len(shape))]
        boxes.append(Box(tuple(a for a, _ in mine), tuple(b for _, b in mine)))
    return shape, boxes


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))


@given(shapes_and_boxes())
def test_refinement_is_disjoint_complete_and_uncut(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, boxes = drawn
    seen = np.zeros(shape, int)
    for cell, owners in refine(Box.whole(shape), boxes):
        assert cell.size > 0
        seen[slices(cell)] += 1
        for k, box in enumerate(boxes):
            assert cell.within(box) if k in owners else cell.meet(box) is None
    assert (seen == 1).all()


def test_refinement_of_a_simple_split_keeps_its_cells() -> None:
    whole = Box((0, 0), (8, 6))
    rows = [Box((0, 0), (4, 6)), Box((4, 0), (8, 6))]
    columns = [Box((0, 0), (8, 3)), Box((0, 3), (8, 6))]
    assert [c for c, _ in refine(whole, rows)] == rows
    assert len(list(refine(whole, rows + columns))) == 4


@given(st.data())
def test_random_layouts_are_valid_and_imply_their_tensors(data: st.DataObject) -> None:
    tensors = data.draw(tensor_tables())
    layout = data.draw(layouts(tensors, "site"))
    check_layout(layout, tensors)
    assert tensors_of(layout) == tensors


# -- refusals -------------------------------------------------------------------------------------------------

TENSORS = (TensorSpec("a", "bf16", (4, 6)), TensorSpec("b", "f32", (3,)))


def whole(path: str, shape: tuple[int, ...], kind: str, tensor: str = "") -> DatasetLayout:
    return DatasetLayout(path, shape, kind, (Piece(tensor or path, Box.whole(shape), Box.whole(shape)),))


def layout(*datasets: DatasetLayout, file: str = "s0.h5") -> Layout:
    return Layout("site", (ShardLayout(file, datasets),))


A, B = whole("a", (4, 6), "bf16"), whole("b", (3,), "f32")


def pieces(*rows: tuple[str, Box, Box]) -> tuple[Piece, ...]:
    return tuple(Piece(*row) for row in rows)


def part_of_a(start: tuple[int, int], stop: tuple[int, int], path: str) -> DatasetLayout:
    box = Box(start, stop)
    return DatasetLayout(path, box.shape, "bf16", (Piece("a", Box.whole(box.shape), box),))


def test_the_good_ones() -> None:
    check_layout(layout(A, B), TENSORS)
    check_layout(layout(part_of_a((0, 0), (2, 6), "x"), part_of_a((2, 0), (4, 6), "y"), B), TENSORS)
    check_layout(layout(A, part_of_a((1, 1), (2, 2), "copy of one element"), B), TENSORS)  # nested
    check_layout(layout(A, replace(A, path="replica"), B), TENSORS)
    check_layout(layout(replace(A, dtype="u16"), replace(B, dtype="raw4")), TENSORS)  # containers of the same size
    check_layout(layout(replace(A, shape=(5, 6), padding=(Box((4, 0), (5, 6)),)), B), TENSORS)


BAD = {
    "a tensor is missing": (layout(A), "no piece of tensor 'b'"),
    "an element is missing": (layout(part_of_a((0, 0), (4, 5), "x"), B), "no piece for (0, 5)..(4, 6)"),
    "all datasets are missing": (layout(), "no piece of tensor 'a'"),
    "boxes overlap partly": (
        layout(part_of_a((0, 0), (3, 6), "x"), part_of_a((2, 0), (4, 6), "y"), B),
        "overlap partly",
    ),
    "a local element in two pieces": (
        layout(
            DatasetLayout(
                "x",
                (4, 6),
                "bf16",
                pieces(("a", Box.whole((4, 6)), Box.whole((4, 6))), ("a", Box((0, 0), (1, 6)), Box((1, 0), (2, 6)))),
            ),
            B,
        ),
        "in 2 pieces",
    ),
    "a piece in declared padding": (layout(replace(A, padding=(Box((3, 0), (4, 6)),)), B), "in 2 pieces"),
    "padding that is not declared": (layout(replace(A, shape=(5, 6)), B), "in no piece"),
    "padding outside": (layout(replace(A, padding=(Box((4, 0), (5, 6)),)), B), "local box"),
    "another dtype": (layout(replace(A, dtype="f16"), B), "found dtype f16, expected bf16"),
    "another dtype of the same bits": (layout(A, replace(B, dtype="i32")), "found dtype i32, expected f32"),
    "a container of another size": (layout(replace(A, dtype="u8"), B), "found dtype u8"),
    "big-endian words": (layout(replace(A, dtype="bf16be"), B), "found dtype bf16be"),
    "an unknown dtype": (layout(replace(A, dtype="bf17"), B), "bf17"),
    "an unknown tensor": (layout(A, B, whole("c", (3,), "f32")), "tensor 'c'"),
    "other extents": (
        layout(A, replace(B, shape=(4,), pieces=pieces(("b", Box.whole((4,)), Box((0,), (3,)))))),
        "extents",
    ),
    "extents in another order": (
        layout(replace(A, shape=(6, 4), pieces=pieces(("a", Box.whole((6, 4)), Box.whole((4, 6))))), B),
        "extents (6, 4)",
    ),
    "a canonical box outside": (
        layout(A, replace(B, pieces=pieces(("b", Box.whole((3,)), Box((1,), (4,)))))),
        "expected a box inside 'b'",
    ),
    "a canonical box of other dimensions": (
        layout(A, replace(B, pieces=pieces(("b", Box.whole((3,)), Box((0, 0), (3, 1)))))),
        "expected a box inside 'b'",
    ),
    "a local box outside": (layout(A, replace(B, pieces=pieces(("b", Box((0,), (4,)), Box.whole((3,)))))), "local box"),
    "a local box below zero": (
        layout(A, replace(B, pieces=pieces(("b", Box((-1,), (2,)), Box.whole((3,)))))),
        "local box",
    ),
    "an inverted box": (layout(A, replace(B, pieces=pieces(("b", Box((3,), (0,)), Box.whole((3,)))))), "local box"),
    "bounds of unequal length": (
        layout(A, replace(B, pieces=pieces(("b", Box((0,), (3, 3)), Box.whole((3,)))))),
        "local box",
    ),
    "a negative extent": (layout(A, B, DatasetLayout("x", (-1,), "u8", ())), "shape (-1,)"),
    "too many dimensions": (layout(A, B, DatasetLayout("x", (1,) * 33, "u8", ())), "at most 32"),
    "one shard twice": (Layout("s", (ShardLayout("x", (A, B)), ShardLayout("x", (A, B)))), "named twice"),
    "one dataset twice": (layout(A, replace(A, pieces=A.pieces), B), "dataset 'a' of s0.h5: found one name twice"),
    "a dataset under the further name of another": (layout(A, replace(B, names=("a",))), "one name twice"),
}


@pytest.mark.parametrize("case", BAD)
def test_refusals(case: str) -> None:
    bad, found = BAD[case]
    with pytest.raises(GeometryError) as error:
        check_layout(bad, TENSORS)
    assert found in str(error.value)


def test_a_tensor_listed_twice() -> None:
    with pytest.raises(GeometryError, match="one name twice"):
        check_layout(layout(A, B), (*TENSORS, TENSORS[0]))


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/abs", "a/b", "a\0b", "x" * 256, ".dcr-new-x"])
def test_file_names_that_leave_the_directory(name: str) -> None:
    with pytest.raises(GeometryError, match="plain file name"):
        check_file_name(name)
    with pytest.raises(GeometryError, match="plain file name"):
        check_layout(layout(A, B, file=name), TENSORS)


@pytest.mark.parametrize("name", ["model-00001-of-00004.h5", "...", "a b", "ünï.h5", "x" * 255])
def test_file_names_that_do_not(name: str) -> None:
    check_layout(layout(A, B, file=name), TENSORS)


# -- what a layout says about tensors -------------------------------------------------------------------------


def shard(*datasets: DatasetLayout) -> ShardLayout:
    return ShardLayout("s.h5", datasets)


def test_shapes_are_the_corners_of_all_boxes() -> None:
    two = Layout("t", (shard(part_of_a((0, 0), (4, 2), "x")), shard(part_of_a((0, 2), (4, 6), "x"), B)))
    assert tensors_of(two) == TENSORS


def test_ties_are_aliases() -> None:
    tied = replace(A, names=("lm_head", "another"))
    assert tensors_of(layout(tied, B))[0].aliases == ("another", "lm_head")
    # A fused dataset's further names say nothing about its tensors.
    assert tensors_of(layout(replace(A, path="fused", names=("x",)), B))[0].aliases == ()


def test_alias_conflicts() -> None:
    tied = replace(A, names=("b",))
    with pytest.raises(GeometryError, match=r"name 'b': found an alias of one tensor and a tensor of its own"):
        tensors_of(Layout("t", (shard(tied), shard(B))))
    one, other = replace(A, names=("x",)), replace(B, names=("x",))
    with pytest.raises(GeometryError, match=r"name 'x': found an alias of 'a' and of 'b'"):
        tensors_of(Layout("t", (shard(one), shard(other))))
    assert tensors_of(Layout("t", (shard(one), shard(replace(one, path="a")), shard(B))))[0].aliases == ("x",)


def test_one_tensor_of_two_dtypes_or_ranks() -> None:
    with pytest.raises(GeometryError, match=r"tensor 'a': found bf16 and f16"):
        tensors_of(Layout("t", (shard(A), shard(replace(A, dtype="f16")))))
    line = DatasetLayout("x", (24,), "bf16", (Piece("a", Box.whole((24,)), Box.whole((24,))),))
    with pytest.raises(GeometryError, match="dimensions"):
        tensors_of(Layout("t", (shard(A), shard(line))))


@given(st.data())
def test_a_canonical_box_in_a_datasets_coordinates(data: st.DataObject) -> None:
    """Extents of 1 come and go; the walk over both boxes is the same."""
    inner = tuple(data.draw(st.lists(st.integers(2, 5), max_size=3)))

    def spread(extents: tuple[int, ...]) -> tuple[Box, tuple[int, ...]]:
        """A box of these extents, with 1s strewn in, somewhere in an array."""
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, len(extents)))
            extents = (*extents[:at], 1, *extents[at:])
        start = tuple(data.draw(st.integers(0, 3)) for _ in extents)
        stop = tuple(a + n for a, n in zip(start, extents, strict=True))
        return Box(start, stop), tuple(b + data.draw(st.integers(0, 2)) for b in stop)

    (canonical, shape), (local, local_shape) = spread(inner), spread(inner)
    piece = Piece("t", local, canonical)
    start = tuple(data.draw(st.integers(a, b - 1)) for a, b in zip(canonical.start, canonical.stop, strict=True))
    box = Box(start, tuple(data.draw(st.integers(a + 1, b)) for a, b in zip(start, canonical.stop, strict=True)))
    there = to_local(piece, box)
    tensor = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    dataset = np.full(local_shape, -1)
    dataset[slices(local)] = tensor[slices(canonical)].reshape(local.shape)
    assert dataset[slices(there)].ravel().tolist() == tensor[slices(box)].ravel().tolist()


@given(shapes_and_boxes())
def test_meet_and_within(drawn: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, boxes = drawn
    for a, b in combinations(boxes, 2):
        common = np.zeros(shape, int)
        common[slices(a)] += 1
        common[slices(b)] += 1
        met = a.meet(b)
        assert (met.size if met else 0) == (common == 2).sum()
        assert met is None or (met.within(a) and met.within(b))
