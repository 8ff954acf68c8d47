"""The words: errors, dtypes, model, JSON both ways, digests, regions."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import itertools
import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi import digest, errors, model
from dcr_mpi.dtypes import dtype, is_container
from dcr_mpi.errors import CorruptInput, DcrError, GeometryError, by_code, from_os_error
from dcr_mpi.jsonable import MAX_JSON, dumps, from_plain, loads
from dcr_mpi.model import Box, Layout, Manifest, PartEntry, Policy, ReplicaRecord, SiteLayout, TensorSpec, Tile, Tiling
from dcr_mpi.region import Region, region_of
from dcr_mpi.units import bytes_text, seconds_text

# -- errors -----------------------------------------------------------------------------------------------------------


def test_every_class_has_a_code_of_its_own() -> None:
    every = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, DcrError)]
    classes: list[type[DcrError]] = [c for c in every if c.__base__ is DcrError]
    assert set(errors.ALL) == set(classes)
    assert [c for c in every if c not in classes] == [DcrError, errors.Overtaken], "one kind of Conflict, with its code"
    codes = [DcrError.code, *(c.code for c in classes)]
    assert len(set(codes)) == len(codes) and all(0 < code < 126 for code in codes)
    assert all(by_code(c.code) is c for c in classes)
    assert by_code(99) is DcrError and by_code(1) is DcrError


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({}, "thing"),
        ({"found": 0}, "thing: found 0"),
        ({"expected": "one"}, "thing: expected one"),
        ({"found": "none", "expected": "one"}, "thing: found none, expected one"),
        ({"found": "none", "expected": "one", "remedy": "make it"}, "thing: found none, expected one. Next: make it"),
        ({"remedy": "make it"}, "thing. Next: make it"),
    ],
)
def test_message(words: dict[str, Any], text: str) -> None:
    error = errors.NotReady("thing", **words)
    assert str(error) == text and (error.what, error.found) == ("thing", words.get("found"))


@pytest.mark.parametrize(
    ("number", "cls"),
    [
        *(
            (n, errors.ResourceError)
            for n in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.EFBIG)
        ),
        (errno.ENOENT, errors.NotReady),
        (errno.EACCES, errors.UsageError),
        (errno.EPERM, errors.UsageError),
        (errno.ESTALE, errors.ResourceError),
        (errno.EINTR, errors.ResourceError),
        (errno.EDOM, errors.ResourceError),
    ],
    ids=lambda v: errno.errorcode[v] if isinstance(v, int) else "",
)
def test_operating_system_errors(number: int, cls: type[DcrError]) -> None:
    found = from_os_error(OSError(number, "said so"), "writing x")
    assert type(found) is cls and str(found).startswith(f"writing x: found {errno.errorcode[number]} (said so)")
    assert ". Next: " in str(found)


def test_operating_system_error_without_a_number() -> None:
    assert "odd" in str(from_os_error(OSError("odd"), "x"))


# -- dtypes -----------------------------------------------------------------------------------------------------------

FLOATS = {
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64,
    "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_floats_say_what_numpy_says(name: str) -> None:
    found, info = dtype(name), ml_dtypes.finfo(FLOATS[name])  # type: ignore[no-untyped-call]
    assert (found.itemsize, found.mantissa) == (np.dtype(FLOATS[name]).itemsize, info.nmant)
    assert found.exponent == 8 * found.itemsize - 1 - info.nmant and found.is_float
    assert (found.word_bytes, found.words) == (found.itemsize, 1)


@pytest.mark.parametrize("name", ["bool", *(f"{s}{b}" for s in "iu" for b in (8, 16, 32, 64))])
def test_integers(name: str) -> None:
    found = dtype(name)
    assert found.itemsize == (1 if name == "bool" else int(name[1:]) // 8) == found.word_bytes
    assert not found.is_float and found.words == 1


@pytest.mark.parametrize(
    ("size", "word"),
    [(1, 1), (2, 2), (3, 1), (4, 4), (5, 1), (6, 2), (7, 1), (8, 8), (12, 4), (16, 8), (24, 8), (99999, 1)],
)
def test_raw(size: int, word: int) -> None:
    found = dtype(f"raw{size}")
    assert (found.itemsize, found.word_bytes, found.words) == (size, word, size // word) and not found.is_float


def test_big_endian_words_are_no_floats() -> None:
    assert dtype("f32be") == dataclasses.replace(dtype("f32"), name="f32be", exponent=0, mantissa=0)
    assert not dtype("bf16be").is_float and dtype("i64be").itemsize == 8


NO_DTYPES = [
    "BF16",
    "bf17",
    "f8",
    "i8be",
    "boolbe",
    "f8e4m3be",
    "raw",
    "raw0",
    "raw01",
    "raw-1",
    "raw100000",
    "raw8be",
    "be",
    "u128",
    "f32bebe",
]


@pytest.mark.parametrize("name", ["", "f32 ", *NO_DTYPES])
def test_unknown_dtypes(name: str) -> None:
    with pytest.raises(GeometryError, match=r"expected one of bf16, f16"):
        dtype(name)


def test_containers() -> None:
    assert all(map(is_container, ["u8", "u16", "u32be", "u64", "raw2", "raw16"]))
    assert not any(map(is_container, ["bf16", "i16", "f32", "bool", "u128", "raw", "raw0"]))


# -- boxes ------------------------------------------------------------------------------------------------------------


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...], empty: bool = False) -> Box:
    bounds = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape]
    pairs = [
        (a, b) if empty or a < b else (min(a, n - 1), min(a, n - 1) + 1)
        for (a, b), n in zip(bounds, shape, strict=True)
    ]
    return Box(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


def cells(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(a, b) for a, b in zip(box.start, box.stop, strict=True))))


SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@given(SHAPES.flatmap(lambda s: st.tuples(boxes(s, empty=True), boxes(s, empty=True))))
def test_boxes_are_sets_of_cells(pair: tuple[Box, Box]) -> None:
    a, b = pair
    both, meet = cells(a) & cells(b), a.meet(b)
    assert a.size == len(cells(a)) and (cells(meet) if meet else set()) == both and meet == b.meet(a)
    if a.within(b):
        assert cells(a) <= cells(b)
    elif cells(a):
        assert not cells(a) <= cells(b)


def test_scalar_box() -> None:
    scalar = Box.whole(())
    assert scalar.size == 1 and scalar.meet(scalar) == scalar and scalar.within(scalar)
    assert not scalar.within(Box.whole((1,)))


# -- JSON -------------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(), max_size=12)
SPECS = st.builds(TensorSpec, NAMES, NAMES, st.lists(st.integers(0, 2**62)).map(tuple), st.lists(NAMES).map(tuple))


@given(st.builds(Policy, NAMES, st.lists(SPECS, max_size=3).map(tuple), st.builds(Layout, NAMES, st.just(()))))
def test_policies_travel(policy: Policy) -> None:
    assert loads(Policy, dumps(policy), "policy.json") == policy


RECORD = ReplicaRecord("s", "p", "l", 3, "state", ("a", "b"), {"f": 2**53 + 1}, None)


@pytest.mark.parametrize(
    "value",
    [
        RECORD,
        dataclasses.replace(RECORD, applying=4),
        Manifest("p", 0, None, "b", "s", ("t",), "x", (PartEntry(0, "k", 1, "d", 2, 1),), 2, 1, 4, 1, step=None),
        SiteLayout("s", "p", Layout("s", ())),
        Tiling("p", {"a": "b"}, 64, (Tile(0, (), (), 0), Tile(1, (0, 2), (3, 4), 1)), (model.Cut(0, 0),)),
        model.Open("p", 1, 0, "s", "t", 2),
        model.Decision("p", 1, False, "", {}, "late"),
        model.Receipt(
            "prepared", "s", "p", 1, 0, "m", "x", 3, "cpu", {"relay": 0.1}, {"relay": 5}, {"any": [1, {"x": None}]}
        ),
    ],
    ids=lambda v: type(v).__name__,
)
def test_objects_of_the_store_travel(value: Any) -> None:
    raw = dumps(value)
    assert loads(type(value), raw, "x") == value
    assert raw == dumps(json.loads(raw)), "canonical text: sorted keys, no spaces"


def test_text_is_canonical() -> None:
    assert dumps({"b": (1, "ü"), "a": None}) == '{"a":null,"b":[1,"ü"]}'.encode()


def test_names_that_are_no_unicode_travel() -> None:
    spec = TensorSpec("a\udcff", "bf16", ())
    assert loads(TensorSpec, dumps(spec), "x") == spec


def test_nan_has_no_text() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        dumps({"a": math.nan})


PLAIN: dict[str, Any] = dict(
    zip([f.name for f in dataclasses.fields(RECORD)], dataclasses.astuple(RECORD), strict=True)
)
PLAIN["tensors"] = ["a", "b"]
HOSTILE: dict[str, tuple[Any, str]] = {
    "a list": ([1], r"record: found list"),
    "null": (None, r"record: found NoneType"),
    "unknown key": ({**PLAIN, "extra": 1}, r"unknown keys \['extra'\]"),
    "missing key": ({k: v for k, v in PLAIN.items() if k != "state"}, r"missing \['state'\]"),
    "text for a number": ({**PLAIN, "version": "3"}, r"record\.version: found str '3', expected int"),
    "bool for a number": ({**PLAIN, "version": True}, r"record\.version: found bool"),
    "float for a number": ({**PLAIN, "version": 3.0}, r"record\.version: found float"),
    "number for text": ({**PLAIN, "site": 3}, r"record\.site: found int"),
    "null for text": ({**PLAIN, "site": None}, r"record\.site: found NoneType"),
    "text for a list": ({**PLAIN, "tensors": "ab"}, r"record\.tensors: found str"),
    "number in a list": ({**PLAIN, "tensors": ["a", 1]}, r"record\.tensors\[1\]: found int"),
    "list for an object": ({**PLAIN, "files": []}, r"record\.files: found list"),
    "text in an object": ({**PLAIN, "files": {"f": "1"}}, r"record\.files\.f: found str"),
    "wrong in an option": ({**PLAIN, "applying": "4"}, r"record\.applying: found str"),
}


@pytest.mark.parametrize(("plain", "says"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_json(plain: Any, says: str) -> None:
    with pytest.raises(CorruptInput, match=says):
        loads(ReplicaRecord, json.dumps(plain).encode(), "record")


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"nope", b"[" * 100_000, b"{}{}"], ids=lambda r: repr(r[:4]))
def test_no_json(raw: bytes) -> None:
    with pytest.raises(CorruptInput, match="x: found"):
        loads(ReplicaRecord, raw, "x")


def test_json_beyond_the_limit_is_not_parsed() -> None:
    with pytest.raises(CorruptInput, match=f"at most {MAX_JSON}"):
        loads(ReplicaRecord, bytes(MAX_JSON + 1), "x")


def test_a_whole_number_is_a_float_where_a_float_is_due() -> None:
    found = from_plain(dict[str, float], {"a": 1}, "x")
    assert found == {"a": 1.0} and type(found["a"]) is float


# -- digests ----------------------------------------------------------------------------------------------------------


def test_digests_of_bytes() -> None:
    data = bytes(range(256)) * 5
    assert (
        digest.block_digest(data) == xxhash.xxh3_128(data).digest()
        and len(digest.block_digest(data)) == digest.BLOCK_DIGEST_BYTES
    )
    running = digest.running_block_digest()
    running.update(data[:7])
    running.update(data[7:])
    assert running.digest() == digest.block_digest(data) == digest.block_digest(np.frombuffer(data, np.uint32))
    assert digest.sha256(memoryview(data)) == hashlib.sha256(data).hexdigest()
    assert digest.block_digest(b"").hex() == "99aa06d3014798d86001c324468d497f", "the published value for no bytes"


LANES = st.tuples(*[st.integers(0, digest.MASK64)] * 2)


@given(LANES, LANES, LANES)
def test_lanes_add_up_in_any_order(a: digest.Lanes, b: digest.Lanes, c: digest.Lanes) -> None:
    assert digest.add(digest.add(a, b), c) == digest.add(a, digest.add(c, b))
    assert digest.lanes_of(digest.lanes_hex(a)) == a and len(digest.lanes_hex(a)) == 32


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "G" * 32, "A" * 32, "0x" + "0" * 30, "-" + "0" * 31, " " * 32, "٣" * 32]
)
def test_malformed_lanes(text: str) -> None:
    with pytest.raises(CorruptInput, match="32 hex digits"):
        digest.lanes_of(text)


def test_state_digest_is_of_the_sorted_list_and_of_every_field() -> None:
    specs = [TensorSpec("b", "f32", (2, 3)), TensorSpec("a", "bf16", (), aliases=("z",))]
    lanes = ["1" * 32, "2" * 32]
    state = digest.state_digest(specs, lanes)
    assert (
        state
        == hashlib.sha256(b'[["a","bf16",[],"' + b"2" * 32 + b'"],["b","f32",[2,3],"' + b"1" * 32 + b'"]]').hexdigest()
    )
    assert state == digest.state_digest(reversed(specs), reversed(lanes))
    others = [
        ([dataclasses.replace(specs[0], name="c"), specs[1]], lanes),
        ([dataclasses.replace(specs[0], dtype="u32"), specs[1]], lanes),
        ([dataclasses.replace(specs[0], shape=(3, 2)), specs[1]], lanes),
        (specs, ["1" * 32, "2" * 31 + "3"]),
        (specs, lanes[::-1]),
    ]
    assert len({state, *(digest.state_digest(s, x) for s, x in others)}) == 1 + len(others)
    with pytest.raises(ValueError, match="shorter"):
        digest.state_digest(specs, lanes[:1])


# -- regions ----------------------------------------------------------------------------------------------------------

PLACES = st.lists(st.integers(1, 6), max_size=4).map(tuple).flatmap(lambda s: st.tuples(st.just(s), boxes(s)))


def words_of(shape: tuple[int, ...], box: Box) -> np.ndarray:
    """Flat indices of a box's words in its own order: the definition that regions must meet."""
    index = np.arange(math.prod(shape)).reshape(shape)
    return index[tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))].reshape(-1)


@given(PLACES)
def test_every_word_is_where_numpy_says(place: tuple[tuple[int, ...], Box]) -> None:
    shape, box = place
    region, want = region_of(box, shape), words_of(shape, box)
    assert region.size == box.size and [region.locate(k) for k in range(region.size)] == want.tolist()
    assert region.contiguous == bool((np.diff(want) == 1).all())


@given(PLACES, st.data())
def test_gather_and_put(place: tuple[tuple[int, ...], Box], data: st.DataObject) -> None:
    shape, box = place
    region, want = region_of(box, shape), words_of(shape, box)
    start, stop = sorted((data.draw(st.integers(0, region.size)), data.draw(st.integers(0, region.size))))
    array = np.arange(1000, 1000 + math.prod(shape), dtype=np.uint16)
    first, last = region.span(start, stop)
    if stop > start:
        assert (first, last) == (want[start], want[stop - 1] + 1)
    out = np.zeros(stop - start, np.uint16)
    region.gather(array[first:last], start, stop, out)
    assert out.tolist() == array[want[start:stop]].tolist()
    after = array.copy()
    new = np.arange(stop - start, dtype=np.uint16)
    region.put(after[first:last], start, stop, new)
    expected = array.copy()
    expected[want[start:stop]] = new
    assert after.tolist() == expected.tolist()


@given(PLACES, st.integers(1, 40), st.data())
def test_windows_are_bounded_and_cover_once(
    place: tuple[tuple[int, ...], Box], limit: int, data: st.DataObject
) -> None:
    region = region_of(place[1], place[0])
    start, stop = sorted((data.draw(st.integers(0, region.size)), data.draw(st.integers(0, region.size))))
    windows = list(region.windows(start, stop, limit))
    assert [k for a, b in windows for k in range(a, b)] == list(range(start, stop))
    for a, b in windows:
        first, last = region.span(a, b)
        assert last - first <= limit or b - a == 1
        if b < stop:  # none could have been longer
            assert region.span(a, b + 1)[1] - first > limit


def test_whole_rows_collapse() -> None:
    assert region_of(Box((2, 0, 0), (5, 4, 3)), (9, 4, 3)) == Region(24, (36,), (1,))
    assert region_of(Box((0, 0), (3, 2)), (3, 7)) == Region(0, (3, 2), (7, 1))
    assert region_of(Box.whole(()), ()) == Region(0, (1,), (1,))


def test_beyond_four_gigawords() -> None:
    region = region_of(Box((1, 0), (2**20, 2**15)), (2**20, 2**16))
    assert region.locate(region.size - 1) == (2**20 - 1) * 2**16 + 2**15 - 1 > 2**35


# -- units ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10240, "10.0 KiB"),
        (150 << 30, "150 GiB"),
        (3 << 50, "3072 TiB"),
    ],
)
def test_bytes(amount: float, text: str) -> None:
    assert bytes_text(amount) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0.00 s"), (119.994, "119.99 s"), (120, "2 min 0 s"), (3661, "61 min 1 s")]
)
def test_seconds(amount: float, text: str) -> None:
    assert seconds_text(amount) == text
