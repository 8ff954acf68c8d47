"""The codec: decode(encode(x)) == x, the smaller form is chosen, a malformed bucket is refused in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from copy import copy

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.codec import (
    BlockTable,
    BucketReader,
    Cover,
    Scheme,
    block_table,
    compare,
    digests_of,
    encode,
    rest_digests,
)
from dcr_mpi.codec.bucket import BASE, CHANGED, COUNTS, DENSE, GAP_ESCAPES, GAPS, REST, SPANS, TARGET
from dcr_mpi.codec.table import MAX_BLOCKS, pack_spans, unpack_spans
from dcr_mpi.codec.values import DENSE_PLANES, PLANES, SMALL, SMALL_ESCAPES
from dcr_mpi.digest import block_digest
from dcr_mpi.dtypes import DType, dtype
from dcr_mpi.errors import CorruptInput, GeometryError
from dcr_mpi.kernels import get_kernels
from dcr_mpi.layout import Span
from dcr_mpi.wire import Bucket, PartHeader, Stream, pack_bucket, pack_part, unpack_part
from tests.strategies import BucketCase, bucket_cases, change, random_words, seeds, word_type

REFERENCE, JIT = get_kernels("numpy"), get_kernels("numba")
SCHEMES = [
    Scheme(p, v, level)
    for p in ("plain", "class", "auto", "dense")
    for v in ("ulp", "xor", "overwrite", "mixed")
    for level in (None, 1, 3)
]
HEADER = PartHeader(b"p" * 16, b"t" * 16, 7, 6, 0, 1)


def on_wire(bucket: bytes) -> Bucket:
    """A packed bucket as a reader meets it."""
    return unpack_part(pack_part(HEADER, [bucket]), "part")[1][0]


def coded(case: BucketCase, scheme: Scheme) -> bytes:
    changes = JIT.changes(case.base, case.new, case.table.offset, case.table.size)
    return encode(scheme, case.kind.name, case.table, case.block, case.base, case.new, changes, JIT)


def packed(table: BlockTable, words: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """The changed blocks of a bucket array, packed as :meth:`BucketReader.decode` takes and gives them."""
    blocks = np.flatnonzero(changed)
    mine = table.select(blocks)
    out = np.zeros(mine.length, words.dtype)
    for k, block in enumerate(blocks.tolist()):
        mine.view(out, k)[...] = table.view(words, block)
    return out


@given(bucket_cases(), st.sampled_from([1, 300, 4096, 1 << 30]))
def test_comparing_while_reading_sees_what_comparing_afterwards_does(case: BucketCase, lot: int) -> None:
    table, read = case.table, []

    kernels = copy(JIT)
    kernels.lot = lot
    base, window = np.zeros(table.length, case.base.dtype), np.zeros(table.length, case.base.dtype)

    def fill(first: int, last: int) -> np.ndarray:
        read.append((first, last))
        low = int(table.offset[first])
        for block in range(first, last):
            table.view(base, block)[...] = table.view(case.base, block)
            at = int(table.offset[block]) - low
            window[at : at + table.size[block]] = table.view(case.new, block)
        return window[: (int(table.offset[last]) if last < len(table) else table.length) - low]

    found, digests = compare(table, base, fill, kernels)
    wanted = JIT.changes(case.base, case.new, table.offset, table.size)
    assert [b for first, last in read for b in range(first, last)] == list(range(len(table)))
    assert all(last - first == 1 for first, last in read) or lot > 1
    for name in ("counts", "positions", "old", "new"):
        assert getattr(found, name).tobytes() == getattr(wanted, name).tobytes()
        assert getattr(found, name).dtype == getattr(wanted, name).dtype
    assert digests == digests_of(table, case.base, case.new, wanted.counts > 0)


@given(bucket_cases(), st.sampled_from(SCHEMES))
def test_decode_of_encode_is_the_new_bucket(case: BucketCase, scheme: Scheme) -> None:
    data = coded(case, scheme)
    changes = REFERENCE.changes(case.base, case.new, case.table.offset, case.table.size)
    again = encode(scheme, case.kind.name, case.table, case.block, case.base, case.new, changes, REFERENCE)
    assert again == data  # both rooms write the same bytes
    for kernels in (REFERENCE, JIT):
        reader = BucketReader(on_wire(data), anchor=False)
        assert (reader.dtype, reader.block, reader.table.spans) == (case.kind, case.block, case.table.spans)
        assert reader.changed.tolist() == (changes.counts > 0).tolist()
        base = packed(case.table, case.base, reader.changed)
        before = base.copy()
        target, found = reader.decode(base, kernels)
        assert target.tobytes() == packed(case.table, case.new, reader.changed).tobytes()
        assert base.tobytes() == before.tobytes()  # what the receiver holds is not touched
        assert found.counts.tolist() == changes.counts[reader.changed].tolist()
        for name in ("positions", "old", "new"):
            assert getattr(found, name).tobytes() == getattr(changes, name).tobytes()


@given(bucket_cases(), st.sampled_from(SCHEMES))
def test_digests_bind_base_and_target(case: BucketCase, scheme: Scheme) -> None:
    reader = BucketReader(on_wire(coded(case, scheme)), anchor=False)
    for k in range(len(case.table)):
        base, new = (block_digest(case.table.view(words, k)) for words in (case.base, case.new))
        assert (reader.base[k], reader.target[k]) == ((base, new) if reader.changed[k] else (None, None))
    assert reader.rest == rest_digests(case.table, case.base, reader.changed)
    quiet = {int(s) for s in case.table.span[~reader.changed]}
    assert set(reader.rest) == quiet
    for span in quiet:
        blocks = np.flatnonzero((case.table.span == span) & ~reader.changed).tolist()
        assert reader.rest[span] == block_digest(b"".join(case.table.view(case.base, b).tobytes() for b in blocks))


@given(bucket_cases(), st.sampled_from([None, 1]))
def test_anchor_carries_everything(case: BucketCase, level: int | None) -> None:
    data = encode(Scheme(level=level), case.kind.name, case.table, case.block, None, case.new, None, JIT)
    reader = BucketReader(on_wire(data), anchor=True)
    assert reader.changed.all() and reader.dense.all()
    for kernels in (REFERENCE, JIT):
        target, _ = reader.decode(np.zeros(case.table.length, case.new.dtype), kernels)
        assert target.tobytes() == packed(case.table, case.new, reader.changed).tobytes()
    assert reader.target == [block_digest(case.table.view(case.new, k)) for k in range(len(case.table))]


@given(bucket_cases(), st.sampled_from(SCHEMES))
def test_a_delta_is_not_read_as_an_anchor_nor_an_anchor_as_a_delta(case: BucketCase, scheme: Scheme) -> None:
    with pytest.raises(CorruptInput):
        BucketReader(on_wire(coded(case, scheme)), anchor=True)
    anchor = encode(scheme, case.kind.name, case.table, case.block, None, case.new, None, JIT)
    with pytest.raises(CorruptInput):
        BucketReader(on_wire(anchor), anchor=False)


# -- sizes ----------------------------------------------------------------------------------------------------

WORDS = 1 << 14


def weights(kind: DType, seed: int = 0) -> np.ndarray:
    """Words as weights have them: normal floats, small integers."""
    rng = np.random.default_rng(seed)
    if not kind.is_float:
        return rng.integers(0, 100, WORDS).astype(word_type(kind))
    wide = (rng.standard_normal(WORDS) * 0.02).astype(np.float64 if kind.itemsize == 8 else np.float32)
    tops = wide.view(np.uint8).reshape(WORDS, -1)[
        :, -kind.itemsize :
    ]  # little-endian: the first bytes are the last bits
    return np.ascontiguousarray(tops).view(word_type(kind)).reshape(WORDS)


def size_of(kind: DType, base: np.ndarray, new: np.ndarray, scheme: Scheme, block: int = WORDS) -> int:
    table = block_table([Span(0, 0, WORDS)], block)
    changes = JIT.changes(base, new, table.offset, table.size)
    return len(encode(scheme, kind.name, table, block, base, new, changes, JIT))


@pytest.mark.parametrize("values", ["ulp", "xor", "overwrite"])
@pytest.mark.parametrize("name", ["bf16", "f32", "f64", "f8e4m3", "u8", "i64", "bool"])
@pytest.mark.parametrize("how", ["one", "ends", "few", "nudge", "many", "every", "run"])
def test_plain_never_loses_to_whole_blocks(name: str, values: str, how: str) -> None:
    """The choice of dense blocks, made by trial: at most a few bytes over sending everything whole."""
    kind = dtype(name)
    base = weights(kind)
    new = base.copy()
    change(new, how, kind, np.random.default_rng(5))
    for level in (None, 1):
        plain = size_of(kind, base, new, Scheme("plain", values, level))  # type: ignore[arg-type]
        whole = size_of(kind, base, new, Scheme("dense", values, level))  # type: ignore[arg-type]
        assert plain <= whole + 32, (plain, whole)


@pytest.mark.parametrize("positions", ["plain", "class", "auto"])
def test_mixed_is_the_smaller_of_two(positions: str) -> None:
    """XOR masks where words moved a little, new words where few of them are there to move to."""
    kind, rng = dtype("bf16"), np.random.default_rng(7)
    near, far = weights(kind), weights(kind)
    some = rng.choice(WORDS, WORDS // 20, replace=False)
    near[some] += near.dtype.type(1)
    far[some] = 0
    for new, winner in ((near, "xor"), (far, "overwrite")):
        sizes = {v: size_of(kind, weights(kind), new, Scheme(positions, v)) for v in ("xor", "overwrite", "mixed")}
        assert sizes["mixed"] == sizes[winner] == min(sizes.values()) < max(sizes.values())


@pytest.mark.parametrize(("name", "per_change"), [("bf16", 0.5), ("f32", 0.5), ("f64", 0.5), ("u8", 0.5), ("i64", 0.5)])
@pytest.mark.parametrize("where", [slice(None), slice(3000, 13000)], ids=["every element", "one long run"])
def test_small_steps_everywhere_stay_small(name: str, per_change: float, where: slice) -> None:
    """Every word one step on, though the words themselves are noise: a few bits each, not the words."""
    kind = dtype(name)
    base, new = weights(kind), weights(kind)
    new[where] += new.dtype.type(1)
    for block in (64, 1024, WORDS):
        digests = 32 * (WORDS // block)
        assert size_of(kind, base, new, Scheme(), block) < per_change * WORDS + 2 * digests + 200


@pytest.mark.parametrize("level", [None, 1])
def test_few_changes_cost_a_few_bytes(level: int | None) -> None:
    kind = dtype("bf16")
    base = weights(kind)
    overhead = {}
    for how, changes in (("none", 0), ("one", 1), ("ends", 2)):
        new = base.copy()
        if changes:
            new[[0, -1][:changes]] ^= np.uint16(1)
        overhead[how] = size_of(kind, base, new, Scheme("plain", "ulp", level))
    # Bucket and stream headers, spans, bitmap, one digest of the rest; then two digests, a count, gap and value.
    assert overhead["none"] <= 80
    assert overhead["one"] <= 150
    assert overhead["ends"] <= overhead["one"] + 16


def test_without_an_entropy_stage_the_smaller_form_is_exact() -> None:
    kind = dtype("u32")
    rng = np.random.default_rng(3)
    base = random_words(kind, WORDS, rng)
    for changed in (WORDS // 2, 3 * WORDS // 4, int(WORDS * 0.79), int(WORDS * 0.81), WORDS):
        new = base.copy()
        new[rng.permutation(WORDS)[:changed]] ^= np.uint32(0x01010101)
        plain = size_of(kind, base, new, Scheme("plain", "overwrite", None))
        whole = size_of(kind, base, new, Scheme("dense", "overwrite", None))
        if 5 * changed + 14 * 2 < 4 * WORDS:  # a gap and a word each, two more stream headers and a count
            assert plain < whole
        else:
            assert plain <= whole


# -- spans ----------------------------------------------------------------------------------------------------


@given(bucket_cases())
def test_spans_round_trip(case: BucketCase) -> None:
    assert unpack_spans(pack_spans(case.table.spans, case.block), case.block, case.kind.word_bytes) == case.table.spans


def varints(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "no span"),
        (b"\x00", "a cut list"),
        (b"\x00\x00", "a cut list"),
        (b"\x00\x00\x05\x80", "a cut varint"),
        (varints(0, 0, 0), "0 words"),
        (varints(0, 1, 64, 0, 1, 5), "5 words at 64"),  # overlaps the one before
        (varints(0, 0, 65, 0, 1, 5), "5 words at 64"),  # by one word
        (varints(0, 5, 64, 0, 1, 64), "64 words at 64"),  # runs back
        (varints(0, 0, 1 << 29), "536870912 words"),  # larger than the largest bucket
        (varints(0, 1 << 62, 1), "tile 0"),  # 64-bit wrap-around
        (varints((1 << 62) + 1, 0, 1), "tile 46"),
        (b"\xff" * 10 + b"\x01\x00\x01", "over 63 bits"),
        (b"\x80\x00\x00\x01", "longer than it need be"),
        (varints(*[0, 0, 64 * (MAX_BLOCKS + 1)]), "words at 0"),  # more blocks than a bucket may have
    ],
)
def test_bad_spans_are_refused(data: bytes, found: str) -> None:
    with pytest.raises(CorruptInput, match="span stream") as error:
        unpack_spans(data, 64, 4)
    assert found in str(error.value)


def test_a_writer_refuses_what_no_reader_takes() -> None:
    table = block_table([Span(t, 0, 1) for t in range(MAX_BLOCKS + 1)], 64)
    with pytest.raises(GeometryError, match="smaller buckets"):
        encode(Scheme(), "u8", table, 64, None, np.empty(0, np.uint8), None, JIT)
    for block in (32, 65, 1 << 25):
        few = block_table([Span(0, 0, 64)], block)
        with pytest.raises(GeometryError, match="power of two"):
            encode(Scheme(), "u8", few, block, None, np.zeros(64, np.uint8), None, JIT)


@pytest.mark.parametrize(
    ("span", "name"), [(Span(4, 0, 64), "bf16"), (Span(3, 0, 65), "bf16"), (Span(3, 0, 64), "f16")]
)
def test_spans_outside_their_part_are_refused(span: Span, name: str) -> None:
    table = block_table([span], 64)
    words = np.zeros(table.length, np.uint16)
    reader = BucketReader(on_wire(encode(Scheme(), name, table, 64, None, words, None, JIT)), anchor=True)
    with pytest.raises(CorruptInput, match="tile"):
        Cover("part", [Span(3, 0, 64)], {3: "bf16", 4: "bf16"}, 64).take(reader)


def _buckets(*spans: Span, block: int = 64) -> list[BucketReader]:
    """A bucket of u8 zeros for each span."""
    out = []
    for span in spans:
        table = block_table([span], block)
        packed = encode(Scheme(), "u8", table, block, None, np.zeros(table.length, np.uint8), None, JIT)
        out.append(BucketReader(on_wire(packed), anchor=True))
    return out


def _cover(readers: list[BucketReader]) -> Cover:
    cover = Cover("part", [Span(3, 64, 256), Span(5, 0, 100)], {3: "u8", 5: "u8"}, 64)
    for reader in readers:
        cover.take(reader)
    cover.finish()
    return cover


def test_a_parts_buckets_hold_its_spans_in_order() -> None:
    assert _cover(_buckets(Span(3, 64, 128), Span(3, 128, 256), Span(5, 0, 64), Span(5, 64, 100))).buckets == 5
    assert _cover(_buckets(Span(3, 64, 256), Span(5, 0, 100))).buckets == 5


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [Span(3, 64, 256)],
        [Span(3, 64, 256), Span(5, 0, 64)],
        [Span(3, 64, 256), Span(5, 64, 100)],
        [Span(3, 64, 128), Span(3, 64, 256), Span(5, 0, 100)],
        [Span(5, 0, 100), Span(3, 64, 256)],
        [Span(3, 0, 256), Span(5, 0, 100)],
        [Span(3, 64, 256), Span(5, 0, 101)],
        [Span(3, 64, 256), Span(5, 0, 100), Span(6, 0, 1)],
    ],
)
def test_a_part_that_leaves_out_or_repeats_words_is_refused(spans: list[Span]) -> None:
    with pytest.raises(CorruptInput, match="part: found"):
        _cover(_buckets(*spans))


def test_a_bucket_in_other_blocks_than_the_tilings_is_refused() -> None:
    with pytest.raises(CorruptInput, match="blocks of 128"):
        _cover(_buckets(Span(3, 128, 256), block=128))


# -- hostile buckets ------------------------------------------------------------------------------------------


def a_bucket() -> Bucket:
    """Tile 3, words 0..300 in blocks of 64: block 0 has two changes (one value and one gap escaped), block 1 none,
    block 2 is dense, block 3 has one change and block 4 (44 words) none."""
    return Bucket(0, 2, 6, "bf16", _streams())


def _streams() -> dict[int, bytes]:
    digest = bytes(range(16))
    return {
        SPANS: varints(3, 0, 300),
        CHANGED: b"\x0d",
        DENSE: b"\x04",
        COUNTS: struct.pack("<2I", 2, 1),
        BASE: digest * 3,
        REST: digest,
        TARGET: digest * 3,
        GAPS: bytes([5, 0, 63]),
        SMALL: bytes([0, 255, 7]),
        SMALL_ESCAPES: struct.pack("<H", 300),
        DENSE_PLANES: bytes(64),
        DENSE_PLANES + 1: bytes(64),
    }


def read(bucket: Bucket, anchor: bool = False) -> None:
    """All that a receiver reads of a bucket."""
    for level in (None, 1):
        reader = BucketReader(on_wire(pack_bucket(bucket, level)), anchor)
        reader.decode(zeros(reader), JIT)


def zeros(reader: BucketReader) -> np.ndarray:
    """A baseline of zeros for a bucket's changed blocks."""
    return np.zeros(reader.table.select(np.flatnonzero(reader.changed)).length, word_type(reader.dtype))


def test_the_hand_made_bucket_decodes() -> None:
    read(a_bucket())
    reader = BucketReader(on_wire(pack_bucket(a_bucket(), None)), anchor=False)
    target, changes = reader.decode(np.zeros(192, np.uint16), REFERENCE)
    # A dense block's zeros over zeros are no changes. From +0.0: one step down is -0.0; 301 is odd, so 151 steps
    # down are -0.0 less 150; 8 steps halved up are 4.
    assert (changes.counts.tolist(), changes.positions.tolist()) == ([2, 0, 1], [5, 6, 63])
    assert target[[5, 6, 191]].tolist() == [0x8000, 0x8000 + 150, 4]


def replaced(number: int, data: bytes | None) -> Bucket:
    streams = _streams()
    if data is None:
        del streams[number]
    else:
        streams[number] = data
    return Bucket(0, 2, 6, "bf16", streams)


BAD_STREAMS = {
    "no spans": (SPANS, None),
    "spans of another size": (SPANS, varints(3, 0, 600)),
    "bitmap missing": (CHANGED, None),
    "bitmap too long": (CHANGED, b"\x0d\x00"),
    "bit past the last block": (CHANGED, b"\x2d"),
    "a changed block less": (CHANGED, b"\x05"),
    "a changed block more": (CHANGED, b"\x0f"),
    "a dense block that did not change": (DENSE, b"\x06"),
    "dense bit past the end": (DENSE, b"\x24"),
    "no dense bit for dense planes": (DENSE, None),
    "counts cut": (COUNTS, struct.pack("<I", 2)),
    "counts missing": (COUNTS, None),
    "counts not whole": (COUNTS, struct.pack("<2I", 2, 1)[:-1]),
    "counts of one block more": (COUNTS, struct.pack("<3I", 2, 1, 1)),
    "a count of zero": (COUNTS, struct.pack("<2I", 3, 0)),
    "a count over the block": (COUNTS, struct.pack("<2I", 65, 1)),
    "a count of 2^32 - 1": (COUNTS, struct.pack("<2I", 2**32 - 1, 1)),
    "fewer changes than gaps": (COUNTS, struct.pack("<2I", 1, 1)),
    "more changes than gaps": (COUNTS, struct.pack("<2I", 2, 2)),
    "base digests cut": (BASE, bytes(47)),
    "base digests missing": (BASE, None),
    "rest digest missing": (REST, None),
    "a rest digest too many": (REST, bytes(32)),
    "target digests missing": (TARGET, None),
    "target digests too many": (TARGET, bytes(64)),
    "gaps missing": (GAPS, None),
    "a gap past the block": (GAPS, bytes([5, 58, 63])),
    "a gap past the next block": (GAPS, bytes([5, 0, 64])),
    "a gap escape missing": (GAPS, bytes([5, 0, 255])),
    "a gap escape left over": (GAP_ESCAPES, struct.pack("<I", 300)),
    "gap escapes cut": (GAP_ESCAPES, b"\x00\x01"),
    "values missing": (SMALL, None),
    "values too many": (SMALL, bytes(4)),
    "values too few": (SMALL, bytes(2)),
    "a value escape missing": (SMALL_ESCAPES, None),
    "a value escape left over": (SMALL_ESCAPES, struct.pack("<2H", 300, 300)),
    "value escapes cut": (SMALL_ESCAPES, b"\x2c"),
    "a value escape that needed none": (SMALL_ESCAPES, struct.pack("<H", 254)),
    "a dense plane missing": (DENSE_PLANES + 1, None),
    "a dense plane short": (DENSE_PLANES, bytes(63)),
    "a dense plane long": (DENSE_PLANES, bytes(65)),
    "planes of another scheme": (PLANES, bytes(3)),
    "a dense plane past the word": (DENSE_PLANES + 2, bytes(64)),
    "an unknown stream": (12, b"\x00"),
    "stream 0": (0, b"\x00"),
    "stream 255": (255, b"\x00"),
}


@pytest.mark.parametrize("case", BAD_STREAMS)
def test_bad_streams_are_refused(case: str) -> None:
    with pytest.raises(CorruptInput):
        read(replaced(*BAD_STREAMS[case]))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({COUNTS: struct.pack("<2I", 3, 0), GAPS: bytes([5, 0, 3])}, "a count of 0"),
        ({DENSE: b"\x06", DENSE_PLANES: bytes(128), DENSE_PLANES + 1: bytes(128)}, "a dense block that did not change"),
    ],
)
def test_bad_streams_that_fit_each_other_are_refused_too(changes: dict[int, bytes], found: str) -> None:
    with pytest.raises(CorruptInput, match=found):
        read(Bucket(0, 2, 6, "bf16", _streams() | changes))


def test_a_gap_escape_under_255_is_refused() -> None:
    streams = _streams() | {SPANS: varints(3, 0, 5 * 1024), GAPS: bytes([5, 255, 63])}
    planes = {DENSE_PLANES: bytes(1024), DENSE_PLANES + 1: bytes(1024)}
    good = streams | planes | {GAP_ESCAPES: struct.pack("<I", 255)}
    read(Bucket(0, 2, 10, "bf16", good))
    with pytest.raises(CorruptInput, match="escape"):
        read(Bucket(0, 2, 10, "bf16", good | {GAP_ESCAPES: struct.pack("<I", 254)}))


@pytest.mark.parametrize(
    ("positions", "values", "log2", "name"),
    [
        (1, 2, 6, "bf16"),  # the streams are those of plain gaps
        (2, 2, 6, "bf16"),
        (255, 2, 6, "bf16"),
        (0, 3, 6, "bf16"),
        (0, 2, 5, "bf16"),
        (0, 2, 25, "bf16"),
        (0, 2, 255, "bf16"),
        (0, 2, 6, ""),
        (0, 2, 6, "bf17"),
        (0, 2, 6, "raw0"),
        (0, 2, 6, "f32"),  # the streams are those of 2-byte words
        (0, 1, 6, "bf16"),  # and those of ulp differences
    ],
)
def test_bad_bucket_headers_are_refused(positions: int, values: int, log2: int, name: str) -> None:
    with pytest.raises(CorruptInput):
        read(Bucket(positions, values, log2, name, _streams()))


@pytest.mark.parametrize(
    "number", [CHANGED, DENSE, COUNTS, BASE, REST, GAPS, GAP_ESCAPES, SMALL, SMALL_ESCAPES, PLANES]
)
def test_an_anchor_has_no_streams_of_a_delta(number: int) -> None:
    good = {SPANS: varints(3, 0, 64), TARGET: bytes(16), DENSE_PLANES: bytes(64), DENSE_PLANES + 1: bytes(64)}
    read(Bucket(0, 2, 6, "bf16", good), anchor=True)
    with pytest.raises(CorruptInput):
        read(Bucket(0, 2, 6, "bf16", good | {number: bytes(16)}), anchor=True)


# -- bombs ----------------------------------------------------------------------------------------------------


def peak(act: Callable[[], object]) -> int:
    """Bytes of Python and numpy memory that a refused read takes at its highest."""
    tracemalloc.start()
    try:
        with pytest.raises(CorruptInput):
            act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def framed(bucket: Bucket, number: int, length: int, frame: bytes) -> Bucket:
    """A bucket as it comes from the wire, with one stream replaced by a declared length and a frame."""
    streams = dict(on_wire(pack_bucket(bucket, None)).streams)
    streams[number] = Stream(1, length, memoryview(frame))
    return Bucket(bucket.positions, bucket.values, bucket.block_log2, bucket.dtype, streams)


@pytest.mark.parametrize("number", sorted([*_streams(), GAP_ESCAPES]))
def test_a_small_frame_that_inflates_to_a_lot_takes_no_memory(number: int) -> None:
    big = 512 << 20
    frame = zstandard.ZstdCompressor(level=1).compress(bytes(big))
    assert len(frame) < 1 << 16
    good = a_bucket() if number == GAP_ESCAPES else replaced(number, None)

    def bomb(length: int, data: bytes = frame) -> None:
        reader = BucketReader(framed(good, number, length, data), anchor=False)
        reader.decode(zeros(reader), JIT)

    unsized = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(1 << 20))
    assert peak(lambda: bomb(big)) < 1 << 20  # declares it
    assert peak(lambda: bomb(48)) < 1 << 20  # hides it
    assert peak(lambda: bomb(48, unsized)) < 1 << 20  # does not say
    assert peak(lambda: bomb(2**32 - 1)) < 1 << 20


def test_a_small_bucket_that_claims_much_geometry_takes_bounded_memory() -> None:
    """Spans, bitmaps and digests of as many blocks as are allowed, or one more, in a few bytes of zstd each."""
    spans = varints(*([0, 0, 1] + [1, 0, 1] * (MAX_BLOCKS - 1)))
    streams = {SPANS: spans, CHANGED: bytes(MAX_BLOCKS // 8), REST: bytes(16 * MAX_BLOCKS)}
    data = pack_bucket(Bucket(0, 2, 6, "bf16", streams), 1)
    more = on_wire(pack_bucket(Bucket(0, 2, 6, "bf16", streams | {SPANS: spans + varints(1, 0, 1)}), 1))
    assert len(data) < 1 << 15
    bucket = on_wire(data)
    tracemalloc.start()
    try:
        assert len(BucketReader(bucket, anchor=False).table) == MAX_BLOCKS
        assert tracemalloc.get_traced_memory()[1] < 128 << 20
    finally:
        tracemalloc.stop()
    assert peak(lambda: BucketReader(more, anchor=False)) < 64 << 20


# -- fuzz -----------------------------------------------------------------------------------------------------


@given(bucket_cases(), st.sampled_from(SCHEMES), seeds, st.integers(0, 3))
def test_mutated_parts_decode_or_are_refused(case: BucketCase, scheme: Scheme, seed: int, kind: int) -> None:
    """Bit flips, cuts and splices, the trailer made right again: a decode or CorruptInput, nothing else."""
    rng = np.random.default_rng(seed)
    body = pack_part(HEADER, [coded(case, scheme)])[:-16]
    for _ in range(12):
        mutant = bytearray(body)
        if kind == 0:  # bits
            for at in rng.integers(0, len(mutant), rng.integers(1, 4)).tolist():
                mutant[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:  # cut
            del mutant[int(rng.integers(0, len(mutant))) :]
        elif kind == 2:  # splice: some bytes are replaced by others of the same part
            a, b, n = rng.integers(0, len(mutant), 3).tolist()
            mutant[a : a + n % 40] = mutant[b : b + int(rng.integers(0, 40))]
        else:  # bytes that matter most: headers of the part, of the bucket and of streams
            mutant[int(rng.integers(60, min(len(mutant), 130)))] = int(rng.integers(0, 256))
        survive(bytes(mutant) + block_digest(bytes(mutant)))


def survive(part: bytes) -> None:
    try:
        header, buckets = unpack_part(part, "part")
        for bucket in buckets:
            reader = BucketReader(bucket, anchor=header.base is None)
            blocks = np.flatnonzero(reader.changed)
            room = reader.table.select(blocks).length
            if room <= 1 << 22:  # an honest caller has met Cover by now, which knows the part's size
                base = np.zeros(room, word_type(reader.dtype))
                a, _ = reader.decode(base, JIT)
                b, _ = BucketReader(bucket, anchor=header.base is None).decode(base, REFERENCE)
                assert a.tobytes() == b.tobytes()
    except CorruptInput:
        return
