"""What is said on a connection of the direct relay, as bytes. Pure: no socket, no clock.

::

    client                              server
    hello: magic, token      ------->
                             <-------   READY
    request: part, offset    ------->
                             <-------   BEAT, every second until the part is built
                             <-------   PART: start, entry; then the part's bytes from start on
    request: ...                        (or REFUSED: why, and the end)

Every message of a client has a fixed length, so that nobody can make a server hold more than that; every frame of a
server has a kind and a length that is bounded by the kind. Integers are little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from ..errors import CorruptInput
from ..jsonable import dumps, loads
from ..model import PartEntry

TOKEN_BYTES = 32
READY, BEAT, PART, REFUSED = 1, 2, 3, 4

_MAGIC = b"dcr-dir1"
_HELLO = struct.Struct("<8s32s")
_REQUEST = struct.Struct("<4sIQ32s")
_HEAD = struct.Struct("<BI")
_START = struct.Struct("<Q")
_ENTRY = 4096  # bytes of an entry's JSON at most, as of an announcement
_LONGEST = {READY: 0, BEAT: 0, PART: _START.size + _ENTRY, REFUSED: 512}

HELLO_BYTES, REQUEST_BYTES, HEAD_BYTES = _HELLO.size, _REQUEST.size, _HEAD.size


class Malformed(ValueError):
    """Bytes that no peer of ours would send. Never leaves this room: the connection ends."""


@dataclass(frozen=True)
class Request:
    """Part ``index`` from byte ``offset`` on, if its SHA-256 is ``digest`` (32 bytes); else from its beginning."""

    index: int
    offset: int = 0
    digest: bytes = bytes(32)


def pack_hello(token: bytes) -> bytes:
    """The first message of a client; ``token`` has 32 bytes."""
    if len(token) != TOKEN_BYTES:
        raise ValueError(f"a token of {len(token)} bytes")
    return _HELLO.pack(_MAGIC, token)


def unpack_hello(raw: bytes) -> bytes:
    """The token of a hello.

    Raises
    ------
    Malformed
    """
    magic, token = _unpack(_HELLO, raw)
    if magic != _MAGIC:
        raise Malformed("no hello of this protocol")
    return bytes(token)


def pack_request(request: Request) -> bytes:
    """A request's 48 bytes."""
    return _REQUEST.pack(b"PART", request.index, request.offset, request.digest)


def unpack_request(raw: bytes) -> Request:
    """A request.

    Raises
    ------
    Malformed
    """
    word, index, offset, digest = _unpack(_REQUEST, raw)
    if word != b"PART":
        raise Malformed("no request")
    return Request(index, offset, digest)


def pack_frame(kind: int, payload: bytes = b"") -> bytes:
    """A frame of a server."""
    if len(payload) > _LONGEST[kind]:
        raise ValueError(f"{len(payload)} bytes in a frame of kind {kind}")
    return _HEAD.pack(kind, len(payload)) + payload


def unpack_head(raw: bytes) -> tuple[int, int]:
    """Kind of a frame, and bytes of the payload that follows.

    Raises
    ------
    Malformed
        No such kind, or longer than frames of that kind are.
    """
    kind, length = _unpack(_HEAD, raw)
    if length > _LONGEST.get(kind, -1):
        raise Malformed(f"a frame of kind {kind} with {length} bytes")
    return kind, length


def pack_part(start: int, entry: PartEntry) -> bytes:
    """The frame before a part's bytes, which follow from ``start`` to ``entry.size``."""
    return pack_frame(PART, _START.pack(start) + dumps(entry))


def unpack_part(payload: bytes) -> tuple[int, PartEntry]:
    """``start`` and the part's entry; what the entry says is the caller's to check.

    Raises
    ------
    Malformed
    """
    (start,) = _unpack(_START, payload[: _START.size])
    try:
        entry = loads(PartEntry, payload[_START.size :], "entry of a part")
    except CorruptInput as error:
        raise Malformed(str(error)) from None
    if not 0 <= start <= entry.size:
        raise Malformed(f"a part of {entry.size} bytes from byte {start} on")
    return start, entry


def refusal(why: str) -> bytes:
    """A frame that says why there will be no part."""
    return pack_frame(REFUSED, why.encode("utf-8", "replace")[: _LONGEST[REFUSED]])


def _unpack(form: struct.Struct, raw: bytes) -> tuple[Any, ...]:
    if len(raw) != form.size:
        raise Malformed(f"{len(raw)} bytes where {form.size} belong")
    return form.unpack(raw)
