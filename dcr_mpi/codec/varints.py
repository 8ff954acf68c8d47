"""Unsigned integers as LEB128 varints: seven bits a byte, lowest first, the high bit on all but the last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import CorruptInput


def pack_varints(values: Iterable[int]) -> bytes:
    """Values of 0 or more, one after the other."""
    out = bytearray()
    for value in values:
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def unpack_varints(data: bytes, what: str) -> Iterator[int]:
    """Inverse of :func:`pack_varints`, one by one.

    Raises
    ------
    CorruptInput
        A varint that is cut, longer than it need be, or of more than 63 bits.
    """
    value, shift = 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if not byte and shift > 7:
                raise _bad(what, "a varint longer than it need be")
            yield value
            value, shift = 0, 0
        elif shift > 56:
            raise _bad(what, "a varint over 63 bits")
    if shift:
        raise _bad(what, "a cut varint")


def _bad(what: str, found: str) -> CorruptInput:
    return CorruptInput(what, found=found, expected="varints of at most 63 bits in their shortest form")
