"""A checkpoint that is arrays in memory: this rank's shard of it, and no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint
from ..dtypes import dtype
from ..errors import GeometryError
from ..layout import Place, word_box, word_shape
from ..model import DatasetLayout, Layout
from ..region import Region, region_of


class Arrays(Checkpoint):
    """The datasets of shard ``shard`` as arrays of raw words.

    Parameters
    ----------
    arrays : mapping of dataset path to array
        All datasets of the shard, each C-contiguous, of the layout's shape, and of any dtype of its item size. Arrays
        of numpy are not copied; those of a device (whatever has a ``get`` method, as cupy's) are read piece by piece.

    Raises
    ------
    GeometryError
        One is missing, unknown, of another shape or item size, or not contiguous.
    """

    def __init__(self, layout: Layout, shard: int, arrays: Mapping[str, Any]) -> None:
        super().__init__(Path(f"memory of rank {shard}"), layout)
        self._shard = shard
        specs = {d.path: d for d in layout.shards[shard].datasets}
        if set(arrays) != set(specs):
            missing, extra = sorted(set(specs) - set(arrays)), sorted(set(arrays) - set(specs))
            raise GeometryError(
                f"arrays of rank {shard}",
                found=f"{len(missing)} missing {missing[:3]}, {len(extra)} unknown {extra[:3]}",
                expected=f"the {len(specs)} datasets of this rank",
                remedy="a tensor that is added, removed or renamed needs a new policy",
            )
        self._flat = {path: _flat(specs[path], array) for path, array in arrays.items()}
        self._specs = specs
        self._regions: dict[tuple[str, Any, Any], Region] = {}

    everywhere = False

    def holds(self, shard: int) -> bool:
        return shard == self._shard

    def read(self, place: Place, start: int, stop: int, out: np.ndarray) -> None:
        """Words ``start..stop`` of a place into ``out`` (a contiguous array of words)."""
        assert self.holds(place.shard), "every part is built where its shard is"
        words, region = self._flat[place.dataset], self._region(place)
        if region.contiguous:
            first = region.base + start
            out[...] = host(words[first : first + stop - start])
            return
        first, last = region.span(start, stop)
        region.gather(host(words[first:last]), start, stop, out)

    def words(self) -> Iterator[tuple[str, Any]]:
        """Every dataset as a flat array of words, in the layout's order."""
        for path in self._specs:
            yield path, self._flat[path]

    def _region(self, place: Place) -> Region:
        key = (place.dataset, place.box.start, place.box.stop)
        if key not in self._regions:
            spec = self._specs[place.dataset]
            self._regions[key] = region_of(word_box(place.box, dtype(spec.dtype).words), word_shape(spec))
        return self._regions[key]


def _flat(spec: DatasetLayout, array: Any) -> Any:
    """An array as its words, one after another."""
    kind = dtype(spec.dtype)
    contiguous = bool(array.flags.c_contiguous)
    if tuple(array.shape) != spec.shape or array.dtype.itemsize != kind.itemsize or not contiguous:
        raise GeometryError(
            f"array {spec.path!r}",
            found=f"{array.dtype} {tuple(array.shape)}, {'' if contiguous else 'not '}contiguous",
            expected=f"{spec.dtype} {spec.shape}, contiguous in C order",
            remedy="pass what the layout says; a view of other strides must be copied first",
        )
    return array.reshape(-1).view(np.uint8).view(f"u{kind.word_bytes}")


def host(words: Any) -> np.ndarray:
    """Words where the processor can read them."""
    return words.get() if hasattr(words, "get") else words
