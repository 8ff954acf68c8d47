"""Files for the rows of "Shapes, names, storage": shapes without elements, every storage, links and names."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  (registers the zstd filter)
import numpy as np
from h5py import h5d

from dcr_mpi.errors import CorruptInput, GeometryError

from .words import KINDS, ZOO, Refusal, Want, ZooCase, case, noise, plist, put

ZSTD = 32015  # filter number; h5py gets it from hdf5plugin
F32, BF16 = KINDS["f32"], KINDS["bf16"]


@case
def no_elements(path: Path) -> ZooCase:
    with h5py.File(path, "w") as file:
        put(file, "scalar", F32, (), b"\x01\x00\xa0\x7f")  # a signalling NaN
        put(file, "zero", F32, (0,))
        put(file, "zero_by_3", BF16, (0, 3))
        put(file, "zero_chunked", F32, (0, 3), plist=plist(chunk=(4, 3)))
        file["null"] = h5py.Empty("f8")
    return ZooCase(path, (
        Want("null", "f64", (0,), b"", "null"), Want("scalar", "f32", (), b"\x01\x00\xa0\x7f"),
        Want("zero", "f32", (0,), b"", "unallocated"), Want("zero_by_3", "bf16", (0, 3), b"", "unallocated"),
        Want("zero_chunked", "f32", (0, 3), b"", "chunked"),
    ))  # fmt: skip


@case
def never_written(path: Path) -> ZooCase:
    fill = np.array(7.5, np.float32)
    with h5py.File(path, "w") as file:
        put(file, "default", F32, (5,))
        put(file, "filled", F32, (5,), plist=plist(fill_value=fill))
        put(file, "early", F32, (5,), plist=plist(alloc_time=h5d.ALLOC_TIME_EARLY))
        put(file, "scalar", F32, (), plist=plist(fill_value=fill))
        put(file, "unfilled", F32, (5,), plist=plist(fill_time=h5d.FILL_TIME_NEVER, fill_value=fill))
    return ZooCase(
        path,
        (
            Want("default", "f32", (5,), bytes(20), "unallocated"),
            Want("early", "f32", (5,), bytes(20)),
            Want("filled", "f32", (5,), fill.tobytes() * 5, "unallocated"),
            Want("scalar", "f32", (), fill.tobytes(), "unallocated"),
            Want("unfilled", "f32", (5,), bytes(20), "unallocated"),  # the library leaves the reader's buffer as it was
        ),
    )


def _stored(
    storage: str, filters: tuple[str, ...], make: Callable[[], object], name: str = "bf16"
) -> Callable[[Path], ZooCase]:
    """A [6, 10, 7] dataset in one form of storage."""

    def build(path: Path) -> ZooCase:
        size = KINDS[name].get_size()
        data = noise(420 * size, 11)
        with h5py.File(path, "w") as file:
            put(file, "g/w", KINDS[name], (6, 10, 7), data, make())
        return ZooCase(path, (Want("g/w", name, (6, 10, 7), data, storage, filters=filters),))

    return build


ZOO.update({
    "contiguous": _stored("contiguous", (), plist),
    "compact": _stored("compact", (), lambda: plist(h5d.COMPACT)),
    "chunked": _stored("chunked", (), lambda: plist(chunk=(4, 3, 7))),
    "gzip": _stored("chunked", ("gzip",), lambda: plist(chunk=(4, 4, 4), deflate=1)),
    "gzip_big_endian": _stored("chunked", ("shuffle", "gzip", "fletcher32"),
                               lambda: plist(chunk=(1, 10, 2), shuffle=(), deflate=4, fletcher32=()), "f32be"),
    "lzf": _stored("chunked", ("lzf",), lambda: plist(chunk=(6, 10, 7), filter=(32000, 1, ()))),
    "zstd": _stored("chunked", ("zstd",), lambda: plist(chunk=(2, 10, 7), filter=(ZSTD, 0, (3,)))),
    "one_element_chunks": _stored("chunked", (), lambda: plist(chunk=(1, 1, 1)), "i64"),
})  # fmt: skip


@case
def chunks_missing(path: Path) -> ZooCase:
    """Only some chunks were written: the others read as the fill value."""
    with h5py.File(path, "w") as file:
        put(file, "w", F32, (4, 6), plist=plist(chunk=(2, 3), fill_value=np.array(np.nan, np.float32)))
        file["w"][0:2, 0:3] = 1
        data = np.full((4, 6), np.nan, np.float32)
        data[0:2, 0:3] = 1
    return ZooCase(path, (Want("w", "f32", (4, 6), data.tobytes(), "chunked"),))


@case
def filter_missing(path: Path) -> ZooCase:
    """Packed by a filter that is not installed: a zstd dataset whose filter number is made one that nobody has."""
    with h5py.File(path, "w") as file:
        put(file, "packed", F32, (64,), noise(256, 12), plist(chunk=(64,), filter=(ZSTD, 0, (3,))))
    raw = bytearray(path.read_bytes())
    at = raw.index(b"HDF5 zstd filter") - 8
    assert struct.unpack_from("<H", raw, at) == (ZSTD,)
    struct.pack_into("<H", raw, at, 32111)
    path.write_bytes(raw)
    return ZooCase(
        path, refused=Refusal(GeometryError, ("'packed'", "32111", "HDF5 zstd filter", "hdf5plugin", "h5repack"))
    )


@case
def external(path: Path) -> ZooCase:
    """Raw bytes in two files beside the shard."""
    data, folder = noise(400, 13), path.parent
    (folder / "a.raw").write_bytes(b"head" + data[:120])
    (folder / "b.raw").write_bytes(data[120:])
    with h5py.File(path, "w") as file:
        file.create_dataset("w", (10, 10), "<f4", external=[("a.raw", 4, 120), ("b.raw", 0, h5py.h5f.UNLIMITED)])
    return ZooCase(path, (Want("w", "f32", (10, 10), data, "external"),))


@case
def external_cut(path: Path) -> ZooCase:
    """The library would read the missing tail as zeros."""
    external(path)
    (path.parent / "b.raw").write_bytes(bytes(279))
    return ZooCase(path, refused=Refusal(CorruptInput, ("shard incomplete", "'w'", "b.raw", "279 bytes", "280 bytes")))


@case
def external_missing(path: Path) -> ZooCase:
    external(path)
    (path.parent / "a.raw").unlink()
    return ZooCase(
        path, refused=Refusal(CorruptInput, ("shard incomplete", "'w'", "a.raw", "no such file", "124 bytes"))
    )


def _virtual(path: Path, source_kind: str = "f32") -> bytes:
    """[2, 8] from a dataset of another file and from one of the same file."""
    data = noise(64, 14)
    with h5py.File(path.parent / "source.hdf", "w") as file:
        put(
            file,
            "half",
            KINDS[source_kind],
            (8,),
            data[: 8 * KINDS[source_kind].get_size()].ljust(8 * KINDS[source_kind].get_size(), b"\0"),
        )
    with h5py.File(path, "w") as file:
        put(file, "own", F32, (8,), data[32:])
        layout = h5py.VirtualLayout((2, 8), "<f4")
        layout[0] = h5py.VirtualSource("source.hdf", "half", (8,))
        layout[1] = h5py.VirtualSource(".", "own", (8,))
        file.create_virtual_dataset("w", layout)
    return data


@case
def virtual(path: Path) -> ZooCase:
    data = _virtual(path)
    return ZooCase(path, (Want("own", "f32", (8,), data[32:]), Want("w", "f32", (2, 8), data, "virtual")))


@case
def virtual_without_source(path: Path) -> ZooCase:
    """The library would read fill values."""
    _virtual(path)
    (path.parent / "source.hdf").unlink()
    return ZooCase(path, refused=Refusal(CorruptInput, ("shard incomplete", "'w'", "source.hdf", "no such file")))


@case
def virtual_source_without_dataset(path: Path) -> ZooCase:
    _virtual(path)
    with h5py.File(path.parent / "source.hdf", "w") as file:
        put(file, "other", F32, (8,), bytes(32))
    return ZooCase(path, refused=Refusal(CorruptInput, ("'w'", "'half'", "source.hdf")))


@case
def virtual_of_another_type(path: Path) -> ZooCase:
    """The library would convert f64 to f32."""
    _virtual(path, "f64")
    return ZooCase(path, refused=Refusal(GeometryError, ("'w'", "source.hdf", "another type", "h5repack")))


@case
def user_block(path: Path) -> ZooCase:
    """HDF5 behind 1024 bytes of something else: offsets count from the file's first byte."""
    data = noise(80, 15)
    with h5py.File(path, "w", userblock_size=1024) as file:
        put(file, "w", BF16, (40,), data)
    with path.open("r+b") as raw:
        raw.write(b"#!shard\n")
    return ZooCase(path, (Want("w", "bf16", (40,), data),))


@case
def newest_format(path: Path) -> ZooCase:
    """The newest file format, and many datasets in one group (another index than for few)."""
    want = []
    with h5py.File(path, "w", libver="latest") as file:
        for k in range(200):
            put(file, f"g/t{k:03d}", BF16, (4,), noise(8, k))
            want.append(Want(f"g/t{k:03d}", "bf16", (4,), noise(8, k)))
    return ZooCase(path, tuple(want))


@case
def committed_type(path: Path) -> ZooCase:
    data = noise(16, 16)
    with h5py.File(path, "w") as file:
        kind = F32.copy()
        kind.commit(file.id, b"kind")
        put(file, "w", kind, (4,), data)
    return ZooCase(path, (Want("w", "f32", (4,), data),))


@case
def attributes_and_step(path: Path) -> ZooCase:
    """Attributes are not tensors; the root's ``step`` names the step."""
    with h5py.File(path, "w") as file:
        file.attrs["step"], file.attrs["text"] = 1234567890123, "variable length"
        put(file, "w", F32, (4,), bytes(16))
        file["w"].attrs["scale"] = np.ones(3)
    return ZooCase(path, (Want("w", "f32", (4,), bytes(16)),), step=1234567890123)


@case
def step_is_no_integer(path: Path) -> ZooCase:
    with h5py.File(path, "w") as file:
        file.attrs["step"] = 1.5
    return ZooCase(path, refused=Refusal(GeometryError, ("'step'", "1.5", "integer")))


@case
def nothing_inside(path: Path) -> ZooCase:
    """A pipeline stage without weights is a valid shard."""
    with h5py.File(path, "w") as file:
        file.create_group("empty/inside")
    return ZooCase(path)
