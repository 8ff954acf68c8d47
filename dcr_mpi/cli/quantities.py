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
    return _scaled(text, _COUNTS, "parameters, as in 30B, 1.5T or 7000000", 1.0, 1e18)


def size(text: str) -> float:
    """Bytes, as in ``247.2GB`` or ``64MiB``."""
    return _scaled(text, _BYTES, "bytes, as in 247.2GB or 64MiB", 1.0, 1e18)


def rate(text: str) -> float:
    """Bytes per second, as in ``330MB/s`` or ``10Gbit/s``."""
    bits = {unit: factor / 8 for unit, factor in _BITS.items()}
    return _scaled(text.removesuffix("/s"), {**_BYTES, **bits}, "a rate, as in 330MB/s, 20MiB/s or 10Gbit/s", 1.0, 1e15)


def fraction(text: str) -> float:
    """Between 0 and 1, as in ``0.03`` or ``3%``."""
    below_1 = math.nextafter(1.0, 0.0)
    return _scaled(text, {"": 1.0, "%": 0.01}, "a fraction over 0 and below 1, as in 0.03 or 3%", 1e-12, below_1)


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


def count(text: str, most: int | None = None) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or not int(text) or (most is not None and int(text) > most):
        bound = "" if most is None else f", at most {most:,}"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number, 1 or more{bound}")
    return int(text)


def seconds(text: str, most: float = 1e9) -> float:
    """0 or more; no more than clocks and sockets can take."""
    return number(text, f"seconds, 0 or more, at most {most:g}", 0.0, most)


def number(text: str, expected: str, least: float, most: float) -> float:
    """A plain number between two others."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    return value


def _scaled(text: str, units: dict[str, float], expected: str, least: float, most: float) -> float:
    match = _NUMBER.fullmatch(text.strip())
    value = float(match[1]) * units[match[2]] if match and match[2] in units else math.nan
    if not least <= value <= most:
        bounds = "" if math.isnan(value) else f", between {least:g} and {most:g}"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}{bounds}")
    return value
