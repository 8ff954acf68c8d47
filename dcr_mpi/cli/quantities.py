"""Amounts on a command line: parameters, bytes, rates and fractions, each with the units that people write."""

from __future__ import annotations

import argparse
import math
import re

from ..dtypes import dtype
from ..errors import GeometryError

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/%]*)")
_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_BYTES = {
    "": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip
_BITS = {"bit": 1.0, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "Tbit": 1e12}


def parameters(text: str) -> float:
    """A number of parameters, as in ``120B``."""
    return _scaled(text, _COUNTS, "parameters, as in 30B, 1.5T or 7000000")


def size(text: str) -> float:
    """Bytes, as in ``247.2GB`` or ``64MiB``."""
    return _scaled(text, _BYTES, "bytes, as in 247.2GB or 64MiB")


def rate(text: str) -> float:
    """Bytes per second, as in ``330MB/s`` or ``10Gbit/s``."""
    bits = {unit: factor / 8 for unit, factor in _BITS.items()}
    return _scaled(text.removesuffix("/s"), {**_BYTES, **bits}, "a rate, as in 330MB/s, 20MiB/s or 10Gbit/s")


def fraction(text: str) -> float:
    """Between 0 and 1, as in ``0.03`` or ``3%``."""
    value = _scaled(text, {"": 1.0, "%": 0.01}, "a fraction, as in 0.03 or 3%")
    if not value < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a fraction over 0 and below 1, as in 0.03 or 3%")
    return value


def mix(text: str) -> tuple[str, float, float | None]:
    """A dtype with its share of the parameters, and how many of its words change: ``f32=0.01`` or ``f32=0.01@5%``."""
    name, equals, rest = text.partition("=")
    amount, at, changed = rest.partition("@")
    try:
        kind = dtype(name)
        share = float(amount) if equals else math.nan
    except (GeometryError, ValueError):
        kind, share = None, math.nan
    if kind is None or not 0 < share <= 1 or (at and not changed):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected DTYPE=SHARE or DTYPE=SHARE@CHANGED, as in bf16=0.99 or f32=0.01@5%"
        )
    return kind.name, share, fraction(changed) if at else None


def _scaled(text: str, units: dict[str, float], expected: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    value = float(match[1]) * units[match[2]] if match and match[2] in units else math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    return value
