"""What a reader takes of a class model and of a class bucket, and everything that it refuses."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.codec import BucketReader, Scheme, block_table
from dcr_mpi.codec.bucket import BASE, CHANGED, COUNTS, DENSE, GAPS, REST, SPANS, TARGET
from dcr_mpi.codec.classes import pack_model, unpack_model
from dcr_mpi.codec.values import DENSE_PLANES, SMALL, dense_streams
from dcr_mpi.codec.varints import pack_varints, unpack_varints
from dcr_mpi.codec.walk import CODE, MODEL
from dcr_mpi.dtypes import dtype
from dcr_mpi.errors import CorruptInput
from dcr_mpi.kernels.hazard import MAX_LOG2
from dcr_mpi.layout import Span
from dcr_mpi.wire import Bucket, Stream, pack_bucket
from tests.strategies import seeds, word_type
from tests.unit.test_class_codec import JIT, SCHEMES, coded, on_wire
from tests.unit.test_hazard import some_model

# -- the model on the wire ------------------------------------------------------------------------------------


@given(st.sampled_from(["bool", "u64", "bf16", "f8e4m3", "f64"]), seeds, st.sampled_from(["fine", "any", "mixed"]))
def test_models_round_trip(name: str, seed: int, rates: str) -> None:
    model = some_model(dtype(name), np.random.default_rng(seed), rates)
    read, bound, total = unpack_model(pack_model(model, 77), dtype(name), 77)
    assert (total, bound.log2) == (77, model.log2)
    for field in ("rate", "context", "start", "size", "shift", "mask"):
        assert np.array_equal(getattr(read, field), getattr(model, field))


def numbers(**changes: object) -> list[int]:
    """A good model for bf16, with something changed: 5 changes, 2^8, 3 tokens, 2 classes."""
    parts: dict[str, object] = {
        "total": 5, "log2": 8, "width": 3, "classes": 2,
        "first": [0, 10, 2], "tokens": [0, 4000, 1, 96], "second": [120, 2560, 1], "last": [1, 4096], "end": [],
    }  # fmt: skip
    out: list[int] = []
    for value in (parts | changes).values():
        out += value if isinstance(value, list) else [value]  # type: ignore[list-item]
    return out


BAD_MODELS = {
    "no change": numbers(total=0),
    "more changes than words": numbers(total=101),
    "2^63 - 1 changes": numbers(total=2**63 - 1),
    "an axis too coarse": numbers(log2=3),
    "an axis too fine": numbers(log2=17),
    "an axis of 2^(2^62)": numbers(log2=2**62),
    "no tokens": numbers(width=0),
    "more tokens than a word has": numbers(width=41),
    "no classes": numbers(classes=0),
    "more classes than exponents": numbers(classes=257),
    "a class missing": numbers(classes=3),
    "a class left over": numbers(classes=1),
    "numbers left over": numbers(end=[0]),
    "a first class that does not begin at 0": numbers(first=[1, 10, 2]),
    "a class that begins where the last did": numbers(second=[0, 2560, 1]),
    "a class past the exponents": numbers(second=[256, 2560, 1]),
    "a class far past the exponents": numbers(second=[2**63 - 1, 2560, 1]),
    "a rate over half the axis": numbers(second=[120, 2561, 1]),
    "a rate of 2^63 - 1": numbers(second=[120, 2**63 - 1, 1]),
    "a token past the tokens": numbers(last=[3, 4096]),
    "a token far past the tokens": numbers(last=[2**63 - 1, 4096]),
    "a token that never occurs": numbers(first=[0, 10, 3], tokens=[0, 4000, 0, 0, 0, 96]),
    "frequencies under 4096": numbers(last=[1, 4095]),
    "frequencies over 4096": numbers(tokens=[0, 4001, 1, 96]),
    "no frequencies": numbers(second=[120, 2560, 0], last=[]),
    "more tokens than follow": numbers(second=[120, 2560, 2**62]),
    "frequencies that wrap around to 4096": numbers(
        width=5, first=[0, 10, 5], tokens=[0, 2**62, 0, 2**62, 0, 2**62, 0, 2**62, 0, 4096]
    ),
    "a frequency of 2^63 - 1": numbers(last=[1, 2**63 - 1]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_MODELS)
def test_bad_models_are_refused(case: str) -> None:
    with pytest.raises(CorruptInput, match="class model"):
        unpack_model(pack_varints(BAD_MODELS[case]), dtype("bf16"), 100)


def test_the_good_model_is_read() -> None:
    model, bound, total = unpack_model(pack_varints(numbers()), dtype("bf16"), 100)
    assert (total, bound.log2, bound.end) == (5, 8, 20 << 8)
    assert model.rate.tolist() == [10] * 120 + [2560] * 136
    assert model.context.tolist() == [0] * 120 + [1] * 136
    assert model.size.tolist() == [[4000, 0, 96], [0, 4096, 0]]
    assert model.start.tolist() == [[0, 4000, 4000], [0, 0, 4096]]
    unpack_model(pack_varints([1, MAX_LOG2, 24, 1, 0, 6 << MAX_LOG2, 1, 23, 4096]), dtype("u8"), 1)


def test_a_model_cut_anywhere_is_refused() -> None:
    data = pack_varints(numbers())
    for stop in range(len(data)):
        with pytest.raises(CorruptInput):
            unpack_model(data[:stop], dtype("bf16"), 100)


@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 300)))
def test_varints_round_trip(values: list[int]) -> None:
    data = pack_varints(values)
    assert list(unpack_varints(data, "numbers")) == values
    assert len(data) == sum(max(-(-v.bit_length() // 7), 1) for v in values)


@pytest.mark.parametrize(
    "data", [b"\x80", b"\x80\x00", b"\xff\x80\x00", b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x00", b"\x80" * 9]
)
def test_varints_are_strict(data: bytes) -> None:
    assert list(unpack_varints(b"\xff" * 8 + b"\x7f", "numbers")) == [2**63 - 1]
    with pytest.raises(CorruptInput, match="numbers"):
        list(unpack_varints(b"\x05" + data, "numbers"))


# -- buckets that no encoder writes ---------------------------------------------------------------------------


def class_bucket(values: int = 2) -> dict[int, bytes]:
    """Tile 3, words 0..130 in blocks of 64: one change of one ulp in block 0, block 1 dense, block 2 unchanged."""
    table = block_table([Span(3, 0, 130)], 64)
    base = np.full(table.length, 0x3F80, np.uint16)
    new = base.copy()
    new[7] ^= np.uint16(1)
    new[64:128] = np.random.default_rng(0).integers(0, 1 << 16, 64)
    data = coded(Scheme("class", SCHEMES[2 - values], None), "bf16", table, 64, base, new)
    return {n: s.unpack("s", 1 << 20) for n, s in on_wire(data).streams.items() if isinstance(s, Stream)}


def read(streams: dict[int, bytes], positions: int = 1, values: int = 2) -> BucketReader:
    reader = BucketReader(on_wire(pack_bucket(Bucket(positions, values, 6, "bf16", streams), None)), anchor=False)
    blocks = np.flatnonzero(reader.changed)
    reader.decode(np.full(reader.table.select(blocks).length, 0x3F80, np.uint16), JIT)
    return reader


def without(streams: dict[int, bytes], *numbers: int) -> dict[int, bytes]:
    return {n: s for n, s in streams.items() if n not in numbers}


def test_the_class_bucket_is_read() -> None:
    reader = read(class_bucket())
    assert (reader.changed.tolist(), reader.dense.tolist()) == ([True, True, False], [False, True, False])


def spoilt() -> Iterable[tuple[str, dict[int, bytes], int, int]]:
    good = class_bucket()
    planes = dense_streams(2)
    yield "no model", without(good, MODEL), 1, 2
    yield "no code", without(good, CODE), 1, 2
    yield "a cut word of code", good | {CODE: good[CODE][:-1]}, 1, 2
    yield "a word of code less", good | {CODE: good[CODE][:-4]}, 1, 2
    yield "a word of code more", good | {CODE: good[CODE] + bytes(4)}, 1, 2
    yield "code longer than its changes take", good | {CODE: bytes(76)}, 1, 2
    yield "counts", good | {COUNTS: b"\1\0\0\0"}, 1, 2
    yield "gaps", good | {GAPS: b"\0"}, 1, 2
    yield "small values", good | {SMALL: b"\0"}, 1, 2
    yield "a class bucket said to be plain", good, 0, 2
    yield "values in the code and planes asked for", good, 1, 1
    whole = without(good, MODEL, CODE) | {DENSE: b"\3", planes[0]: bytes(128), planes[1]: bytes(128)}
    yield "every changed block dense", whole, 1, 2
    yield "every changed block dense, and a model", whole | {MODEL: good[MODEL], CODE: good[CODE]}, 1, 2
    yield "every changed block dense, and gaps", whole | {GAPS: b"\0"}, 0, 2
    yield "every changed block dense, and values", whole | {SMALL: b"\0"}, 0, 2
    quiet = {SPANS: good[SPANS], REST: good[REST]}
    yield "nothing changed", quiet, 1, 2
    yield "nothing changed, and a model", quiet | {MODEL: good[MODEL]}, 1, 2
    both = {CHANGED: b"\7", BASE: good[BASE] + good[REST], TARGET: good[TARGET] + bytes(16)}
    yield "a block without a change", without(good, REST) | both, 1, 2


@pytest.mark.parametrize(
    ("case", "streams", "positions", "values"), [pytest.param(*row, id=row[0]) for row in spoilt()]
)
def test_bad_class_buckets_are_refused(case: str, streams: dict[int, bytes], positions: int, values: int) -> None:
    with pytest.raises(CorruptInput):
        read(streams, positions, values)


def test_blocks_that_are_all_dense_have_no_position_scheme_but_plain() -> None:
    """The refusals above are not for another reason."""
    good, planes = class_bucket(), dense_streams(2)
    whole = without(good, MODEL, CODE) | {DENSE: b"\3", planes[0]: bytes(128), planes[1]: bytes(128)}
    assert not read(whole, positions=0).sparse.any()
    assert DENSE_PLANES in whole


def test_planes_beside_the_code() -> None:
    for values in (0, 1):
        good = class_bucket(values)
        read(good, values=values)
        with pytest.raises(CorruptInput):
            read(good, values=2)  # planes that ulp differences have no use for
        with pytest.raises(CorruptInput):
            read(without(good, 16), values=values)


def test_words_of_other_sizes_never_reach_a_kernel() -> None:
    reader = BucketReader(on_wire(pack_bucket(Bucket(1, 2, 6, "bf16", class_bucket()), None)), anchor=False)
    for wrong in (np.zeros(64, np.uint16), np.zeros(192, np.uint16), np.zeros(128, np.uint8)):
        with pytest.raises(AssertionError):
            reader.decode(wrong, JIT)
    assert word_type(reader.dtype).itemsize == 2
