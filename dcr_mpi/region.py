"""A box inside a row-major array, as the strided set of words that it is.

Words are counted in the box's own row-major order (``start <= k < stop``); this module says where word *k* lies in
the array that contains the box, and copies ranges of words out of and into a contiguous window of that array.
Pure: offsets are in words, the caller adds the array's byte offset.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .model import Box, Shape


@dataclass(frozen=True)
class Region:
    """Words ``base + sum(i_d * strides[d])`` for ``0 <= i_d < shape[d]``, dimensions collapsed where they run on.

    A whole array, a row range or a contiguous slab collapses to one dimension with stride 1.
    """

    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def contiguous(self) -> bool:
        return len(self.shape) == 1 and self.strides[0] == 1

    def locate(self, k: int) -> int:
        """Offset in the array of the box's word ``k``."""
        at = self.base
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            k, i = divmod(k, extent)
            at += i * stride
        return at

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The smallest window ``[first, last)`` of the array that holds words ``start`` to ``stop``."""
        return (self.locate(start), self.locate(stop - 1) + 1) if stop > start else (self.base, self.base)

    def windows(self, start: int, stop: int, limit: int) -> Iterator[tuple[int, int]]:
        """Cut ``start..stop`` into ranges whose span holds at most ``limit`` words (at least one word each)."""
        while start < stop:
            first = self.locate(start)
            low, high = start + 1, min(stop, start + limit)
            if high > low and self.locate(high - 1) + 1 - first <= limit:
                low = high
            while low < high:  # the last offset grows with k: bisect for the longest range that fits
                middle = (low + high + 1) // 2
                low, high = (middle, high) if self.locate(middle - 1) + 1 - first <= limit else (low, middle - 1)
            yield start, low
            start = low

    def gather(self, window: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
        """Copy words ``start..stop`` out of ``window`` (the array's ``span(start, stop)``) into ``out``, in order."""
        first = self.span(start, stop)[0]
        for inside, flat in self._views(window, first, out, start, stop):
            flat[...] = inside

    def put(self, window: np.ndarray, start: int, stop: int, words: np.ndarray) -> None:
        """Copy ``words`` to where words ``start..stop`` lie in ``window``; the rest of the window is untouched."""
        first = self.span(start, stop)[0]
        for inside, flat in self._views(window, first, words, start, stop):
            inside[...] = flat

    def _views(
        self, window: np.ndarray, first: int, flat: np.ndarray, start: int, stop: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs of equally shaped views, strided into ``window`` and contiguous in ``flat``."""
        if stop <= start:
            return
        pending = [(0, self.base - first, start, stop, 0)]
        while pending:
            level, base, a, b, at = pending.pop()
            shape, strides = self.shape[level:], self.strides[level:]
            inner = math.prod(shape[1:])
            i, j = -(-a // inner), b // inner  # whole rows [i, j) of this level
            if len(shape) == 1 or (a % inner == 0 and b % inner == 0):
                yield _view(window, base + i * strides[0], (j - i, *shape[1:]), strides, flat, at)
            elif i > j or a // inner == (b - 1) // inner:  # inside one row
                row = a // inner
                pending.append((level + 1, base + row * strides[0], a - row * inner, b - row * inner, at))
            else:
                if a < i * inner:
                    head = i - 1
                    pending.append((level + 1, base + head * strides[0], a - head * inner, inner, at))
                if i < j:
                    begin = at + i * inner - a
                    yield _view(window, base + i * strides[0], (j - i, *shape[1:]), strides, flat, begin)
                if b > j * inner:
                    pending.append((level + 1, base + j * strides[0], 0, b - j * inner, at + j * inner - a))


@lru_cache(maxsize=1 << 14)
def region_of(box: Box, shape: Shape) -> Region:
    """The region of ``box`` inside a row-major array of ``shape``. Both in words."""
    dims: list[tuple[int, int]] = []  # innermost first: (extent, stride)
    base, stride = 0, 1
    for a, b, extent in zip(reversed(box.start), reversed(box.stop), reversed(shape), strict=True):
        base += a * stride
        if b - a != 1:
            if dims and dims[-1][0] * dims[-1][1] == stride:
                dims[-1] = (dims[-1][0] * (b - a), dims[-1][1])
            else:
                dims.append((b - a, stride))
        stride *= extent
    dims = dims or [(1, 1)]
    return Region(base, tuple(n for n, _ in reversed(dims)), tuple(s for _, s in reversed(dims)))


def _view(
    window: np.ndarray, base: int, shape: Shape, strides: tuple[int, ...], flat: np.ndarray, at: int
) -> tuple[np.ndarray, np.ndarray]:
    size = math.prod(shape)
    inside = as_strided(window[base:], shape, tuple(s * window.itemsize for s in strides))
    return inside, flat[at : at + size].reshape(shape)
