"""Reading the words of a bucket from a trainer's two checkpoints, or from the new one alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..checkpoint import Checkpoint
from ..codec import BlockTable
from ..errors import VerifyFailed
from ..layout import Place, Placement
from ..model import Policy, Tiling
from ..scratch import Scratch


class Sides:
    """Both checkpoints under one layout; the arrays are good until the same thread asks for the next bucket.

    Parameters
    ----------
    base : Checkpoint or None
        None for an anchor.
    placement : Placement, optional
        Of the trainer's layout, where it is at hand.
    """

    def __init__(
        self,
        policy: Policy,
        tiling: Tiling,
        base: Checkpoint | None,
        new: Checkpoint,
        placement: Placement | None = None,
    ) -> None:
        self._policy, self._tiling, self._base, self._new = policy, tiling, base, new
        self._places_of = (placement or Placement(policy.trainer, policy.tensors)).of(tiling)
        self._scratch = Scratch()

    def room(self, table: BlockTable, width: int) -> np.ndarray:
        """A bucket array: the one for the base."""
        return self._scratch.words("base", table.length, width)

    def both(self, table: BlockTable, width: int) -> tuple[np.ndarray, Callable[[int, int], np.ndarray]]:
        """The base's bucket array, and what reads it and the new words: see :func:`dcr_mpi.codec.compare`."""
        base, offset = self.room(table, width), [*table.offset.tolist(), table.length]
        span, start, size = table.span.tolist(), table.start.tolist(), table.size.tolist()
        old, places = self._base, self._places(table)
        assert old is not None

        def read(first: int, last: int) -> np.ndarray:
            low = offset[first]
            new = self._scratch.words("new", offset[last] - low, width)
            for block in range(first, last):
                here, begin, words, at = places[span[block]], start[block], size[block], offset[block]
                old.read(here[0], begin, begin + words, base[at : at + words])
                self._read_new(table, block, here, begin, new[at - low : at - low + words])
            return new

        return base, read

    def new(self, table: BlockTable, width: int) -> np.ndarray:
        """A bucket array of the new words."""
        words, places = self._scratch.words("new", table.length, width), self._places(table)
        for block in range(len(table)):
            self._read_new(table, block, places[table.span[block]], int(table.start[block]), table.view(words, block))
        return words

    def _places(self, table: BlockTable) -> list[tuple[Place, ...]]:
        """The places of each span's tile."""
        return [self._places_of[s.tile] for s in table.spans]

    def _read_new(
        self, table: BlockTable, block: int, places: tuple[Place, ...], start: int, words: np.ndarray
    ) -> None:
        """A block's new words. What several shards publish must hold the same bytes in all of them: it is sent once."""
        first, *others = places
        self._new.read(first, start, start + len(words), words)
        for other in (place for place in others if self._new.holds(place.shard)):
            copy = self._scratch.words("copy", len(words), words.itemsize)
            self._new.read(other, start, start + len(words), copy)
            if bool((copy != words).any()):
                tile = self._tiling.tiles[table.spans[table.span[block]].tile]
                raise VerifyFailed(
                    f"tensor {self._policy.tensors[tile.tensor].name!r}, box {tile.start}..{tile.stop}",
                    found=f"different bytes in {first.dataset!r} of {self._new.path(first.shard)} and "
                    f"{other.dataset!r} of {self._new.path(other.shard)}",
                    expected="equal copies",
                    remedy="find out which rank writes a wrong value: nothing was published",
                )
