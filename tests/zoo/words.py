"""What a case of the zoo is, and the few ways in which its files are written.

Everything here uses h5py alone, so that a test compares two independent roads to the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

from dcr_mpi.errors import DcrError


@dataclass(frozen=True)
class Want:
    """A dataset that the inventory must show. ``data``: all its bytes in row-major order as stored; a dataset too
    large for that has ``probes`` instead, {element: its bytes}, and zeros elsewhere."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | None = None
    storage: str = "contiguous"
    names: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    probes: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """The error class owed, and words that its message must hold."""

    error: type[DcrError]
    words: tuple[str, ...]


@dataclass(frozen=True)
class ZooCase:
    """One file: what is in it, or how it must be refused; ``dtypes`` are the declarations to list it with."""

    path: Path
    want: tuple[Want, ...] = ()
    refused: Refusal | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    step: int | None = None


@dataclass(frozen=True)
class PairCase:
    """Two files. ``changes``: {dataset: {word: (old, new)}}, all that differs, words as unsigned integers in file
    order. ``geometry`` says what differs beyond words ("" for nothing): then a delta must not be made."""

    base: Path
    new: Path
    changes: Mapping[str, Mapping[int, tuple[int, int]]]
    geometry: str = ""
    dtypes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SetCase:
    """A directory of shards; ``files`` is what the layout asks for (None: whatever is there)."""

    directory: Path
    listed: tuple[str, ...] = ()
    files: tuple[str, ...] | None = None
    refused: Refusal | None = None
    step: int | None = None


ZOO: dict[str, Callable[[Path], ZooCase]] = {}
PAIRS: dict[str, Callable[[Path, Path], PairCase]] = {}
SETS: dict[str, Callable[[Path], SetCase]] = {}


def case(function: Callable[[Path], ZooCase]) -> Callable[[Path], ZooCase]:
    """Register a file under its function's name."""
    ZOO[function.__name__] = function
    return function


def native(size: int, fields: tuple[int, int, int, int, int], bias: int, swapped: bool = False) -> h5t.TypeID:
    """A float type of HDF5 itself, of a size that numpy does not know."""
    kind = (h5t.IEEE_F64BE if swapped else h5t.IEEE_F64LE).copy()
    kind.set_fields(*fields)
    kind.set_ebias(bias)
    kind.set_precision(8 * size)
    kind.set_size(size)
    return kind


# Canonical name: file type. Each is written the way that its users write it.
KINDS: dict[str, h5t.TypeID] = {
    "f16": h5t.IEEE_F16LE,
    "f32": h5t.IEEE_F32LE,
    "f64": h5t.IEEE_F64LE,
    "bf16": native(2, (15, 7, 8, 0, 7), 127),
    "f8e4m3": native(1, (7, 3, 4, 0, 3), 7),
    "f8e5m2": native(1, (7, 2, 5, 0, 2), 15),
    "f16be": h5t.IEEE_F16BE,
    "f32be": h5t.IEEE_F32BE,
    "f64be": h5t.IEEE_F64BE,
    "bf16be": native(2, (15, 7, 8, 0, 7), 127, True),
    **{f"{s}{b}": getattr(h5t, f"STD_{s.upper()}{b}LE") for s in "iu" for b in (8, 16, 32, 64)},
    **{f"{s}{b}be": getattr(h5t, f"STD_{s.upper()}{b}BE") for s in "iu" for b in (16, 32, 64)},
    "bool": h5t.py_create(np.dtype(bool), logical=True),
}


def opaque(size: int, tag: bytes = b"") -> h5t.TypeID:
    kind = h5t.create(h5t.OPAQUE, size)
    kind.set_tag(tag)
    return kind


def noise(size: int, seed: int) -> bytes:
    """``size`` random bytes: as floats they hold every sort of value, NaNs with payloads included."""
    return np.random.default_rng(seed).bytes(size)


def put(
    where: h5py.Group, name: str, kind: h5t.TypeID, shape: tuple[int, ...], data: bytes | None = None,
    plist: h5p.PropDCID | None = None,
) -> h5d.DatasetID:  # fmt: skip
    """Create a dataset of a file type and write its bytes as they are (nothing is written where ``data`` is None)."""
    space = h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
    link = h5p.create(h5p.LINK_CREATE)
    link.set_create_intermediate_group(True)
    dataset = h5d.create(where.id, name.encode(), kind, space, dcpl=plist, lcpl=link)
    size: int = math.prod(shape)
    if data is not None and size:
        assert len(data) == size * kind.get_size()
        dataset.write(h5s.ALL, h5s.ALL, np.frombuffer(data, np.uint8), kind)
    return dataset


def plist(layout: int = h5d.CONTIGUOUS, chunk: tuple[int, ...] = (), **settings: Any) -> h5p.PropDCID:
    """Creation properties: ``plist(h5d.CHUNKED, (4, 4), deflate=1)`` calls ``set_deflate(1)``."""
    made = h5p.create(h5p.DATASET_CREATE)
    if chunk:
        made.set_chunk(chunk)
    else:
        made.set_layout(layout)
    for name, value in settings.items():
        getattr(made, f"set_{name}")(*(value if isinstance(value, tuple) else (value,)))
    return made
