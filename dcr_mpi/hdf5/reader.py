"""Raw words of a shard: by byte offset where the storage is contiguous, through the library elsewhere.

Through the library the file's own type is the memory type, so nothing is ever converted: NaN payloads, big-endian
words, enumerations and opaque bytes arrive as they lie.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Self

import numpy as np
from h5py import h5d, h5f, h5p, h5s

from ..dtypes import dtype
from ..errors import CorruptInput, DcrError, GeometryError, from_os_error
from ..model import Box, Shape
from ..region import Region
from ..scratch import Scratch
from .access import close_library, h5_error, open_library, open_regular
from .inventory import Dataset, Inventory
from .inventory import inventory as list_shard
from .place import check_box, hyperslabs, words_of
from .storage import open_dataset

_WINDOW = 8 << 20  # bytes of a window that is read for the strided runs inside it
_LONG_RUN = 256 << 10  # runs of so many bytes are read one by one, without a window
_WIDE_GAP = 64 << 10  # and so are runs this far apart: a call costs less than the bytes between
_CHUNK_CACHE = 64 << 20
_OPEN_DATASETS = 4
_PLACES = 4096


@dataclass(frozen=True, slots=True)
class _Place:
    """A box of a dataset: its words in the file, how many, and the bytes of one."""

    dataset: Dataset
    region: Region
    words: int
    width: int


class ShardReader:
    """One open shard, a context manager. Reads are safe from several threads, also against :meth:`close`.

    Parameters
    ----------
    path
        The shard.
    found : Inventory, optional
        Its inventory, if it is at hand; taken anew otherwise (and then all that :func:`inventory` raises).

    Raises
    ------
    CorruptInput
        The file is not the one that the inventory was taken of.
    """

    def __init__(self, path: str | os.PathLike[str], found: Inventory | None = None) -> None:
        self._path = os.fspath(path)
        self.inventory = list_shard(self._path) if found is None else found
        self._datasets = {name: d for d in self.inventory.datasets for name in (d.path, *d.names)}
        self._lock, self._library_lock, self._scratch = threading.Lock(), threading.Lock(), Scratch()
        self._readers, self._closing = 0, False
        self._library: h5f.FileID | None = None
        self._handles: OrderedDict[str, h5d.DatasetID] = OrderedDict()
        self._places: dict[tuple[str, Shape, Shape], _Place] = {}
        self._fd = open_regular(self._path)
        stat = os.fstat(self._fd)
        if (stat.st_size, stat.st_ino) != (self.inventory.size, self.inventory.fingerprint.inode):
            os.close(self._fd)
            raise CorruptInput(f"shard {self._path}", found=f"another file ({stat.st_size} bytes) than was listed",
                               expected=f"inode {self.inventory.fingerprint.inode}, {self.inventory.size} bytes",
                               remedy="somebody replaced it meanwhile: run again")  # fmt: skip

    def read(self, path: str, box: Box, start: int, stop: int, out: np.ndarray) -> None:
        """Fill ``out`` with words ``start`` to ``stop`` of a box.

        Parameters
        ----------
        path : str
            Any name of the dataset.
        box : Box
            In the dataset's elements.
        start, stop : int
            Words, counted in the box's row-major order; an element has ``dtype(...).words`` of them.
        out : array of uint8, C-contiguous
            Exactly ``(stop - start) * word_bytes`` bytes.

        Raises
        ------
        GeometryError
            No such dataset, a box outside it, words outside the box, ``out`` of another size.
        CorruptInput
            The file ends early, or the library cannot read it (a damaged chunk).
        ResourceError
            The medium failed.
        """
        place = self._places.get((path, box.start, box.stop)) or self._place(path, box)
        dataset, where, words, width = place.dataset, place.region, place.words, place.width
        if not 0 <= start <= stop <= words or out.nbytes != (stop - start) * width:
            raise GeometryError(f"dataset {path[:200]!r}", found=f"words {start} to {stop} into {out.nbytes} bytes",
                                expected=f"words in 0 to {words}, of {width} bytes each")  # fmt: skip
        if start == stop:
            return
        self._enter()
        try:
            if dataset.offset is not None:
                self._read_at(dataset.offset, where, width, start, stop, out)
            else:
                self._read_library(dataset, box, dataset.itemsize // width, start, stop, out)
        finally:
            self._leave()

    def close(self) -> None:
        """Release the file once the reads under way are done; a read after that is a ValueError."""
        with self._lock:
            last = not self._closing and self._readers == 0
            self._closing = True
        if last:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, path: str, box: Box) -> _Place:
        """Look a box up once: a box is read block by block."""
        dataset = self._datasets.get(path)
        if dataset is None:
            raise GeometryError(
                f"dataset {path[:200]!r}", found="nothing of that name", expected=f"a dataset of {self._path}"
            )
        check_box(dataset, box)
        kind = dtype(dataset.dtype)
        place = _Place(dataset, words_of(box, dataset.shape, kind.words), box.size * kind.words, kind.word_bytes)
        if len(self._places) >= _PLACES:
            self._places.clear()
        self._places[path, box.start, box.stop] = place
        return place

    def _enter(self) -> None:
        with self._lock:
            if self._closing:
                raise ValueError(f"read of closed shard {self._path}")
            self._readers += 1

    def _leave(self) -> None:
        with self._lock:
            self._readers -= 1
            last = self._closing and self._readers == 0
        if last:
            self._release()

    def _release(self) -> None:
        self._handles.clear()
        if self._library is not None:
            close_library(self._library)
        os.close(self._fd)

    # -- contiguous: by offset --------------------------------------------------------------------------------

    def _read_at(self, offset: int, where: Region, width: int, start: int, stop: int, out: np.ndarray) -> None:
        if where.contiguous:
            self._exactly(out.data, offset + where.locate(start) * width)
            return
        flat = out.reshape(-1).data
        run = where.shape[-1] if where.strides[-1] == 1 else 1
        gap = where.strides[-2] - run if len(where.shape) > 1 and run > 1 else where.strides[-1] - 1
        if run * width >= _LONG_RUN or gap * width >= _WIDE_GAP:
            at = start
            while at < stop:
                size = min(stop - at, run - at % run)
                self._exactly(
                    flat[(at - start) * width : (at + size - start) * width], offset + where.locate(at) * width
                )
                at += size
            return
        words = out.reshape(-1).view(f"u{width}")
        for a, b in where.windows(start, stop, _WINDOW // width):
            first, last = where.span(a, b)
            window = self._scratch.words("window", last - first, width)
            self._exactly(memoryview(window).cast("B"), offset + first * width)
            where.gather(window, a, b, words[a - start : b - start])

    def _exactly(self, view: memoryview, at: int) -> None:
        while view:
            try:
                got = os.preadv(self._fd, [view], at)
            except OSError as error:
                raise from_os_error(error, f"reading {self._path}") from error
            if got == 0:
                raise CorruptInput(
                    f"shard incomplete: {self._path}",
                    found=f"its end at byte {at}",
                    expected=f"{len(view)} bytes more",
                    remedy="somebody cut it while it was read: write it again",
                )
            view, at = view[got:], at + got

    # -- everything else: through the library -----------------------------------------------------------------

    def _read_library(self, dataset: Dataset, box: Box, per: int, start: int, stop: int, out: np.ndarray) -> None:
        first, last = start // per, -(-stop // per)
        whole = start % per == 0 and stop % per == 0
        flat = out.reshape(-1) if whole else np.empty((last - first) * dataset.itemsize, np.uint8)
        flat[...] = 0  # where nothing was written and no fill value is defined, the library leaves the buffer alone
        try:
            with self._library_lock:  # the library runs one call at a time anyway
                self._hyperslabs(self._handle(dataset), dataset, box, first, last, flat)
        except DcrError:
            raise
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise h5_error(error, f"{self._path}, dataset {dataset.path[:200]!r}") from error
        if not whole:
            width, skip = dataset.itemsize // per, start - first * per
            out.reshape(-1)[...] = flat[skip * width : (skip + stop - start) * width]

    def _hyperslabs(
        self, handle: h5d.DatasetID, dataset: Dataset, box: Box, first: int, last: int, flat: np.ndarray
    ) -> None:
        kind, space, at = handle.get_type(), handle.get_space(), 0
        for start, count in hyperslabs(box.shape, first, last):
            size = math.prod(count)
            if start:
                space.select_hyperslab(tuple(a + b for a, b in zip(start, box.start, strict=True)), count)
            part = flat[at : at + size * dataset.itemsize]
            handle.read(h5s.create_simple((size,)), space, part, kind)
            at += part.nbytes

    def _handle(self, dataset: Dataset) -> h5d.DatasetID:
        """The open dataset; its chunk cache is set as it is opened."""
        if dataset.path in self._handles:
            self._handles.move_to_end(dataset.path)
            return self._handles[dataset.path]
        if self._library is None:
            self._library = open_library(self._path)
        folder = os.path.dirname(os.path.abspath(self._path))
        # The first open handle sets the size of the cache, so the one that asks for the chunks is closed by then.
        cache = _cache_bytes(dataset, open_dataset(self._library, dataset.path, folder).get_create_plist())
        handle = self._handles[dataset.path] = open_dataset(self._library, dataset.path, folder, cache)
        while len(self._handles) > _OPEN_DATASETS:
            self._handles.popitem(last=False)
        return handle


def _cache_bytes(dataset: Dataset, plist: h5p.PropDCID) -> int:
    """Room for a row of chunks, so that reading in order unpacks each chunk once; 0 where there are no chunks."""
    if dataset.storage != "chunked":
        return 0
    chunk = plist.get_chunk()
    one: int = math.prod(chunk) * dataset.itemsize
    row = math.prod(-(-n // c) for n, c in zip(dataset.shape[1:], chunk[1:], strict=True))
    return max(one, min(one * row, _CHUNK_CACHE))
