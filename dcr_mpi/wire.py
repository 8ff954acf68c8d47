"""Bytes <-> records of a part (format version 1; docs/format.md is the specification).

A part is a header, buckets, and a trailing xxh3-128 of everything before it. A bucket is a small header and named
streams, each raw or one zstd frame. This module knows framing and limits only; what streams mean is the codec's.
Every byte is hostile: lengths are checked before anything is allocated, nothing is left over at any level, and a
stream never inflates past the length that its header declares, which the codec bounds by the geometry.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import zstandard

from .digest import BLOCK_DIGEST_BYTES, block_digest
from .errors import CorruptInput

MAGIC = b"DCRPART\n"
FORMAT = 1
_HEAD = struct.Struct("<8sHH16s16sQQII")
_BUCKET = struct.Struct("<IBBB8sB")
_STREAM = struct.Struct("<BBII")
_RAW, _ZSTD = 0, 1
NO_BASE = (1 << 64) - 1
_local = threading.local()


@dataclass(frozen=True)
class PartHeader:
    """Binds a part to its policy, tiling and version, so that no part can stand in for another.

    ``policy`` and ``tiling`` are the first 16 bytes of their SHA-256 digests; ``base`` is None for an anchor.
    """

    policy: bytes
    tiling: bytes
    version: int
    base: int | None
    index: int
    buckets: int

    @classmethod
    def bound(
        cls, policy_sha256: str, tiling_sha256: str, version: int, base: int | None, index: int = 0, buckets: int = 0
    ) -> PartHeader:
        """From whole digests in hex."""
        policy, tiling = bytes.fromhex(policy_sha256[:32]), bytes.fromhex(tiling_sha256[:32])
        return cls(policy, tiling, version, base, index, buckets)


@dataclass(frozen=True)
class Bucket:
    """One bucket on the wire: codec, value scheme, dtype name and streams by id (still packed on the way in)."""

    positions: int
    values: int
    block_log2: int
    dtype: str
    streams: Mapping[int, bytes | Stream]


@dataclass(frozen=True)
class Stream:
    """A packed stream: ``length`` bytes once unpacked."""

    packing: int
    length: int
    data: memoryview

    def unpack(self, what: str, limit: int) -> bytes:
        """The stream's bytes.

        Raises
        ------
        CorruptInput
            Longer than ``limit``, or not exactly ``length`` bytes of valid data.
        """
        if self.length > limit:
            raise CorruptInput(f"stream {what}", found=f"{self.length} bytes declared", expected=f"at most {limit}")
        if self.packing == _RAW:
            return bytes(self.data)
        try:
            frame = zstandard.get_frame_parameters(self.data)
            if frame.content_size != self.length:
                raise CorruptInput(
                    f"stream {what}", found=f"a frame of {frame.content_size}", expected=f"{self.length} bytes"
                )
            out = _decompressor().decompress(self.data, max_output_size=self.length, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptInput(f"stream {what}", found=str(error), expected="one zstd frame") from None
        if len(out) != self.length:
            raise CorruptInput(f"stream {what}", found=f"{len(out)} bytes", expected=f"{self.length}")
        return out


def pack_bucket(bucket: Bucket, level: int | None) -> bytes:
    """Serialise a bucket; each stream is a zstd frame of ``level`` where that is shorter, raw otherwise.

    ``level`` None leaves every stream raw. Streams are written in increasing id, empty ones left out.
    """
    chunks = []
    for number in sorted(bucket.streams):
        raw = bucket.streams[number]
        assert not isinstance(raw, Stream)
        if len(raw):
            packing, packed = _pack(raw, level)
            chunks += [_STREAM.pack(number, packing, len(raw), len(packed)), packed]
    body = b"".join(chunks)
    count = len(chunks) // 2
    name = bucket.dtype.encode("ascii")
    return _BUCKET.pack(len(body), bucket.positions, bucket.values, bucket.block_log2, name, count) + body


def packed_size(streams: Mapping[int, bytes], level: int | None) -> int:
    """Bytes that these streams would take in a bucket."""
    return sum(_STREAM.size + len(_pack(raw, level)[1]) for raw in streams.values() if len(raw))


def _pack(raw: bytes, level: int | None) -> tuple[int, bytes]:
    if level is not None and len(raw) >= 32:
        squeezed = _compressor(level).compress(raw)
        if len(squeezed) < len(raw):
            return _ZSTD, squeezed
    return _RAW, raw


def pack_part(header: PartHeader, buckets: list[bytes]) -> bytes:
    """A whole part from packed buckets; ``header.buckets`` must be their number."""
    assert header.buckets == len(buckets)
    base = NO_BASE if header.base is None else header.base
    head = _HEAD.pack(MAGIC, FORMAT, 0, header.policy, header.tiling, header.version, base, header.index, len(buckets))
    body = b"".join([head, *buckets])
    return body + block_digest(body)


def unpack_part(
    data: bytes | bytearray | memoryview, what: str, most: int | None = None
) -> tuple[PartHeader, list[Bucket]]:
    """Check a part's frame and split it into at most ``most`` buckets, whose streams are still packed.

    Raises
    ------
    CorruptInput
        Bad magic or digest, a newer format, too many buckets, a length that does not fit, streams out of order,
        bytes left over.
    """
    view = memoryview(data).cast("B")
    if len(view) < _HEAD.size + BLOCK_DIGEST_BYTES:
        raise CorruptInput(what, found=f"{len(view)} bytes", expected=f"at least {_HEAD.size + BLOCK_DIGEST_BYTES}")
    magic, version_of_format, flags, policy, tiling, version, base, index, count = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise CorruptInput(what, found=f"magic {magic!r}", expected=repr(MAGIC))
    if version_of_format != FORMAT or flags:
        raise CorruptInput(
            what,
            found=f"format {version_of_format}, flags {flags:#x}",
            expected=f"format {FORMAT}, no flags",
            remedy="update dcr-mpi at this site to the trainer's version",
        )
    end = len(view) - BLOCK_DIGEST_BYTES
    if block_digest(view[:end]) != bytes(view[end:]):
        raise CorruptInput(what, found="another digest", expected="the digest in its trailer", remedy="fetch it again")
    if most is not None and count > most:
        raise CorruptInput(what, found=f"{count} buckets", expected=f"at most {most}, one for each of its blocks")
    buckets, at = [], _HEAD.size
    for number in range(count):
        bucket, at = _unpack_bucket(view, at, end, f"{what}, bucket {number}")
        buckets.append(bucket)
    if at != end:
        raise CorruptInput(what, found=f"{end - at} bytes after the last bucket", expected="none")
    return PartHeader(policy, tiling, version, None if base == NO_BASE else base, index, count), buckets


def _unpack_bucket(view: memoryview, at: int, end: int, what: str) -> tuple[Bucket, int]:
    if end - at < _BUCKET.size:
        raise CorruptInput(what, found=f"{end - at} bytes", expected=f"a header of {_BUCKET.size}")
    length, positions, values, block_log2, name, count = _BUCKET.unpack_from(view, at)
    at += _BUCKET.size
    if length > end - at:
        raise CorruptInput(what, found=f"a length of {length}", expected=f"at most {end - at}")
    stop, streams, last = at + length, {}, -1
    for _ in range(count):
        if stop - at < _STREAM.size:
            raise CorruptInput(what, found="a cut stream header", expected=f"{_STREAM.size} bytes")
        number, packing, raw, packed = _STREAM.unpack_from(view, at)
        at += _STREAM.size
        if number <= last or packing > _ZSTD or packed > stop - at or (packing == _RAW and raw != packed) or not raw:
            raise CorruptInput(
                f"{what}, stream {number}",
                found=f"packing {packing}, {packed} bytes for {raw}",
                expected=f"increasing ids, at most {stop - at} bytes",
            )
        streams[number] = Stream(packing, raw, view[at : at + packed])
        last, at = number, at + packed
    if at != stop:
        raise CorruptInput(what, found=f"{stop - at} bytes after the last stream", expected="none")
    try:
        text = name.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        raise CorruptInput(what, found=f"dtype {name!r}", expected="an ASCII name") from None
    return Bucket(positions, values, block_log2, text, streams), at


def _compressor(level: int) -> zstandard.ZstdCompressor:
    """One context per thread and level: contexts are costly to make and not to be shared."""
    pool = _local.__dict__.setdefault("compressors", {})
    if level not in pool:
        pool[level] = zstandard.ZstdCompressor(level=level, write_checksum=False, write_content_size=True)
    return pool[level]


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    return _local.decompressor
