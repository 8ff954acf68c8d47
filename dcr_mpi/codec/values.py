"""Value streams: what travels for each changed word, as bytes that an entropy stage squeezes well."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..dtypes import DType
from ..errors import CorruptInput
from ..kernels.api import Kernels, ValueScheme
from ..wire import Stream

SCHEMES: tuple[ValueScheme, ...] = ("overwrite", "xor", "ulp")
SMALL, SMALL_ESCAPES, PLANES, DENSE_PLANES = 10, 11, 16, 32
ESCAPE = 255


def pack_values(
    scheme: ValueScheme, old: np.ndarray, new: np.ndarray, dtype: DType, kernels: Kernels
) -> dict[int, bytes]:
    """Streams of the changed words: ulp differences as bytes with escapes, anything else as byte planes."""
    coded = kernels.difference(scheme, old, new, dtype)
    if scheme != "ulp":
        return pack_planes(PLANES, coded)
    if dtype.word_bytes == 1:
        return {SMALL: coded.tobytes()}
    small = np.minimum(coded, coded.dtype.type(ESCAPE)).astype(np.uint8)
    return {SMALL: small.tobytes(), SMALL_ESCAPES: coded[small == ESCAPE].tobytes()}


def unpack_values(scheme: ValueScheme, streams: Mapping[int, Stream], count: int, dtype: DType) -> np.ndarray:
    """The coded words, (count,), as :meth:`Kernels.difference` gave them.

    Raises
    ------
    CorruptInput
        Streams missing, too long or too short, or an escape that needed none.
    """
    word = np.dtype(f"<u{dtype.word_bytes}")
    if scheme != "ulp":
        return unpack_planes(PLANES, streams, count, dtype)
    small = np.frombuffer(read(streams, SMALL, count), np.uint8)
    _exact(SMALL, len(small), count)
    if dtype.word_bytes == 1:
        return small
    coded = small.astype(word)
    escaped = small == ESCAPE
    need = int(escaped.sum()) * word.itemsize
    raw = read(streams, SMALL_ESCAPES, need)
    _exact(SMALL_ESCAPES, len(raw), need)
    escapes = np.frombuffer(raw, word)
    if len(escapes) and int(escapes.min()) < ESCAPE:
        raise CorruptInput("value escapes", found=f"an escape of {int(escapes.min())}", expected=f"{ESCAPE} or more")
    coded[escaped] = escapes
    return coded


def value_streams(scheme: ValueScheme, width: int) -> range:
    """The streams that :func:`pack_values` makes for words of ``width`` bytes."""
    if scheme != "ulp":
        return range(PLANES, PLANES + width)
    return range(SMALL, SMALL + 1 if width == 1 else SMALL_ESCAPES + 1)


def dense_streams(width: int) -> range:
    """The streams that :func:`pack_dense` makes."""
    return range(DENSE_PLANES, DENSE_PLANES + width)


def pack_dense(words: np.ndarray, dtype: DType) -> dict[int, bytes]:
    """Whole blocks as byte planes; floats are rotated left by one bit first, so that a bf16's or an f32's exponent
    fills one plane and its sign goes to the mantissa's."""
    return pack_planes(DENSE_PLANES, _rotate(words, 1) if dtype.is_float else words)


def unpack_dense(streams: Mapping[int, Stream], count: int, dtype: DType) -> np.ndarray:
    """Inverse of :func:`pack_dense`, (count,) words."""
    words = unpack_planes(DENSE_PLANES, streams, count, dtype)
    return _rotate(words, 8 * dtype.word_bytes - 1) if dtype.is_float else words


def pack_planes(first: int, words: np.ndarray) -> dict[int, bytes]:
    """Byte *k* of every word as stream ``first + k``."""
    columns = words.view(np.uint8).reshape(-1, words.itemsize)
    return {first + k: columns[:, k].tobytes() for k in range(words.itemsize)}


def unpack_planes(first: int, streams: Mapping[int, Stream], count: int, dtype: DType) -> np.ndarray:
    """Inverse of :func:`pack_planes`."""
    words = np.empty(count, f"<u{dtype.word_bytes}")
    columns = words.view(np.uint8).reshape(-1, dtype.word_bytes)
    for k in range(dtype.word_bytes):
        plane = read(streams, first + k, count)
        _exact(first + k, len(plane), count)
        columns[:, k] = np.frombuffer(plane, np.uint8)
    return words


def read(streams: Mapping[int, Stream], number: int, limit: int) -> bytes:
    """A stream's bytes, at most ``limit``; empty where it was left out."""
    return streams[number].unpack(str(number), limit) if number in streams else b""


def _exact(number: int, found: int, expected: int) -> None:
    if found != expected:
        raise CorruptInput(f"stream {number}", found=f"{found} bytes", expected=str(expected))


def _rotate(words: np.ndarray, by: int) -> np.ndarray:
    word = words.dtype.type
    return (words << word(by)) | (words >> word(8 * words.itemsize - by))
