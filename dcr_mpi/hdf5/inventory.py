"""What a shard holds: every dataset once, by object identity, with all its names and where its bytes lie."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from h5py import h5d, h5g

from ..errors import CorruptInput, DcrError, GeometryError, NotReady, from_os_error
from ..model import Shape
from .access import attribute, h5_error, open_shard
from .storage import check_external, check_virtual, filters_of, storage_of
from .types import declared, infer
from .walk import walk

_SUFFIXES = (".h5", ".hdf5")


@dataclass(frozen=True)
class Dataset:
    """One storage of a shard.

    Attributes
    ----------
    path : str
        The first of its names in sorted order, without a leading slash: its canonical name.
    names : tuple of str
        Its other names (hard and soft links), sorted.
    shape : tuple of int
        In elements; ``()`` for a scalar, ``(0,)`` for a null dataspace.
    dtype : str
        Canonical dtype (:mod:`dcr_mpi.dtypes`), from the file type or as declared.
    itemsize : int
        Bytes of an element as stored.
    storage : str
        "contiguous", "unallocated" (contiguous and never written), "compact", "chunked", "external", "virtual", "null".
    offset : int or None
        Byte offset in the file of allocated contiguous storage.
    filters : tuple of str
        Names of the filters of chunked storage.
    """

    path: str
    names: tuple[str, ...]
    shape: Shape
    dtype: str
    itemsize: int
    storage: str
    offset: int | None
    filters: tuple[str, ...] = ()


class Stamp(NamedTuple):
    """Of a file: while it is the same, nobody wrote to it."""

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int


def stamp_of(stat: os.stat_result) -> Stamp:
    return Stamp(stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns)


@dataclass(frozen=True)
class Inventory:
    """A whole shard: base name and path of the file, its size in bytes, the step it names, its datasets by path.

    ``fingerprint`` is of the file when it was listed.
    """

    file: str
    path: str
    size: int
    step: int | None
    datasets: tuple[Dataset, ...]
    fingerprint: Stamp


def inventory(
    path: str | os.PathLike[str], *, step_attribute: str = "step", dtypes: Mapping[str, str] = {}
) -> Inventory:
    """List a shard.

    Parameters
    ----------
    step_attribute : str
        Integer attribute of the root group that says which optimizer step the shard is from; it may be absent.
    dtypes : mapping
        What containers (raw bytes, unsigned integers) hold: a pattern over dataset names, or ``storage:<dtype>``, to
        a canonical dtype. A pattern wins over a dataset's ``dcr_dtype`` attribute, which wins over ``storage:``.

    Raises
    ------
    CorruptInput
        "shard incomplete": truncated, not closed, still open for writing, a part of it missing. Nothing is repaired.
    GeometryError
        Something in it cannot be carried: a link out of the file, variable-length elements, a filter that is not
        installed, a declared dtype that does not fit. Names the dataset or link.
    NotReady, UsageError, ResourceError
        The file is missing, not permitted, unreadable.
    """
    where = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(where))
    with open_shard(where) as (file, stat):

        def describe(dataset: h5d.DatasetID, name: str) -> tuple[Dataset, object]:
            return _describe(dataset, f"{where}, dataset {name[:200]!r}", folder, stat.st_size)

        try:
            step = _step(attribute(h5g.open(file, b"/"), step_attribute), f"{where}, attribute {step_attribute!r}")
            found = walk(file, where, describe)
        except DcrError:
            raise
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise h5_error(error, where) from error
    datasets = []
    for (dataset, said), names in found:
        kind = declared(dataset.dtype, names, said, dtypes, f"{where}, dataset {names[0][:200]!r}")
        datasets.append(replace(dataset, path=names[0], names=names[1:], dtype=kind))
    return Inventory(os.path.basename(where), where, stat.st_size, step, tuple(datasets), stamp_of(stat))


def listed_by(raw: bytes) -> list[Inventory]:
    """Inventories that another rank of this job took, from their JSON text."""
    return [
        Inventory(
            row["file"], row["path"], row["size"], row["step"],
            tuple(
                Dataset(**d | {"names": tuple(d["names"]), "shape": tuple(d["shape"]), "filters": tuple(d["filters"])})
                for d in row["datasets"]
            ),
            Stamp(*row["fingerprint"]),
        )
        for row in json.loads(raw)
    ]  # fmt: skip


def shard_names(directory: str | os.PathLike[str], files: Sequence[str] | None = None) -> list[str]:
    """File names of a shard set, in order: those named, or all ``*.h5`` and ``*.hdf5`` (hidden ones aside), sorted.

    Raises
    ------
    NotReady
        No directory, no shard, or one of ``files`` is missing.
    GeometryError
        A shard that ``files`` does not name.
    """
    folder = os.fspath(directory)
    try:
        there = sorted(n for n in os.listdir(folder) if n.endswith(_SUFFIXES) and not n.startswith("."))
    except OSError as error:
        raise from_os_error(error, f"listing checkpoint {folder}") from error
    wanted = there if files is None else list(files)
    missing = [n for n in wanted if n not in there and not os.path.exists(os.path.join(folder, n))]
    extra = sorted(set(there) - set(wanted))
    if missing or (not wanted and files is None):
        raise NotReady(
            f"shard set incomplete: {folder}",
            found=f"{len(wanted) - len(missing)} of {len(wanted)} shards, without {missing[:5]}",
            expected="all shards of the layout" if files is not None else "*.h5 or *.hdf5 files",
            remedy="wait until every training rank has written its shard",
        )
    if extra:
        raise GeometryError(
            f"shard set {folder}",
            found=f"{extra[:5]} ({len(extra)} files) beside the layout's",
            expected=f"exactly {wanted[:5]} ({len(wanted)} files)",
            remedy="remove what is not part of this checkpoint, or register a layout that names it",
        )
    return wanted


def checkpoint_inventory(
    directory: str | os.PathLike[str],
    files: Sequence[str] | None = None,
    *,
    step_attribute: str = "step",
    dtypes: Mapping[str, str] = {},
) -> tuple[Inventory, ...]:
    """List a shard set: the files named, in that order, or all ``*.h5`` and ``*.hdf5`` (hidden ones aside), sorted.

    Raises
    ------
    NotReady
        No directory, no shard, or one of ``files`` is missing.
    GeometryError
        A shard that ``files`` does not name.
    CorruptInput
        Shards of different steps; and whatever :func:`inventory` raises.
    """
    folder = os.fspath(directory)
    wanted = shard_names(directory, files)
    found = tuple(inventory(os.path.join(folder, n), step_attribute=step_attribute, dtypes=dtypes) for n in wanted)
    for other in found[1:]:
        if other.step != found[0].step:
            raise CorruptInput(f"shard set {folder}", found=f"step {other.step} in {other.file}",
                               expected=f"step {found[0].step} as in {found[0].file}",
                               remedy="the shards are from different steps: write them all again")  # fmt: skip
    return found


def _describe(dataset: h5d.DatasetID, what: str, folder: str, file_size: int) -> tuple[Dataset, object]:
    """The dataset without its names, and what its ``dcr_dtype`` attribute says."""
    kind = dataset.get_type()
    name, itemsize, storage = infer(kind, what), kind.get_size(), storage_of(dataset)
    shape = (0,) if storage == "null" else tuple(dataset.shape)
    size = int(np.prod(shape, dtype=object)) * itemsize  # Python integers: no wrap
    offset = dataset.get_offset() if storage == "contiguous" else None
    if offset is not None and offset + size > file_size:
        raise CorruptInput(f"shard incomplete: {what}", found=f"a file of {file_size} bytes",
                           expected=f"{offset + size}: it lies at {offset} to {offset + size}",
                           remedy="write the shard again")  # fmt: skip
    if storage == "external":
        check_external(dataset, size, folder, what)
    if storage == "virtual":
        check_virtual(dataset, folder, what)
    filters = filters_of(dataset, what) if storage == "chunked" else ()  # nothing else can have any
    record = Dataset("", (), shape, name, itemsize, storage, offset, filters)
    return record, attribute(dataset, "dcr_dtype")


def _step(value: object, what: str) -> int | None:
    if value is None:
        return None
    number = np.asarray(value)
    if number.dtype.kind not in "iu" or number.size != 1:
        raise GeometryError(
            what,
            found=repr(number.tolist()),
            expected="one integer",
            remedy="write the step as an integer, or name another attribute",
        )
    return int(number.reshape(-1)[0])
