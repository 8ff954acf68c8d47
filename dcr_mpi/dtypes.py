"""Canonical dtypes: names for what the words of a tensor mean, and how wide a word is.

A tensor is carried as raw words of 1, 2, 4 or 8 bytes whatever its dtype; the name tells the codec where an
exponent sits and keeps a bf16 from being taken for an integer. A name ends in ``be`` where the file holds
big-endian words: those words are compared and copied as they lie.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from .errors import GeometryError

# name: (bytes, exponent bits, mantissa bits); zero exponent bits: not a float.
_NAMED = {
    "bf16": (2, 8, 7), "f16": (2, 5, 10), "f32": (4, 8, 23), "f64": (8, 11, 52),
    "f8e4m3": (1, 4, 3), "f8e5m2": (1, 5, 2), "bool": (1, 0, 0),
    **{f"{sign}{bits}": (bits // 8, 0, 0) for sign in "iu" for bits in (8, 16, 32, 64)},
}  # fmt: skip
_RAW = re.compile(r"raw([1-9][0-9]{0,4})")


@dataclass(frozen=True)
class DType:
    """A canonical dtype.

    Attributes
    ----------
    name : str
    itemsize : int
        Bytes of one element as stored.
    exponent, mantissa : int
        Bits; both 0 when the words are not floats in host order (then the codec treats them as integers).
    """

    name: str
    itemsize: int
    exponent: int = 0
    mantissa: int = 0

    @property
    def word_bytes(self) -> int:
        """Width of the raw word, 1, 2, 4 or 8 bytes: the widest that divides an element."""
        return math.gcd(self.itemsize, 8)

    @property
    def words(self) -> int:
        """Words per element; over 1 only for raw elements such as 16-byte complex numbers."""
        return self.itemsize // self.word_bytes

    @property
    def is_float(self) -> bool:
        return self.exponent > 0


@lru_cache(maxsize=256)
def dtype(name: str) -> DType:
    """Look a canonical dtype up by name.

    Raises
    ------
    GeometryError
        Unknown name.
    """
    swapped = name.endswith("be")
    stem = name[:-2] if swapped else name
    if stem in _NAMED:
        size, exponent, mantissa = _NAMED[stem]
        if swapped and size > 1:
            return DType(name, size)
        if not swapped:
            return DType(name, size, exponent, mantissa)
    match = _RAW.fullmatch(name)
    if match:
        return DType(name, int(match[1]))
    known = ", ".join([*_NAMED, "raw<bytes>", "<name>be"])
    raise GeometryError("dtype", found=repr(name), expected=f"one of {known}")


def is_container(name: str) -> bool:
    """True for storage that says nothing about its meaning (raw bytes, unsigned integers).

    Such a dataset may hold any dtype of its size: bf16 is often written as uint16 or as 2 opaque bytes.
    """
    return bool(re.fullmatch(r"u(8|16|32|64)(be)?", name) or _RAW.fullmatch(name))
