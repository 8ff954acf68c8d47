"""Files for the rows of "Values and dtypes": every dtype in every dress, bit patterns that floats would lose, sizes
past 32 bits, and types that cannot be carried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
from h5py import h5d, h5t

from dcr_mpi.errors import GeometryError

from .words import KINDS, ZOO, Refusal, Want, ZooCase, case, noise, opaque, plist, put

# Per float: +0, -0, smallest denormal and its negative, largest denormal, 1, inf, -inf, quiet NaN, the same with a
# payload, a signalling NaN where there is one, all bits set.
SPECIAL = {
    "f8e4m3": (0x00, 0x80, 0x01, 0x81, 0x07, 0x38, 0x78, 0xF8, 0x7F, 0x7E, 0x79, 0xFF),
    "f8e5m2": (0x00, 0x80, 0x01, 0x81, 0x03, 0x3C, 0x7C, 0xFC, 0x7E, 0x7F, 0x7D, 0xFF),
    "f16": (0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x3C00, 0x7C00, 0xFC00, 0x7E00, 0x7E37, 0x7C01, 0xFFFF),
    "bf16": (0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x3F80, 0x7F80, 0xFF80, 0x7FC0, 0x7FC5, 0x7F81, 0xFFFF),
    "f32": (
        0,
        1 << 31,
        1,
        (1 << 31) | 1,
        0x007FFFFF,
        0x3F800000,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0x7FC0BEEF,
        0x7F800001,
        0xFFFFFFFF,
    ),
    "f64": (
        0,
        1 << 63,
        1,
        (1 << 63) | 1,
        (1 << 52) - 1,
        0x3FF << 52,
        0x7FF << 52,
        0xFFF << 52,
        0x7FF8 << 48,
        (0x7FF8 << 48) | 0xBEEF,
        (0x7FF << 52) | 1,
        (1 << 64) - 1,
    ),
}


def packed(words: tuple[int, ...], name: str) -> bytes:
    size = KINDS[name].get_size()
    return b"".join(w.to_bytes(size, "big" if name.endswith("be") else "little") for w in words)


def _of_dtype(name: str) -> Callable[[Path], ZooCase]:
    def build(path: Path) -> ZooCase:
        size = KINDS[name].get_size()
        data = noise(6 * 35 * size, 1) if name != "bool" else bytes(k % 2 for k in range(6 * 35))
        special = packed(SPECIAL[name], name) if name in SPECIAL else data[: 12 * size]
        with h5py.File(path, "w") as file:
            put(file, "model/w", KINDS[name], (6, 35), data)
            put(file, "special", KINDS[name], (12,), special)
        return ZooCase(path, (Want("model/w", name, (6, 35), data), Want("special", name, (12,), special)))

    return build


ZOO.update({f"dtype_{name}": _of_dtype(name) for name in KINDS})


@case
def bf16_opaque(path: Path) -> ZooCase:
    """As h5py writes an array of ml_dtypes.bfloat16: two opaque bytes, with nothing that says what they are."""
    data = noise(128, 2)
    with h5py.File(path, "w") as file:
        file["w"] = np.frombuffer(data, ml_dtypes.bfloat16).reshape(8, 8)
    return ZooCase(path, (Want("w", "bf16", (8, 8), data),), dtypes={"storage:raw2": "bf16"})


@case
def bf16_undeclared(path: Path) -> ZooCase:
    """The same without a declaration: still carried, as raw words."""
    return ZooCase(path, (Want("w", "raw2", (8, 8), bf16_opaque(path).want[0].data),))


@case
def bf16_uint16(path: Path) -> ZooCase:
    data, ids = noise(128, 3), noise(8, 4)
    with h5py.File(path, "w") as file:
        put(file, "layers/0/w", KINDS["u16"], (64,), data)
        put(file, "ids", KINDS["u16"], (4,), ids)
    want = (Want("ids", "u16", (4,), ids), Want("layers/0/w", "bf16", (64,), data))
    return ZooCase(path, want, dtypes={"layers/*": "bf16", "storage:raw2": "f16"})


@case
def bf16_by_attribute(path: Path) -> ZooCase:
    """The writer says what the container holds; a pattern in the configuration wins over it, storage: does not."""
    data = noise(64, 5)
    with h5py.File(path, "w") as file:
        put(file, "a", KINDS["u16"], (32,), data)
        file["a"].attrs["dcr_dtype"] = "bf16"
        put(file, "b", KINDS["u16"], (32,), data)
        file["b"].attrs["dcr_dtype"] = np.bytes_(b"bf16")
    want = (Want("a", "bf16", (32,), data), Want("b", "f16", (32,), data))
    return ZooCase(path, want, dtypes={"b": "f16", "storage:u16": "u16"})


@case
def fp8_opaque_and_uint8(path: Path) -> ZooCase:
    data = bytes(range(256))
    with h5py.File(path, "w") as file:
        file["opaque"] = np.frombuffer(data, ml_dtypes.float8_e4m3fn)
        file["bytes"] = np.frombuffer(data, np.uint8)
    want = (Want("bytes", "f8e4m3", (256,), data), Want("opaque", "f8e4m3", (256,), data))
    return ZooCase(path, want, dtypes={"storage:raw1": "f8e4m3", "storage:u8": "f8e4m3"})


@case
def packed_4bit(path: Path) -> ZooCase:
    """Two 4-bit weights in a byte, and 4-bit integers in a byte each."""
    data, narrow = noise(33, 6), KINDS["u8"].copy()
    narrow.set_precision(4)
    with h5py.File(path, "w") as file:
        put(file, "packed", KINDS["u8"], (3, 11), data)
        put(file, "narrow", narrow, (16,), bytes(range(16)))
    return ZooCase(path, (Want("narrow", "u8", (16,), bytes(range(16))), Want("packed", "u8", (3, 11), data)))


@case
def odd_elements(path: Path) -> ZooCase:
    """Elements that are no single word: carried as raw bytes, padding inside them included."""
    compound = h5t.create(h5t.COMPOUND, 24)
    compound.insert(b"id", 0, h5t.STD_I32LE)
    compound.insert(b"value", 8, h5t.IEEE_F64LE)
    enum = h5t.enum_create(h5t.STD_I16BE)
    for value, label in enumerate((b"FALSE", b"TRUE")):
        enum.enum_insert(label, value)
    colour = h5t.enum_create(h5t.STD_U8LE)
    colour.enum_insert(b"RED", 0)
    colour.enum_insert(b"GREEN", 1)
    fixed = h5t.C_S1.copy()
    fixed.set_size(7)
    wide = h5t.STD_I32LE.copy()
    wide.set_size(3)
    kinds = {
        "array": (h5t.array_create(h5t.IEEE_F32LE, (2, 3)), "raw24"),
        "bits": (h5t.STD_B16LE, "u16"),
        "bits_be": (h5t.STD_B32BE, "u32be"),
        "complex": (h5t.py_create(np.dtype("c16")), "raw16"),
        "compound": (compound, "raw24"),
        "enum": (enum, "i16be"),
        "enum_of_bytes": (colour, "u8"),
        "long_double": (h5t.py_create(np.dtype(np.longdouble)), "raw16"),
        "opaque5": (opaque(5, b"tag"), "raw5"),
        "text": (fixed, "raw7"),
        "three_bytes": (wide, "raw3"),
        "f16_in_4_bytes": (_wide_half(), "raw4"),
    }
    want = []
    with h5py.File(path, "w") as file:
        for seed, (name, (kind, dtype)) in enumerate(sorted(kinds.items())):
            data = noise(4 * 5 * kind.get_size(), seed)
            put(file, name, kind, (4, 5), data)
            want.append(Want(name, dtype, (4, 5), data))
    return ZooCase(path, tuple(want))


def _wide_half() -> h5t.TypeID:
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 10, 5, 0, 10)
    return kind


def _sparse(path: Path, name: str, count: int, probes: tuple[int, ...]) -> ZooCase:
    """A dataset past a 32-bit limit that takes a few blocks of disk."""
    size = KINDS[name].get_size()
    values = {k: noise(size, k) for k in probes}
    write_sparse(path, name, count, values)
    return ZooCase(path, (Want("w", name, (count,), None, probes=values),))


def write_sparse(path: Path, name: str, count: int, values: dict[int, bytes]) -> None:
    """One dataset ``w`` of ``count`` elements, zero but for ``values``; only those take up disk."""
    with h5py.File(path, "w") as file:
        made = plist(alloc_time=h5d.ALLOC_TIME_EARLY, fill_time=h5d.FILL_TIME_NEVER)
        offset = put(file, "w", KINDS[name], (count,), plist=made).get_offset()
    with open(path, "r+b") as raw:
        for k, value in values.items():
            raw.seek(offset + k * len(value))
            raw.write(value)


@case
def sparse_past_2_31_elements(path: Path) -> ZooCase:
    limit = 1 << 31
    return _sparse(path, "u8", limit + 10, (0, limit - 1, limit, limit + 9))


@case
def sparse_past_2_32_bytes(path: Path) -> ZooCase:
    limit = 1 << 31  # elements of 2 bytes
    return _sparse(path, "bf16", limit + 10, (0, (1 << 30) - 1, 1 << 30, limit - 1, limit, limit + 9))


def _refused(
    kind: h5t.TypeID | None, words: tuple[str, ...], dtypes: dict[str, str] | None = None
) -> Callable[[Path], ZooCase]:
    def build(path: Path) -> ZooCase:
        with h5py.File(path, "w") as file:
            put(file, "fine", KINDS["f32"], (4,), bytes(16))
            put(file, "odd", kind, (4,))
        return ZooCase(path, refused=Refusal(GeometryError, ("'odd'", *words)), dtypes=dtypes or {})

    return build


_pointer = h5t.create(h5t.COMPOUND, 32)
_pointer.insert(b"id", 0, h5t.STD_I32LE)
_pointer.insert(b"text", 8, h5t.py_create(h5py.string_dtype(), logical=True))
ZOO.update({
    "vlen_string": _refused(h5t.py_create(h5py.string_dtype(), logical=True), ("variable length", "fixed size")),
    "vlen_array": _refused(h5t.vlen_create(h5t.IEEE_F32LE), ("variable length",)),
    "vlen_member": _refused(_pointer, ("variable length",)),
    "vlen_in_array": _refused(h5t.array_create(_pointer, (2,)), ("variable length",)),
    "object_reference": _refused(h5t.STD_REF_OBJ, ("references",)),
    "region_reference": _refused(h5t.STD_REF_DSETREG, ("references",)),
    "declared_other_size": _refused(KINDS["u16"], ("dtypes['odd']", "f32", "u16"), {"odd": "f32"}),
    "declared_no_container": _refused(KINDS["i16"], ("dtypes['o*']", "bf16", "i16"), {"o*": "bf16"}),
    "declared_other_order": _refused(KINDS["u16be"], ("bf16", "u16be"), {"storage:u16be": "bf16"}),
    "huge_element": _refused(opaque(100_000), ("100000 bytes", "99999")),
})  # fmt: skip


@case
def declared_unknown(path: Path) -> ZooCase:
    bf16_opaque(path)
    return ZooCase(
        path,
        refused=Refusal(GeometryError, ("'w'", "storage:raw2", "'bfloat16'", "bf16")),
        dtypes={"storage:raw2": "bfloat16"},
    )


@case
def declared_swapped(path: Path) -> ZooCase:
    """Big-endian words in a big-endian container are declared as such."""
    data = noise(32, 9)
    with h5py.File(path, "w") as file:
        put(file, "w", KINDS["u16be"], (16,), data)
    return ZooCase(path, (Want("w", "bf16be", (16,), data),), dtypes={"w": "bf16be"})
