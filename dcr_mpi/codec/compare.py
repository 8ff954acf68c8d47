"""Comparing a bucket with its baseline while it is read: a few blocks at a time, so that what reads them, looks for
changes and sums digests finds them in the processor's cache, and memory is passed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..digest import block_digest, running_block_digest
from ..errors import VerifyFailed
from ..kernels.api import Changes, Kernels
from .table import BlockTable


@dataclass(frozen=True)
class Digests:
    """What a bucket says of its words: the streams of the digests before and after, and of the unchanged blocks."""

    base: bytes
    rest: bytes
    target: bytes


def compare(
    table: BlockTable, base: np.ndarray, read: Callable[[int, int], np.ndarray], kernels: Kernels
) -> tuple[Changes, Digests]:
    """What changed in a bucket, and the digests of its blocks.

    Parameters
    ----------
    base : array
        Bucket array of ``table``, with anything in it.
    read : callable
        ``read(first, last)`` reads blocks ``first`` to ``last`` of the baseline into ``base``, and returns their new
        words: a bucket array that begins where block ``first`` does. It may be overwritten by the next call.

    Raises
    ------
    VerifyFailed
        The kernels missed a block that changed.
    """
    # Between kernels as little is done as can be: threads of a rank do that one at a time.
    found, sums = [], _Sums(table)
    offset, size = table.offset.tolist(), table.size.tolist()
    for first, last in lots(table, kernels.lot // base.itemsize):
        new, low = read(first, last), offset[first]
        here = table.offset[first:last] - low
        found.append(kernels.changes(base[low : low + len(new)], new, here, table.size[first:last]))
        for block, count in enumerate(found[-1].counts.tolist(), first):
            at, words = offset[block], size[block]
            before, after = base[at : at + words], new[at - low : at - low + words]
            if not count and bool((before != after).any()):  # a changed block that goes unseen would never be decoded
                raise VerifyFailed(
                    "self-check of the encoder",
                    found=f"no change in block {block} of {len(table)}, which differs",
                    expected="every change",
                    remedy="nothing was published; run again with kernels: numpy and report this",
                )
            sums.add(block, before, after if count else None)
    if len(found) == 1:
        return found[0], sums.digests
    columns = zip(*((c.counts, c.positions, c.old, c.new) for c in found), strict=True)
    return Changes(*map(np.concatenate, columns)), sums.digests


def lots(table: BlockTable, words: int) -> Iterator[tuple[int, int]]:
    """Runs of blocks of about ``words`` words, at least one block each."""
    lot = (np.cumsum(table.size) - 1) // max(words, 1)
    yield from pairwise([*np.flatnonzero(np.diff(lot, prepend=-1)).tolist(), len(table)])


def digests_of(table: BlockTable, base: np.ndarray | None, new: np.ndarray, changed: np.ndarray) -> Digests:
    """The digests of a bucket that was compared already; those of an anchor where ``base`` is None."""
    if base is None:
        return Digests(b"", b"", b"".join(block_digest(table.view(new, b)) for b in range(len(table))))
    sums = _Sums(table)
    for block, count in enumerate(changed.tolist()):
        sums.add(block, table.view(base, block), table.view(new, block) if count else None)
    return sums.digests


def rest_digests(table: BlockTable, base: np.ndarray, changed: np.ndarray) -> dict[int, bytes]:
    """For every span with unchanged blocks, by span index: one digest over those blocks' base, in order."""
    sums = _Sums(table)
    for block in np.flatnonzero(~changed).tolist():
        sums.add(block, table.view(base, block), None)
    return sums.rest


class _Sums:
    """Digests of blocks that come in order."""

    def __init__(self, table: BlockTable) -> None:
        self._span = table.span.tolist()
        self._base: list[bytes] = []
        self._target: list[bytes] = []
        self._running: dict[int, Any] = {}

    def add(self, block: int, before: np.ndarray, after: np.ndarray | None) -> None:
        """A block's words; None after for one that did not change."""
        if after is not None:
            self._base.append(block_digest(before))
            self._target.append(block_digest(after))
        else:
            self._running.setdefault(self._span[block], running_block_digest()).update(before)

    @property
    def rest(self) -> dict[int, bytes]:
        return {span: running.digest() for span, running in self._running.items()}

    @property
    def digests(self) -> Digests:
        return Digests(b"".join(self._base), b"".join(self.rest.values()), b"".join(self._target))
