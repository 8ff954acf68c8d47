"""The framing of the direct relay: what is packed comes back, and nothing else is taken."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.direct import protocol
from dcr_mpi.direct.protocol import BEAT, PART, READY, REFUSED, Malformed, Request
from dcr_mpi.model import PartEntry

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
SIZES = st.integers(0, (1 << 62))
ENTRIES = st.builds(PartEntry, U32, st.text(max_size=200), SIZES, st.text(max_size=80), SIZES, SIZES)


@given(st.binary(min_size=32, max_size=32))
def test_a_hello_comes_back(token: bytes) -> None:
    raw = protocol.pack_hello(token)
    assert len(raw) == protocol.HELLO_BYTES
    assert protocol.unpack_hello(raw) == token


@given(st.builds(Request, U32, U64, st.binary(min_size=32, max_size=32)))
def test_a_request_comes_back(request: Request) -> None:
    raw = protocol.pack_request(request)
    assert len(raw) == protocol.REQUEST_BYTES
    assert protocol.unpack_request(raw) == request


@given(ENTRIES, st.data())
def test_a_part_comes_back(entry: PartEntry, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, entry.size))
    raw = protocol.pack_part(start, entry)
    kind, length = protocol.unpack_head(raw[: protocol.HEAD_BYTES])
    assert (kind, length) == (PART, len(raw) - protocol.HEAD_BYTES)
    assert protocol.unpack_part(raw[protocol.HEAD_BYTES :]) == (start, entry)


@given(st.text(max_size=2000))
def test_a_refusal_is_short_text(why: str) -> None:
    raw = protocol.refusal(why)
    kind, length = protocol.unpack_head(raw[: protocol.HEAD_BYTES])
    assert kind == REFUSED
    assert length == len(raw) - protocol.HEAD_BYTES <= 512


@given(st.binary(max_size=100))
def test_any_bytes_are_taken_as_they_are_or_refused(raw: bytes) -> None:
    """What is read could only have been packed so; all else is Malformed."""
    try:
        assert protocol.pack_hello(protocol.unpack_hello(raw)) == raw
    except Malformed:
        assert not (len(raw) == protocol.HELLO_BYTES and raw.startswith(b"dcr-dir1"))
    try:
        assert protocol.pack_request(protocol.unpack_request(raw)) == raw
    except Malformed:
        assert not (len(raw) == protocol.REQUEST_BYTES and raw.startswith(b"PART"))
    try:
        kind, length = protocol.unpack_head(raw)
        assert kind in (READY, BEAT, PART, REFUSED)
        assert length <= 8 + 4096
    except Malformed:
        pass


@given(ENTRIES, st.integers(0, 5000), st.integers(0, 255))
def test_a_changed_part_frame_is_read_or_refused(entry: PartEntry, at: int, value: int) -> None:
    raw = bytearray(protocol.pack_part(0, entry)[protocol.HEAD_BYTES :])
    raw[at % len(raw)] = value
    try:
        start, read = protocol.unpack_part(bytes(raw))
        assert 0 <= start <= read.size
    except Malformed:
        pass


@pytest.mark.parametrize(("kind", "length"), [(READY, 1), (BEAT, 1), (PART, 8 + 4097), (REFUSED, 513), (0, 0), (9, 0)])
def test_no_frame_is_longer_than_its_kind(kind: int, length: int) -> None:
    with pytest.raises(Malformed):
        protocol.unpack_head(struct.pack("<BI", kind, length))


def test_a_part_begins_inside_of_it() -> None:
    entry = PartEntry(0, "k", 10, "0" * 64, 1, 1)
    raw = protocol.pack_part(11, entry)
    with pytest.raises(Malformed, match="from byte 11 on"):
        protocol.unpack_part(raw[protocol.HEAD_BYTES :])


def test_what_cannot_be_said_is_not_packed() -> None:
    with pytest.raises(ValueError, match="a token of 31 bytes"):
        protocol.pack_hello(bytes(31))
    with pytest.raises(ValueError, match="in a frame of kind"):
        protocol.pack_part(0, PartEntry(0, "k" * 5000, 10, "0" * 64, 1, 1))
