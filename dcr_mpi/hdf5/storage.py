"""How a dataset's bytes are kept, and whether they can be read at all: filters, external files, virtual sources."""

from __future__ import annotations

import os

import h5py
from h5py import h5d, h5f, h5p, h5s, h5z

from ..errors import CorruptInput, GeometryError
from .access import h5_error, open_shard

_FILTERS = {
    1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf", 32001: "blosc",
    32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32026: "blosc2",
}  # fmt: skip
_PREFIXES = {"external": "HDF5_EXTFILE_PREFIX", "virtual": "HDF5_VDS_PREFIX"}


def storage_of(dataset: h5d.DatasetID) -> str:
    """One of the words of :attr:`Dataset.storage`."""
    if dataset.get_space().get_simple_extent_type() == h5s.NULL:
        return "null"
    plist = dataset.get_create_plist()
    layout = plist.get_layout()
    if layout == h5d.CONTIGUOUS:
        if plist.get_external_count():
            return "external"
        return "contiguous" if dataset.get_offset() is not None else "unallocated"
    return {h5d.COMPACT: "compact", h5d.CHUNKED: "chunked", h5d.VIRTUAL: "virtual"}[layout]


def filters_of(dataset: h5d.DatasetID, what: str) -> tuple[str, ...]:
    """Names of a dataset's filters, in the order of writing. Raises GeometryError where one is not installed."""
    plist = dataset.get_create_plist()
    names = []
    for number in range(plist.get_nfilters()):
        code, _, _, label = plist.get_filter(number)
        name = _FILTERS.get(code) or label.decode(errors="replace").split(";")[0] or "unnamed"
        if not h5z.filter_avail(code):
            raise GeometryError(
                what,
                found=f"filter {code} ({name}), which is not installed here",
                expected="a known filter",
                remedy="pip install hdf5plugin, or set HDF5_PLUGIN_PATH to where it is, or rewrite the shard "
                "where the filter is installed: h5repack -f NONE OLD NEW (elsewhere h5repack drops the dataset)",
            )
        names.append(name)
    return tuple(names)


def open_dataset(file: h5f.FileID, name: str, folder: str, cache_bytes: int = 0) -> h5d.DatasetID:
    """Open a dataset whose external or virtual parts, if any, are named relative to ``folder``."""
    access = h5p.create(h5p.DATASET_ACCESS)
    access.set_efile_prefix(os.fsencode(folder))
    access.set_virtual_prefix(os.fsencode(folder))
    if cache_bytes:
        access.set_chunk_cache(12_421, cache_bytes, 0.75)
    return h5d.open(file, name.encode(), access)


def check_external(dataset: h5d.DatasetID, size: int, folder: str, what: str) -> None:
    """The library reads what an external file lacks as zeros: refuse that with CorruptInput."""
    plist = dataset.get_create_plist()
    for number in range(plist.get_external_count()):
        raw, offset, extent = plist.get_external(number)
        path, take = _beside("external", folder, os.fsdecode(raw)), min(size, extent)
        have = os.path.getsize(path) if os.path.isfile(path) else -1
        if have < offset + take:
            raise CorruptInput(
                f"shard incomplete: {what}, external file {path}",
                found=f"{have} bytes" if have >= 0 else "no such file",
                expected=f"{offset + take} bytes",
                remedy="bring it beside the shard, or write the dataset into the shard",
            )
        size -= take


def check_virtual(dataset: h5d.DatasetID, folder: str, what: str) -> None:
    """The library reads what a virtual dataset's sources lack as fill values, and converts other types: refuse both.

    Raises
    ------
    CorruptInput
        A source is missing or incomplete.
    GeometryError
        A source has another type, is virtual itself or named by a pattern.
    """
    plist, kind = dataset.get_create_plist(), dataset.get_type()
    sources = {(plist.get_virtual_filename(i), plist.get_virtual_dsetname(i)) for i in range(plist.get_virtual_count())}
    for file_name, name in sorted(sources):
        where = f"{what}, virtual source {name!r} of {file_name!r}"
        if "%b" in file_name + name:
            raise _virtual(where, "a pattern of names", "a fixed list of sources")
        if file_name == ".":
            _check_source(h5py.h5i.get_file_id(dataset), name, kind, folder, where)
        else:
            path = _beside("virtual", folder, file_name)
            if not os.path.exists(path):
                raise CorruptInput(
                    f"shard incomplete: {where}",
                    found="no such file",
                    expected=path,
                    remedy="bring it there, or rewrite the shard where its sources are: h5repack -l CONTI OLD NEW",
                )
            with open_shard(path) as (file, _):
                _check_source(file, name, kind, os.path.dirname(os.path.abspath(path)), where)


def _check_source(file: h5f.FileID, name: str, kind: h5py.h5t.TypeID, folder: str, where: str) -> None:
    try:
        source = h5d.open(file, name.encode())
    except (KeyError, OSError, RuntimeError) as error:
        raise h5_error(error, where) from error
    if not source.get_type().equal(kind):
        raise _virtual(
            where, "another type than the virtual dataset's, which the library would convert", "the same file type"
        )
    storage = storage_of(source)
    if storage == "virtual":
        raise _virtual(where, "a virtual source of a virtual dataset", "sources that hold their own bytes")
    filters_of(source, where)
    if storage == "external":
        check_external(source, source.get_space().get_simple_extent_npoints() * kind.get_size(), folder, where)


def _virtual(where: str, found: str, expected: str) -> GeometryError:
    return GeometryError(where, found=found, expected=expected, remedy="rewrite the shard: h5repack -l CONTI OLD NEW")


def _beside(kind: str, folder: str, name: str) -> str:
    """Where the library looks for a part: the environment first, then beside the shard."""
    prefix = os.environ.get(_PREFIXES[kind], folder).replace("${ORIGIN}", folder)
    return os.path.join(prefix, name)
