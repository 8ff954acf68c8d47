"""Framing of a part: written and read back, and refused where any byte of it is not as docs/format.md says."""

from __future__ import annotations

import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.digest import block_digest
from dcr_mpi.errors import CorruptInput
from dcr_mpi.jsonable import dumps, loads, to_plain
from dcr_mpi.model import Decision
from dcr_mpi.wire import Bucket, PartHeader, Stream, pack_bucket, pack_part, packed_size, unpack_part

HEAD, BUCKET, STREAM = 76, 16, 10  # bytes, as docs/format.md has them
HEADER = PartHeader(bytes(range(16)), bytes(range(16, 32)), 42, 41, 3, 1)


def sealed(body: bytes) -> bytes:
    """A body with the right trailer."""
    return body + block_digest(body)


def a_part(level: int | None = None) -> bytes:
    streams = {1: b"abc", 9: bytes(100), 40: bytes(range(64))}
    return pack_part(HEADER, [pack_bucket(Bucket(0, 1, 12, "f32", streams), level)])


def edited(at: int, data: bytes) -> bytes:
    body = a_part()[:-16]
    return sealed(body[:at] + data + body[at + len(data) :])


bodies = st.dictionaries(st.integers(0, 255), st.binary(max_size=200) | st.just(bytes(300)), max_size=6)


@given(
    st.lists(
        st.tuples(st.integers(0, 255), st.integers(0, 255), st.sampled_from(["bf16", "raw65535", "u8"]), bodies),
        max_size=4,
    ),
    st.sampled_from([None, 1, 5]),
    st.none() | st.integers(0, 2**64 - 2),
)
def test_parts_round_trip(
    rows: list[tuple[int, int, str, dict[int, bytes]]], level: int | None, base: int | None
) -> None:
    header = PartHeader(b"p" * 16, b"t" * 16, 2**64 - 1, base, 2**32 - 1, len(rows))
    data = pack_part(header, [pack_bucket(Bucket(p, v, 18, n, s), level) for p, v, n, s in rows])
    found, buckets = unpack_part(memoryview(bytearray(data)), "part")
    assert found == header
    for (positions, values, name, streams), bucket in zip(rows, buckets, strict=True):
        assert (bucket.positions, bucket.values, bucket.block_log2, bucket.dtype) == (positions, values, 18, name)
        wanted = {k: v for k, v in streams.items() if v}
        assert list(bucket.streams) == sorted(wanted)
        for number, stream in bucket.streams.items():
            assert isinstance(stream, Stream)
            assert stream.unpack("s", stream.length) == wanted[number]
            with pytest.raises(CorruptInput, match="at most"):
                stream.unpack("s", stream.length - 1)
        taken = sum(STREAM + len(s.data) for s in bucket.streams.values() if isinstance(s, Stream))
        assert packed_size(streams, level) == taken


def test_the_layout_of_the_bytes() -> None:
    """Field by field, as a second implementation would read them."""
    data = a_part()
    assert data[:8] == b"DCRPART\n"
    assert struct.unpack_from("<HH", data, 8) == (1, 0)
    assert data[12:44] == bytes(range(32))
    assert struct.unpack_from("<QQII", data, 44) == (42, 41, 3, 1)
    assert struct.unpack_from("<IBBB8sB", data, 68) == (3 * STREAM + 167, 0, 1, 12, b"f32\0\0\0\0\0", 3)
    assert struct.unpack_from("<BBII", data, 84) == (1, 0, 3, 3)
    assert data[94:97] == b"abc"
    assert data[-16:] == block_digest(data[:-16])
    anchor = pack_part(PartHeader(bytes(16), bytes(16), 0, None, 0, 0), [])
    assert struct.unpack_from("<Q", anchor, 52) == (2**64 - 1,)
    assert unpack_part(anchor, "anchor")[0].base is None


@pytest.mark.parametrize("level", [None, 1])
def test_cut_at_every_byte(level: int | None) -> None:
    data = a_part(level)
    for stop in range(len(data)):
        with pytest.raises(CorruptInput):
            unpack_part(data[:stop], "part")
        if stop >= 16:  # even where a trailer is made for the rest
            with pytest.raises(CorruptInput):
                unpack_part(sealed(data[: stop - 16]), "part")


def test_every_flipped_bit_is_found() -> None:
    data = a_part(1)
    for at in range(len(data)):
        mutant = bytearray(data)
        mutant[at] ^= 1 << (at % 8)
        with pytest.raises(CorruptInput):
            unpack_part(mutant, "part")


def test_trailing_bytes() -> None:
    with pytest.raises(CorruptInput):
        unpack_part(a_part() + b"\0", "part")
    with pytest.raises(CorruptInput, match="after the last bucket"):
        unpack_part(sealed(a_part()[:-16] + b"\0"), "part")


def test_a_newer_format_says_what_to_do() -> None:
    with pytest.raises(CorruptInput, match=r"part 7: found format 2.*expected format 1.*Next: update dcr-mpi"):
        unpack_part(edited(8, struct.pack("<H", 2)), "part 7")
    # It is told before the digest: a later format may end in another one.
    newer = bytearray(a_part())
    newer[8] = 9
    with pytest.raises(CorruptInput, match="format 9"):
        unpack_part(newer, "part")


@pytest.mark.parametrize("number", [0, 2, None, "1"])
def test_objects_of_another_format_say_what_to_do(number: object) -> None:
    good = to_plain(Decision("p" * 64, 3, True, "m" * 64, {}))
    assert loads(Decision, dumps(good), "decision.json").version == 3
    newer = {**good, "format": number, "a key that this format does not have": 1}
    with pytest.raises(CorruptInput, match=r"decision.json.*expected format 1.*Next: update dcr-mpi"):
        loads(Decision, dumps(newer), "decision.json")


S1 = 68 + BUCKET  # where the first stream's header is; its 3 bytes follow, then the second's
S2 = S1 + STREAM + 3


@pytest.mark.parametrize(
    ("at", "data", "found"),
    [
        (0, b"DCRPART\r", "magic"),
        (10, struct.pack("<H", 1), "flags 0x1"),
        (64, struct.pack("<I", 0), "after the last bucket"),
        (64, struct.pack("<I", 2), "expected a header"),
        (64, struct.pack("<I", 2**32 - 1), "expected a header"),
        (68, struct.pack("<I", 2**32 - 1), "a length of"),
        (68, struct.pack("<I", 198), "a length of"),
        (68, struct.pack("<I", 196), "stream 40"),
        (68, struct.pack("<I", 0), "a cut stream header"),
        (75, b"\xffxyz", "ASCII"),
        (83, b"\x02", "after the last stream"),
        (83, b"\x04", "a cut stream header"),
        (83, b"\xff", "a cut stream header"),
        (S1, b"\x09", "increasing ids"),  # twice the same id
        (S1, b"\xff", "increasing ids"),
        (S2, b"\x00", "increasing ids"),
        (S1 + 1, b"\x02", "packing 2"),
        (S1 + 1, b"\xff", "packing 255"),
        (S1 + 2, struct.pack("<I", 4), "3 bytes for 4"),  # raw, of another length than it declares
        (S1 + 2, struct.pack("<II", 0, 0), "0 bytes for 0"),  # an empty stream is left out
        (S1 + 6, struct.pack("<I", 2**32 - 1), "stream 1"),
        (S1 + 2, struct.pack("<II", 200, 200), "stream 1"),  # past the bucket
    ],
)
def test_bad_framing_is_refused(at: int, data: bytes, found: str) -> None:
    with pytest.raises(CorruptInput) as error:
        unpack_part(edited(at, data), "part 9")
    assert found in str(error.value)


def test_a_bad_part_is_named() -> None:
    with pytest.raises(CorruptInput, match=r"part 9, bucket 0, stream 1"):
        unpack_part(edited(S1 + 1, b"\x02"), "part 9")


def frame(data: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(data)  # type: ignore[arg-type]


GOOD = frame(bytes(1000))


@pytest.mark.parametrize(
    ("length", "data"),
    [
        (1000, b""),
        (1000, b"\x28\xb5\x2f\xfd"),
        (1000, GOOD[:-1]),
        (1000, GOOD + b"\0"),
        (1000, GOOD + GOOD),
        (999, GOOD),
        (1001, GOOD),
        (1000, bytes(len(GOOD))),
        (1000, frame(bytes(1000), write_content_size=False)),
        (1000, b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"),  # a skippable frame
        (1000, b"\x50\x2a\x4d\x18\x00\x00\x00\x00" + GOOD),
        (4, b"\x28\xb5\x2f\xfd\x20\x04\x19\x00\x00abc"),  # says 4, holds 3
    ],
)
def test_bad_frames_are_refused(length: int, data: bytes) -> None:
    assert Stream(1, 1000, memoryview(GOOD)).unpack("s", 1000) == bytes(1000)
    with pytest.raises(CorruptInput, match="stream s"):
        Stream(1, length, memoryview(data)).unpack("s", 1 << 20)


def test_streams_that_do_not_shrink_stay_raw() -> None:
    noise = bytes((i * i * 7 + i) & 0xFF for i in range(64))
    bucket = unpack_part(pack_part(HEADER, [pack_bucket(Bucket(0, 0, 6, "u8", {1: noise, 2: bytes(64)}), 1)]), "p")[1][
        0
    ]
    packing = {n: s.packing for n, s in bucket.streams.items() if isinstance(s, Stream)}
    assert packing == {1: 0, 2: 1}


@given(st.binary(max_size=400), st.integers(0, 3))
def test_noise_is_refused(noise: bytes, where: int) -> None:
    body = a_part()[:-16]
    data = [noise, sealed(noise), sealed(body[:64] + b"\1\0\0\0" + noise), sealed(body[:68] + body[68:84] + noise)][
        where
    ]
    if data != a_part():
        with pytest.raises(CorruptInput):
            unpack_part(data, "part")


def test_many_claimed_buckets_end_at_once() -> None:
    """A count of 2^32 - 1 buckets costs as much as the bytes that are there."""
    empty = pack_bucket(Bucket(0, 0, 6, "u8", {}), None)
    body = bytearray(pack_part(PartHeader(bytes(16), bytes(16), 0, 0, 0, 1000), [empty] * 1000)[:-16])
    body[64:68] = struct.pack("<I", 2**32 - 1)
    with pytest.raises(CorruptInput, match="bucket 1000"):
        unpack_part(sealed(bytes(body)), "part")
