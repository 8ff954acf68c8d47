"""Where the words of a box lie: as a strided region of a dataset's bytes, or as hyperslabs for the library."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..dtypes import dtype
from ..errors import GeometryError
from ..model import Box, Shape
from ..region import Region, region_of
from .inventory import Dataset

_REPACK = "rewrite the shard with h5repack -l CONTI -f NONE OLD NEW, or let dcr create the replica"
_REMEDIES = {
    "unallocated": "write the dataset once (allocation is late by default), or let dcr create the replica",
}


def region(dataset: Dataset, box: Box) -> Region:
    """The words of ``box`` (in elements) inside a dataset, to be patched in place at ``dataset.offset``.

    Raises
    ------
    GeometryError
        The box does not lie in the dataset, or its storage has no fixed place in the file; names the remedy.
    """
    check_box(dataset, box)
    if dataset.offset is None and box.size:
        raise GeometryError(
            f"dataset {dataset.path[:200]!r}",
            found=f"{dataset.storage} storage{_with(dataset.filters)}",
            expected="contiguous, allocated storage, which alone is patched in place",
            remedy=_REMEDIES.get(dataset.storage, _REPACK),
        )
    return words_of(box, dataset.shape, dtype(dataset.dtype).words)


def hyperslabs(shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    """Elements ``start`` to ``stop`` of a row-major array as (start, count) boxes, in order, as large as they come."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    if not shape:
        yield (), ()
    while shape and start < stop:
        index = tuple(start // s % n for s, n in zip(strides, shape, strict=True))
        level = next(d for d, s in enumerate(strides) if start % s == 0 and stop - start >= s)
        rows = min(shape[level] - index[level], (stop - start) // strides[level])
        yield index, (*(1,) * level, rows, *shape[level + 1 :])
        start += rows * strides[level]


def words_of(box: Box, shape: Shape, words: int) -> Region:
    if words == 1:
        return region_of(box, shape)
    return region_of(Box((*box.start, 0), (*box.stop, words)), (*shape, words))


def check_box(dataset: Dataset, box: Box) -> None:
    if not box.within(Box.whole(dataset.shape)) or any(a > b for a, b in zip(box.start, box.stop, strict=True)):
        raise GeometryError(f"dataset {dataset.path[:200]!r}", found=f"box {box.start} to {box.stop}",
                            expected=f"a box inside {dataset.shape}")  # fmt: skip


def _with(filters: tuple[str, ...]) -> str:
    return f" with {', '.join(filters)}" if filters else ""
