"""New shards in the one form that is patched in place: contiguous, allocated, aligned."""

from __future__ import annotations

import math
import os
from contextlib import suppress

import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5o, h5p, h5s, h5t

from ..dtypes import dtype
from ..errors import CorruptInput, GeometryError, from_os_error
from ..model import ShardLayout
from .access import system_error
from .inventory import Inventory, inventory
from .types import file_type

ALIGNMENT = 4096
_MAX_RANK = 32  # the library's own limit


def create_shard(
    path: str | os.PathLike[str], layout: ShardLayout, *, step: int | None = None, step_attribute: str = "step"
) -> Inventory:
    """Create a shard with every dataset of ``layout`` under all its names, zero-filled and with its disk space taken.

    Datasets of 4096 bytes or more begin at a multiple of 4096. The same layout and step give the same bytes. The
    caller syncs the file and gives it its final name.

    Raises
    ------
    GeometryError
        A name that HDF5 would not give back, a name used twice or both as a dataset and as a group, an unknown dtype.
    ResourceError
        The disk cannot hold the shard, or ``path`` exists; what was begun is removed.
    """
    where = os.fspath(path)
    _check(layout, where)
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)  # with the flag that tells a crashed writer
    access.set_alignment(ALIGNMENT, ALIGNMENT)
    creation = h5p.create(h5p.FILE_CREATE)
    creation.set_obj_track_times(False)  # the root group's
    try:
        file = h5f.create(os.fsencode(where), h5f.ACC_EXCL, fcpl=creation, fapl=access)
    except OSError as error:
        raise from_os_error(error, f"creating shard {where}") from error
    try:
        try:
            _fill(file, layout, step, step_attribute)
        finally:
            file.close()
        fd = os.open(where, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, os.fstat(fd).st_size)  # a full disk shows here, not in the middle of an apply
        finally:
            os.close(fd)
        return _proven(where, layout, step_attribute)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(where)
        if isinstance(error, Exception) and (system := system_error(error)):
            raise from_os_error(system, f"creating shard {where}") from error
        if isinstance(error, (OSError, RuntimeError, ValueError, KeyError)):
            raise GeometryError(
                f"creating shard {where}", found=str(error)[:300], expected="what HDF5 can hold"
            ) from error
        raise


def _fill(file: h5f.FileID, layout: ShardLayout, step: int | None, step_attribute: str) -> None:
    root = h5g.open(file, b"/")
    if step is not None:
        attribute = h5a.create(root, step_attribute.encode(), h5t.STD_I64LE, h5s.create(h5s.SCALAR))
        attribute.write(np.array(step, np.int64))
    storage = h5p.create(h5p.DATASET_CREATE)
    storage.set_layout(h5d.CONTIGUOUS)
    storage.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    storage.set_fill_time(h5d.FILL_TIME_NEVER)  # fresh blocks of a file read as zeros
    storage.set_obj_track_times(False)
    linking = h5p.create(h5p.LINK_CREATE)
    linking.set_char_encoding(h5t.CSET_UTF8)
    grouping = h5p.create(h5p.GROUP_CREATE)
    grouping.set_obj_track_times(False)
    for group in _groups(layout):  # by hand: those that linking creates on its way carry the time
        h5g.create(root, group.encode(), lcpl=linking, gcpl=grouping)
    for dataset in layout.datasets:
        space = h5s.create_simple(dataset.shape) if dataset.shape else h5s.create(h5s.SCALAR)
        made = h5d.create(file, None, file_type(dataset.dtype), space, dcpl=storage)
        for name in (dataset.path, *dataset.names):
            h5o.link(made, root, name.encode(), lcpl=linking)


def _groups(layout: ShardLayout) -> list[str]:
    """Every group that a dataset's name lies in, outer ones first."""
    names = [name for d in layout.datasets for name in (d.path, *d.names)]
    found = {name[:at] for name in names for at in range(len(name)) if name[at] == "/"}
    return sorted(found, key=lambda group: (group.count("/"), group))


def _check(layout: ShardLayout, where: str) -> None:
    names = [(name, d) for d in layout.datasets for name in (d.path, *d.names)]
    known = {name for name, _ in names}
    for name, dataset in names:
        what = f"shard {where}, dataset {name[:200]!r}"
        if any(part in ("", ".") for part in name.split("/")) or "\0" in name or not _utf8(name):
            raise GeometryError(
                what,
                found="an empty part, a '.', a NUL or half a character in the name",
                expected="parts joined by single slashes",
                remedy="rename it in the layout",
            )
        if name < dataset.path:
            raise GeometryError(
                what,
                found=f"path {dataset.path[:200]!r}",
                expected="the first of a dataset's names as its path",
                remedy="swap them in the layout",
            )
        if len(dataset.shape) > _MAX_RANK:
            raise GeometryError(
                what, found=f"{len(dataset.shape)} dimensions", expected=f"at most {_MAX_RANK}", remedy="merge some"
            )
        if math.prod(dataset.shape) * dtype(dataset.dtype).itemsize >= 1 << 63:
            raise GeometryError(
                what, found=f"{dataset.shape} elements of {dataset.dtype}", expected="less than 2^63 bytes"
            )
        at = name.find("/")
        while at >= 0:
            if name[:at] in known:
                raise GeometryError(
                    what,
                    found=f"{name[:at][:200]!r} as a dataset too",
                    expected="each name a dataset or a group",
                    remedy="rename one, or put them into different shards",
                )
            at = name.find("/", at + 1)
    if len(known) != len(names):
        twice = sorted(n for n in known if sum(n == m for m, _ in names) > 1)
        raise GeometryError(
            f"shard {where}",
            found=f"{twice[:5]} more than once",
            expected="each name once",
            remedy="correct the layout",
        )


def _utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _proven(where: str, layout: ShardLayout, step_attribute: str) -> Inventory:
    """The new shard's inventory, held against the layout: what cannot be patched later must fail now."""
    found = inventory(where, step_attribute=step_attribute)
    have = {(d.path, d.names, d.shape, d.dtype) for d in found.datasets if d.offset is not None or 0 in d.shape}
    want = {(d.path, tuple(sorted(d.names)), d.shape, d.dtype) for d in layout.datasets}
    if have != want:
        odd = sorted(str(x)[:200] for x in have ^ want)[:3]
        raise CorruptInput(
            f"new shard {where}",
            found=f"other datasets than asked for: {odd}",
            expected="those of the layout",
            remedy="report this: the library made another file than it was told to",
        )
    return found
