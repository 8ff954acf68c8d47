"""A checkpoint on disk seen through its layout: checked shards, and the words of any place in it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .digest import sha256
from .dtypes import dtype, is_container
from .errors import GeometryError, from_os_error
from .hdf5 import Dataset, Inventories, Inventory, ShardReader, Stamp, checkpoint_inventory, inventory, stamped
from .jsonable import dumps
from .layout import Place
from .layout.build import whole
from .model import DatasetLayout, Layout, ShardLayout

_OPEN_SHARDS = 16


class Checkpoint:
    """Shards of one directory under one layout. Shards are opened when first read, a few at a time.

    Parameters
    ----------
    step_attribute, dtypes
        As for :func:`dcr_mpi.hdf5.inventory`.
    known : Inventories, optional
        Of a job that stays: what was listed and checked already, and has not been written to since.
    """

    def __init__(
        self,
        directory: Path,
        layout: Layout,
        step_attribute: str = "step",
        dtypes: Mapping[str, str] = {},
        known: Inventories | None = None,
    ) -> None:
        self.directory, self.layout = Path(directory), layout
        self._step_attribute, self._dtypes = step_attribute, dtypes
        self._readers: OrderedDict[int, ShardReader] = OrderedDict()
        self._inventories: dict[int, Inventory] = {}
        self._known = known if known is not None else Inventories()
        self._lock = threading.Lock()

    everywhere = True  # whether every rank can read every shard

    def path(self, shard: int) -> Path:
        return self.directory / self.layout.shards[shard].file

    def inventory(self, shard: int) -> Inventory:
        """The shard's inventory, checked against the layout; taken once, as a shard is not replaced while it is in use.

        Raises
        ------
        CorruptInput
            The shard is incomplete.
        GeometryError
            A dataset is missing, new, or has another shape, dtype or set of names than the layout says.
        """
        found = self._inventories.get(shard)
        if found is None:
            path, asked = str(self.path(shard)), self._asked(shard)
            found = self._known.find(path, asked)
            if found is None:
                found = inventory(path, step_attribute=self._step_attribute, dtypes=self._dtypes)
                check_shard(found, self.layout.shards[shard])
                self._known.keep(path, asked, found)
            self._inventories[shard] = found
        return found

    def is_known(self, shard: int) -> bool:
        """Whether a shard's inventory is at hand, if nobody has written to the shard since."""
        return shard in self._inventories or self._known.has(str(self.path(shard)), self._asked(shard))

    def take(self, shard: int, found: Inventory) -> None:
        """Take over a shard's inventory that another rank made and checked, if this one sees the same file."""
        mine = stamped(str(self.path(shard)), found) if shard not in self._inventories else None
        if mine is not None:
            self._inventories[shard] = mine
            self._known.keep(str(self.path(shard)), self._asked(shard), mine)

    def _asked(self, shard: int) -> object:
        """All that a shard's inventory depends on besides the file."""
        return self._step_attribute, dict(self._dtypes), self.layout.shards[shard]

    def written(self, shard: int, after: Stamp) -> None:
        """We wrote words into a shard, where its inventory says, and saw the file so just after."""
        self._known.written(str(self.path(shard)), self.inventory(shard), after)

    def holds(self, shard: int) -> bool:
        """Whether this rank can read a shard."""
        return True

    def read(self, place: Place, start: int, stop: int, out: np.ndarray) -> None:
        """Words ``start..stop`` of a place into ``out`` (a contiguous array of words)."""
        self.reader(place.shard).read(place.dataset, place.box, start, stop, out.view(np.uint8))

    def reader(self, shard: int) -> ShardReader:
        with self._lock:
            reader = self._readers.pop(shard, None)
            if reader is None:
                reader = ShardReader(self.path(shard), self.inventory(shard))
            self._readers[shard] = reader
            while len(self._readers) > _OPEN_SHARDS:
                self._readers.popitem(last=False)[1].close()
            return reader

    def close(self) -> None:
        while self._readers:
            self._readers.popitem()[1].close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_shard(found: Inventory, expected: ShardLayout) -> None:
    """Hold a shard's inventory against its layout. Raises GeometryError, naming the first difference."""
    have, want = by_name(found), {name: d for d in expected.datasets for name in (d.path, *d.names)}
    missing, extra = sorted(set(want) - set(have)), sorted(set(have) - set(want))
    if missing or extra:
        raise GeometryError(
            f"shard {found.path}",
            found=f"{len(extra)} names the layout does not know {extra[:3]}, {len(missing)} missing {missing[:3]}",
            expected=f"exactly the {len(want)} of the layout",
            remedy="an interrupted writer leaves a shard incomplete: write it again; if tensors were added, removed or "
            "renamed, start a new policy with dcr init",
        )
    for spec in expected.datasets:
        dataset = have[spec.path]
        mine, theirs = dtype(dataset.dtype), dtype(spec.dtype)
        same = mine.name == theirs.name or (is_container(mine.name) and mine.itemsize == theirs.itemsize)
        names = {dataset.path, *dataset.names}
        if not same or dataset.shape != spec.shape or names != {spec.path, *spec.names}:
            raise GeometryError(
                f"dataset {spec.path!r} of {found.path}",
                found=f"{dataset.dtype} {dataset.shape} under the names {sorted(names)}",
                expected=f"{spec.dtype} {spec.shape} under {sorted([spec.path, *spec.names])}",
                remedy="resizing, re-typing, tying or un-tying a tensor needs a new policy: run dcr init",
            )


def by_name(found: Inventory) -> dict[str, Dataset]:
    """A shard's datasets by every name that they have: a tied tensor may be meant by any of them."""
    return {name: dataset for dataset in found.datasets for name in (dataset.path, *dataset.names)}


def default_layout(name: str, directory: Path, step_attribute: str = "step", dtypes: Mapping[str, str] = {}) -> Layout:
    """The layout that the shards of a directory imply: each dataset holds the whole tensor of its path."""
    shards = checkpoint_inventory(directory, step_attribute=step_attribute, dtypes=dtypes)
    return Layout(name, tuple(ShardLayout(s.file, tuple(_whole(d) for d in s.datasets)) for s in shards))


def _whole(dataset: Dataset) -> DatasetLayout:
    return whole(dataset.path, dataset.shape, dataset.dtype, dataset.names)


def geometry_sha256(found: Inventory) -> str:
    """Digest of where a shard keeps its words: paths, offsets, shapes and dtypes of all datasets. Once per object."""
    known: str | None = found.__dict__.get("_geometry_sha256")
    if known is None:
        known = sha256(dumps([[d.path, d.offset, list(d.shape), d.dtype, d.storage] for d in found.datasets]))
        object.__setattr__(found, "_geometry_sha256", known)
    return known


def fingerprint(directory: Path, layout: Layout) -> dict[str, list[int]]:
    """Size, mtime and ctime (ns) and inode of every shard: while they are equal, nobody wrote in between. Of a missing
    one, nothing: whoever lists the shards says so."""
    out: dict[str, list[int]] = {}
    for shard in layout.shards:
        try:
            stat = (directory / shard.file).stat()
        except FileNotFoundError:
            out[shard.file] = []
            continue
        except OSError as error:
            raise from_os_error(error, f"shard {directory / shard.file}") from error
        out[shard.file] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    return out
