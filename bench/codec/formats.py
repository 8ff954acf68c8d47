"""The reference systems' formats, written from their published descriptions, for measuring only.

* gaps: for every tensor the differences between changed positions as uint16, or as uint32 where any exceeds 65535,
  then the values (XOR masks or new words), one zstd-1 frame, a header and a blake2b-16 checksum. *mixed* takes
  whichever value scheme is smaller for the tensor.
* dense XOR: the whole tensor XOR its baseline, zstd-1.
* byte positions: every changed byte's position as uint32, then the new bytes, zstd-1.

numpy throughout. Each format decodes in place into the baseline's words.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import zstandard

from .data import Tensor

_HEAD = struct.Struct("<BBQQQ16s")  # value scheme, gap bytes, changed, words, frame bytes, checksum
_XOR, _OVERWRITE = 0, 1


class Format(Protocol):
    """A way to send tensors against their baseline."""

    name: str

    def encode(self, tensors: Sequence[Tensor]) -> bytes: ...

    def decode(self, data: bytes, words: Sequence[np.ndarray]) -> None:
        """Turn the baseline's words, tensor by tensor, into the new ones."""
        ...


class _Framed:
    """Tensor after tensor: the length of its name and the name, a header, one zstd-1 frame."""

    def encode(self, tensors: Sequence[Tensor]) -> bytes:
        out, zstd = [], zstandard.ZstdCompressor(level=1)
        for tensor in tensors:
            name = tensor.name.encode()
            scheme, width, count, frame = self._pack(tensor.base, tensor.new, zstd)
            digest = hashlib.blake2b(frame, digest_size=16).digest()
            head = _HEAD.pack(scheme, width, count, len(tensor.base), len(frame), digest)
            out += [struct.pack("<H", len(name)), name, head, frame]
        return b"".join(out)

    def decode(self, data: bytes, words: Sequence[np.ndarray]) -> None:
        at, zstd = 0, zstandard.ZstdDecompressor()
        for mine in words:
            at += 2 + struct.unpack_from("<H", data, at)[0]
            scheme, width, count, size, length, digest = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            frame = data[at : at + length]
            at += length
            if size != len(mine) or hashlib.blake2b(frame, digest_size=16).digest() != digest:
                raise ValueError("not what was encoded")
            self._apply(scheme, width, count, zstd.decompress(frame), mine)

    def _pack(self, base: np.ndarray, new: np.ndarray, zstd: zstandard.ZstdCompressor) -> tuple[int, int, int, bytes]:
        raise NotImplementedError

    def _apply(self, scheme: int, width: int, count: int, raw: bytes, words: np.ndarray) -> None:
        raise NotImplementedError


class Gaps(_Framed):
    """uint16 gaps and values; ``values`` is "xor", "overwrite" or "mixed"."""

    def __init__(self, values: str) -> None:
        self.name = f"u16 gaps, {values}"
        self._schemes = {"xor": [_XOR], "overwrite": [_OVERWRITE], "mixed": [_XOR, _OVERWRITE]}[values]

    def _pack(self, base: np.ndarray, new: np.ndarray, zstd: zstandard.ZstdCompressor) -> tuple[int, int, int, bytes]:
        at = np.flatnonzero(base != new)
        gaps = np.diff(at, prepend=0)
        narrow = gaps.astype(np.uint32 if gaps.max(initial=0) > 0xFFFF else np.uint16)
        frames = []
        for scheme in self._schemes:
            values = new[at] ^ base[at] if scheme == _XOR else new[at]
            frames.append((zstd.compress(narrow.tobytes() + values.tobytes()), scheme))
        frame, scheme = min(frames, key=lambda f: len(f[0]))
        return scheme, narrow.itemsize, len(at), frame

    def _apply(self, scheme: int, width: int, count: int, raw: bytes, words: np.ndarray) -> None:
        at = np.cumsum(np.frombuffer(raw, f"<u{width}", count), dtype=np.int64)
        values = np.frombuffer(raw, words.dtype, count, width * count)
        words[at] = words[at] ^ values if scheme == _XOR else values


class DenseXor(_Framed):
    name = "dense XOR"

    def _pack(self, base: np.ndarray, new: np.ndarray, zstd: zstandard.ZstdCompressor) -> tuple[int, int, int, bytes]:
        return _XOR, 0, len(base), zstd.compress((base ^ new).tobytes())

    def _apply(self, scheme: int, width: int, count: int, raw: bytes, words: np.ndarray) -> None:
        words ^= np.frombuffer(raw, words.dtype)


class BytePositions(_Framed):
    name = "u32 byte positions"

    def _pack(self, base: np.ndarray, new: np.ndarray, zstd: zstandard.ZstdCompressor) -> tuple[int, int, int, bytes]:
        before, after = base.view(np.uint8), new.view(np.uint8)
        at = np.flatnonzero(before != after)
        return _OVERWRITE, 4, len(at), zstd.compress(at.astype(np.uint32).tobytes() + after[at].tobytes())

    def _apply(self, scheme: int, width: int, count: int, raw: bytes, words: np.ndarray) -> None:
        at = np.frombuffer(raw, np.uint32, count)
        words.view(np.uint8)[at] = np.frombuffer(raw, np.uint8, count, 4 * count)


FORMATS: tuple[Format, ...] = (Gaps("xor"), Gaps("overwrite"), Gaps("mixed"), DenseXor(), BytePositions())
