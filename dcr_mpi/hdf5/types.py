"""File types and canonical dtypes, both ways. The file's own size and class decide, never the numpy type of h5py:
a 2-byte float of HDF5 is a 4-byte ``float32`` to numpy."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import numpy as np
from h5py import h5t

from ..dtypes import dtype, is_container
from ..errors import GeometryError

# name: (bytes, (sign position, exponent position and bits, mantissa position and bits), exponent bias)
_FLOATS = {
    "f8e4m3": (1, (7, 3, 4, 0, 3), 7), "f8e5m2": (1, (7, 2, 5, 0, 2), 15), "f16": (2, (15, 10, 5, 0, 10), 15),
    "bf16": (2, (15, 7, 8, 0, 7), 127), "f32": (4, (31, 23, 8, 0, 23), 127), "f64": (8, (63, 52, 11, 0, 52), 1023),
}  # fmt: skip
_BOOL = {b"FALSE": 0, b"TRUE": 1}
_MAX_RAW = 99_999


def infer(kind: h5t.TypeID, what: str) -> str:
    """Canonical dtype name of a file type.

    Raises
    ------
    GeometryError
        The elements are references or of variable length: their bytes in the file are addresses, not values.
    """
    _refuse_pointers(kind, what)
    size = kind.get_size()
    if isinstance(kind, h5t.TypeEnumID):
        members = {kind.get_member_name(i): kind.get_member_value(i) for i in range(kind.get_nmembers())}
        if members == _BOOL and size == 1:
            return "bool"
        return infer(kind.get_super(), what)
    if isinstance(kind, (h5t.TypeIntegerID, h5t.TypeBitfieldID)) and size in (1, 2, 4, 8):
        signed = isinstance(kind, h5t.TypeIntegerID) and kind.get_sign() == h5t.SGN_2
        return f"{'i' if signed else 'u'}{8 * size}{_suffix(kind, size)}"
    if isinstance(kind, h5t.TypeFloatID) and kind.get_order() in (h5t.ORDER_LE, h5t.ORDER_BE):
        form = (size, kind.get_fields(), kind.get_ebias())
        for name, known in _FLOATS.items():
            if form == known and kind.get_norm() == h5t.NORM_IMPLIED:
                return name + _suffix(kind, size)
    if size > _MAX_RAW:
        raise GeometryError(what, found=f"elements of {size} bytes", expected=f"at most {_MAX_RAW}",
                            remedy="store the array inside the element as dimensions of the dataset")  # fmt: skip
    return f"raw{size}"


def declared(stored: str, names: tuple[str, ...], attribute: object, dtypes: Mapping[str, str], what: str) -> str:
    """What a dataset of dtype ``stored`` is declared to hold: a path pattern wins over the ``dcr_dtype`` attribute of
    the dataset, which wins over ``storage:<dtype>``. Raises GeometryError for a declaration that does not fit."""
    by_path = [(f"dtypes[{p!r}]", v) for p, v in dtypes.items() if any(fnmatchcase(n, p) for n in names)]
    by_file = [] if attribute is None else [("attribute dcr_dtype", _text(attribute))]
    by_storage = [(f"dtypes['storage:{stored}']", dtypes[f"storage:{stored}"])] if f"storage:{stored}" in dtypes else []
    for source, name in (by_path + by_file + by_storage)[:1]:
        try:
            have, want = dtype(stored), dtype(name)
        except GeometryError as error:
            raise GeometryError(f"{what}: {source}", found=error.found, expected=error.expected) from None
        swapped = have.itemsize > 1 and not stored.startswith("raw") and stored.endswith("be") != name.endswith("be")
        if name != stored and (not is_container(stored) or have.itemsize != want.itemsize or swapped):
            raise GeometryError(f"{what}: {source}", found=f"{name} over storage of {stored}",
                                expected="raw bytes or unsigned integers of the same size and byte order",
                                remedy="narrow the pattern, or correct the declaration")  # fmt: skip
        return name
    return stored


def file_type(name: str) -> h5t.TypeID:
    """The file type that :func:`infer` reads back as ``name``."""
    size, swapped = dtype(name).itemsize, name.endswith("be")
    stem = name[:-2] if swapped else name
    if stem == "bool":
        return h5t.py_create(np.dtype(bool), logical=True)
    if stem.startswith("raw"):
        return h5t.create(h5t.OPAQUE, size)
    if stem not in _FLOATS:
        return h5t.py_create(np.dtype(f"{'>' if swapped else '<'}{stem[0]}{size}"))
    size, fields, bias = _FLOATS[stem]
    kind = (h5t.IEEE_F64BE if swapped else h5t.IEEE_F64LE).copy()
    kind.set_fields(*fields)  # then shrink: the other way round the fields would not fit
    kind.set_ebias(bias)
    kind.set_precision(8 * size)
    kind.set_size(size)
    return kind


def _refuse_pointers(kind: h5t.TypeID, what: str) -> None:
    inner = []
    if isinstance(kind, h5t.TypeCompoundID):
        inner = [kind.get_member_type(i) for i in range(kind.get_nmembers())]
    elif isinstance(kind, h5t.TypeArrayID):
        inner = [kind.get_super()]
    for member in inner:
        _refuse_pointers(member, what)
    variable = kind.get_class() == h5t.VLEN or (isinstance(kind, h5t.TypeStringID) and kind.is_variable_str())
    if variable or kind.get_class() == h5t.REFERENCE:
        raise GeometryError(
            what,
            found="elements of variable length" if variable else "references",
            expected="elements of a fixed size",
            remedy="keep such data in an attribute or outside the checkpoint, or store it at a fixed size",
        )


def _suffix(kind: h5t.TypeID, size: int) -> str:
    return "be" if size > 1 and kind.get_order() == h5t.ORDER_BE else ""


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
