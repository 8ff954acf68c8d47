"""Digests: xxh3-128 for blocks (corruption), SHA-256 for whole objects (identity), and the state digest.

The state digest names a version's content whatever its sharding. For every tensor it is a pair of 64-bit lanes,
each the sum modulo 2^64 of a mixing function of (canonical flat word index, raw word) over all words, so partial
sums from any split add up, and a changed word moves the sum by mix(new) - mix(old). The version's state is the
SHA-256 of the sorted (name, dtype, shape, lanes) list.

mix(i, w): x = i * A + w * B; x ^= x >> 32; x *= C; x ^= x >> 29; x *= D; x ^= x >> 32; lane0 = x;
lane1 = (x ^ (x >> 31)) * E, all modulo 2^64. (Multiply-xorshift finalisation after Stafford's variants of
MurmurHash3's finaliser; the constants are odd 64-bit numbers with balanced bits.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import xxhash

from .errors import CorruptInput
from .jsonable import dumps
from .model import TensorSpec

MIX_A = 0x9E3779B97F4A7C15
MIX_B = 0xD6E8FEB86659FD93
MIX_C = 0xBF58476D1CE4E5B9
MIX_D = 0x94D049BB133111EB
MIX_E = 0xC2B2AE3D27D4EB4F
MASK64 = (1 << 64) - 1
BLOCK_DIGEST_BYTES = 16
Lanes = tuple[int, int]
_LANES = re.compile("[0-9a-f]{32}")


def block_digest(data: object) -> bytes:
    """xxh3-128 of a contiguous buffer, 16 bytes, canonical (big-endian) form."""
    return xxhash.xxh3_128_digest(data)  # type: ignore[arg-type]


def running_block_digest() -> xxhash.xxh3_128:
    """An xxh3-128 to feed piece by piece."""
    return xxhash.xxh3_128()


def sha256(data: bytes | bytearray | memoryview) -> str:
    """SHA-256 of a buffer in hex."""
    return hashlib.sha256(data).hexdigest()


def content_sha256(value: object) -> str:
    """SHA-256 of a frozen dataclass's JSON text in hex: what objects of the store are named by. Once per object."""
    found: str | None = value.__dict__.get("_content_sha256")
    if found is None:
        found = sha256(dumps(value))
        object.__setattr__(value, "_content_sha256", found)
    return found


def lanes_hex(lanes: Lanes) -> str:
    """Two 64-bit lanes as 32 hex digits."""
    return f"{lanes[0]:016x}{lanes[1]:016x}"


def lanes_of(text: str) -> Lanes:
    """Inverse of :func:`lanes_hex`; raises CorruptInput for anything else."""
    if _LANES.fullmatch(text) is None:
        raise CorruptInput("tensor digest", found=repr(text[:40]), expected="32 hex digits")
    return int(text[:16], 16), int(text[16:], 16)


def add(a: Lanes, b: Lanes) -> Lanes:
    """Lane-wise sum modulo 2^64."""
    return (a[0] + b[0]) & MASK64, (a[1] + b[1]) & MASK64


def state_digest(tensors: Iterable[TensorSpec], lanes: Iterable[str]) -> str:
    """SHA-256 over the sorted (name, dtype, shape, lanes) list, in hex."""
    rows = sorted([t.name, t.dtype, list(t.shape), h] for t, h in zip(tensors, lanes, strict=True))
    return sha256(dumps(rows))
