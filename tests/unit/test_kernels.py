"""The numpy and the numba kernels: byte-identical results, identical refusals, on every word width and dtype."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.dtypes import dtype
from dcr_mpi.errors import CorruptInput, UsageError
from dcr_mpi.kernels import get_kernels
from dcr_mpi.kernels.api import Kernels, ValueScheme
from dcr_mpi.layout import geometry_rows
from dcr_mpi.model import Box
from dcr_mpi.region import region_of
from tests.strategies import DTYPES, BucketCase, bucket_cases, random_words, seeds, special_words, word_type

REFERENCE, JIT = get_kernels("numpy"), get_kernels("numba")
ROOMS = pytest.mark.parametrize("kernels", [REFERENCE, JIT], ids=["numpy", "numba"])
SCHEMES: tuple[ValueScheme, ...] = ("overwrite", "xor", "ulp")


def same(a: np.ndarray, b: np.ndarray) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


def outcome(act: Callable[[], np.ndarray]) -> np.ndarray | type[Exception]:
    try:
        return act()
    except CorruptInput as error:
        return type(error)


@given(bucket_cases())
def test_rooms_agree_on_changes_gaps_and_scatter(case: BucketCase) -> None:
    table = case.table
    expected = REFERENCE.changes(case.base, case.new, table.offset, table.size)
    found = JIT.changes(case.base, case.new, table.offset, table.size)
    for name in ("counts", "positions", "old", "new"):
        same(getattr(expected, name), getattr(found, name))
    # The reference itself, against the plainest statement of what a change is.
    for k in range(len(table)):
        at = int(expected.counts[:k].sum())
        mine = expected.positions[at : at + int(expected.counts[k])]
        assert mine.tolist() == np.flatnonzero(table.view(case.base, k) != table.view(case.new, k)).tolist()
    gaps, escapes = REFERENCE.pack_gaps(expected.positions, expected.counts)
    for a, b in zip((gaps, escapes), JIT.pack_gaps(expected.positions, expected.counts), strict=True):
        same(a, b)
    for kernels in (REFERENCE, JIT):
        same(kernels.unpack_gaps(gaps, escapes, expected.counts, table.size), expected.positions)
        same(kernels.gather(case.new, table.offset, expected.counts, expected.positions), expected.new)
        target = case.base.copy()
        kernels.scatter(target, table.offset, expected.counts, expected.positions, expected.new)
        for k in range(len(table)):
            same(table.view(target, k), table.view(case.new, k))


@given(st.sampled_from(DTYPES), st.integers(0, 300), seeds)
def test_values_survive_every_scheme(name: str, size: int, seed: int) -> None:
    rng, kind = np.random.default_rng(seed), dtype(name)
    old, new = random_words(kind, size, rng), random_words(kind, size, rng)
    differ = old != new
    old, new = old[differ], new[differ]
    for scheme in SCHEMES:
        coded = REFERENCE.difference(scheme, old, new, kind)
        same(coded, JIT.difference(scheme, old, new, kind))
        for kernels in (REFERENCE, JIT):
            same(kernels.restore(scheme, old, coded, kind), new)
        # A hostile stream may hold any word: both rooms must still agree on what it means.
        noise = random_words(kind, len(old), rng)
        same(REFERENCE.restore(scheme, old, noise, kind), JIT.restore(scheme, old, noise, kind))


@ROOMS
@pytest.mark.parametrize("name", DTYPES)
def test_every_pair_of_special_values(kernels: Kernels, name: str) -> None:
    """-0.0 and +0.0, NaN payloads, signalling NaNs, infinities, denormals, sign crossings, wrap-around."""
    special = special_words(dtype(name))
    old, new = (grid.ravel() for grid in np.meshgrid(special, special))
    old, new = old[old != new], new[old != new]
    for scheme in SCHEMES:
        coded = kernels.difference(scheme, old, new, dtype(name))
        same(kernels.restore(scheme, old, coded, dtype(name)), new)


@ROOMS
@pytest.mark.parametrize("name", ["bf16", "f16", "i16"])
def test_all_65536_patterns_through_ulp(kernels: Kernels, name: str) -> None:
    kind = dtype(name)
    every = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    for step in (1, 2, 255, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        new = (every.astype(np.uint32) + step).astype(np.uint16)
        coded = kernels.difference("ulp", every, new, kind)
        same(kernels.restore("ulp", every, coded, kind), new)
    # One base, every other word: the code is a bijection, so nothing is lost and nothing is longer than a word.
    base = np.full(65535, 0x3F80, np.uint16)
    others = every[every != 0x3F80]
    coded = kernels.difference("ulp", base, others, kind)
    assert sorted(coded.tolist()) == list(range(65535))


@pytest.mark.parametrize("name", ["bf16", "f16", "f32", "f64", "f8e4m3"])
def test_ulp_order_is_the_numerical_order(name: str) -> None:
    """The code of a step to the next float up is 1, down is 0; -0.0 to +0.0 is one step, not a sign flip."""
    kind = dtype(name)
    word, sign = word_type(kind), 1 << (8 * kind.word_bytes - 1)
    one = ((1 << (kind.exponent - 1)) - 1) << kind.mantissa

    def code(old: int, new: int) -> int:
        pair = np.array([old], np.uint64).astype(word), np.array([new], np.uint64).astype(word)
        return int(JIT.difference("ulp", *pair, kind)[0])

    assert code(one, one + 1) == 1  # +1 ulp: zigzag 2, less 1
    assert code(one + 1, one) == 0  # -1 ulp: zigzag 1, less 1
    assert code(sign | one, sign | (one + 1)) == 0  # further below zero is down
    assert code(sign, 0) == 1 and code(0, sign) == 0
    assert code(sign | 1, 1) == 5  # the smallest denormals are 3 steps apart, over -0.0 and +0.0


def test_ulp_worked_example_of_the_format_document() -> None:
    """The numbers in docs/format.md."""
    old = np.array([0x3F80, 0x3F80, 0x8000, 0xBF80, 0x3F80], np.uint16)
    new = np.array([0x3F81, 0x3F7F, 0x0000, 0xBF82, 0xBF80], np.uint16)
    for kernels in (REFERENCE, JIT):
        coded = kernels.difference("ulp", old, new, dtype("bf16"))
        assert coded.tolist() == [1, 0, 1, 2, 65024]


@ROOMS
def test_gaps_at_the_edges_of_a_byte_and_of_two(kernels: Kernels) -> None:
    gaps = [0, 1, 253, 254, 255, 256, 257, 65534, 65535, 65536, 65537, 0]
    positions = (np.cumsum(np.array(gaps) + 1) - 1).astype(np.uint32)
    counts = np.array([0, len(gaps), 0], np.int64)
    sizes = np.array([5, int(positions[-1]) + 1, 0], np.int64)
    packed, escapes = kernels.pack_gaps(positions, counts)
    assert packed.tolist() == [min(g, 255) for g in gaps]
    assert escapes.tolist() == [g for g in gaps if g >= 255]
    same(kernels.unpack_gaps(packed, escapes, counts, sizes), positions)


@ROOMS
def test_a_block_starts_its_gaps_anew(kernels: Kernels) -> None:
    positions, counts = np.array([0, 3, 0, 300], np.uint32), np.array([2, 2], np.int64)
    packed, escapes = kernels.pack_gaps(positions, counts)
    assert (packed.tolist(), escapes.tolist()) == ([0, 2, 0, 255], [299])


@ROOMS
@pytest.mark.parametrize(
    ("gaps", "escapes", "counts", "sizes"),
    [
        ([0, 0], [], [1], [64]),  # more gaps than changes
        ([0], [], [2], [64]),  # fewer
        ([255], [], [1], [1000]),  # an escape is missing
        ([0], [300], [1], [1000]),  # one is left over
        ([255], [254], [1], [1000]),  # one that needed none
        ([255], [0], [1], [1000]),
        ([64], [], [1], [64]),  # one past the end
        ([60, 3], [], [2], [64]),
        ([255], [2**32 - 1], [1], [1 << 24]),  # far past the end
        ([255] * 3, [2**32 - 1] * 3, [3], [1 << 24]),
        ([10, 0, 64], [], [2, 1], [64, 64]),  # in a later block
    ],
)
def test_bad_gap_streams_are_refused(
    kernels: Kernels, gaps: list[int], escapes: list[int], counts: list[int], sizes: list[int]
) -> None:
    with pytest.raises(CorruptInput, match="gap stream"):
        kernels.unpack_gaps(
            np.array(gaps, np.uint8), np.array(escapes, np.uint32), np.array(counts), np.array(sizes, np.int64)
        )


@given(
    st.lists(st.sampled_from([0, 1, 7, 254, 255]), max_size=12),
    st.lists(st.sampled_from([0, 254, 255, 256, 500, 2**32 - 1]), max_size=4),
    st.lists(st.integers(0, 5), max_size=4),
    st.sampled_from([1, 64, 512, 1 << 24]),
)
def test_rooms_take_and_refuse_the_same_gap_streams(
    gaps: list[int], escapes: list[int], counts: list[int], size: int
) -> None:
    args = (
        np.array(gaps, np.uint8),
        np.array(escapes, np.uint32),
        np.array(counts, np.int64),
        np.full(len(counts), size, np.int64),
    )
    expected, found = (outcome(lambda k=k: k.unpack_gaps(*args)) for k in (REFERENCE, JIT))  # type: ignore[misc]
    if isinstance(expected, type) or isinstance(found, type):
        assert expected is found
    else:
        same(expected, found)


@st.composite
def boxes_in_shapes(draw: st.DrawFn) -> tuple[Box, tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=4)))
    start = tuple(draw(st.integers(0, n - 1)) for n in shape)
    return Box(start, tuple(draw(st.integers(a + 1, n)) for a, n in zip(start, shape, strict=True))), shape


@given(boxes_in_shapes(), st.sampled_from(DTYPES), seeds)
def test_rooms_agree_on_the_state_digest(where: tuple[Box, tuple[int, ...]], name: str, seed: int) -> None:
    box, shape = where
    kind, rng = dtype(name), np.random.default_rng(seed)
    region = region_of(box, shape)
    old = np.zeros(-(-region.size // 64) * 64, word_type(kind))
    old[: region.size] = random_words(kind, region.size, rng)
    new = np.where(rng.random(len(old)) < 0.3, random_words(kind, len(old), rng), old).astype(old.dtype)
    # Another region of more dimensions in the same call: rows are padded to the widest.
    other = region_of(Box((0, 0, 0), (1, 2, 3)), (4, 5, 6))
    rows = geometry_rows([region, other], np.zeros(2, np.int64))
    offsets, sizes = np.array([0, 0], np.int64), np.array([region.size, min(region.size, other.size)], np.int64)
    before = REFERENCE.state_words(rows, old, offsets, sizes)
    after = REFERENCE.state_words(rows, new, offsets, sizes)
    same(before, JIT.state_words(rows, old, offsets, sizes))
    moved = REFERENCE.changes(old, new, offsets, sizes)
    args = (rows, moved.counts, moved.positions, moved.old, moved.new)
    same(REFERENCE.state_changes(*args), JIT.state_changes(*args))
    same(before + REFERENCE.state_changes(*args), after)


def test_dense_data_takes_several_rounds_of_bounded_outputs() -> None:
    """Outputs of the numba room hold an eighth of the bucket: all blocks changed must come out whole."""
    sizes = np.full(40, 128, np.int64)
    offsets = np.cumsum(sizes) - sizes
    base = np.arange(40 * 128, dtype=np.uint16)
    found = JIT.changes(base, base ^ np.uint16(1), offsets, sizes)
    assert found.counts.tolist() == [128] * 40
    same(found.positions, np.tile(np.arange(128, dtype=np.uint32), 40))
    same(found.old, base)


@ROOMS
def test_no_blocks_at_all(kernels: Kernels) -> None:
    none, empty = np.empty(0, np.int64), np.empty(0, np.uint32)
    found = kernels.changes(empty, empty, none, none)
    assert [len(a) for a in (found.counts, found.positions, found.old, found.new)] == [0, 0, 0, 0]
    gaps, escapes = kernels.pack_gaps(empty, none)
    same(kernels.unpack_gaps(gaps, escapes, none, none), empty)


def test_unknown_rooms_and_devices_are_refused() -> None:
    with pytest.raises(UsageError, match="numba or numpy"):
        get_kernels("fortran")
    with pytest.raises(UsageError, match="cuda"):
        get_kernels("numba", "cuda")
