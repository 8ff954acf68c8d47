"""The kernels' contract: what runs over every word, in whatever room it runs.

Rooms (:mod:`.reference` in numpy, :mod:`.jit` in numba) give byte-identical results; the codec and the acts know
only this Protocol. A *bucket* is one flat array of words in which blocks lie at given offsets; ``offsets`` and
``sizes`` are int64 arrays of one entry per block, in words, and every offset is a multiple of ``ALIGN`` so that
a kernel may compare whole 64-bit groups. Words are uint8, uint16, uint32 or uint64; nothing here is ever a float.

``counts`` are changes per block (int64); positions are word indices inside their block (uint32), strictly increasing
within a block, blocks one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from ..dtypes import DType
from .hazard import Axis, Model

ALIGN = 64  # words: block offsets in a bucket array are multiples of it
GAP_ESCAPE = 255
HOST_LOT = 512 << 10  # bytes; with as many of the other side, in the second-level cache of most processors
MAX_BLOCK = 1 << 24  # words; positions and escapes stay far inside 32 bits
ValueScheme = Literal["overwrite", "xor", "ulp"]


@dataclass(frozen=True)
class Changes:
    """Changed words of a bucket: counts (blocks,), and positions, old words, new words, each (total,)."""

    counts: np.ndarray
    positions: np.ndarray
    old: np.ndarray
    new: np.ndarray


class Kernels(Protocol):
    """Stateless; safe from several threads."""

    name: str
    device: str
    lot: int  # bytes of a bucket that a call had better see at a time: what a cache holds, or what keeps a GPU busy

    def changes(self, base: np.ndarray, new: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> Changes:
        """Compare two buckets word by word."""
        ...

    def gather(self, words: np.ndarray, offsets: np.ndarray, counts: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Words at the positions, (total,)."""
        ...

    def scatter(
        self,
        words: np.ndarray,
        offsets: np.ndarray,
        counts: np.ndarray,
        positions: np.ndarray,
        values: np.ndarray,
    ) -> None:
        """Write ``values`` at the positions, in place. Positions must lie inside their blocks."""
        ...

    def pack_gaps(self, positions: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Unchanged words before each change, within its block: uint8 (total,), and uint32 escapes.

        A gap of 255 or more is the byte 255 and one entry in the escapes.
        """
        ...

    def unpack_gaps(self, gaps: np.ndarray, escapes: np.ndarray, counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Inverse of :meth:`pack_gaps`, strict.

        Raises
        ------
        CorruptInput
            A position outside its block, an escape under 255, escapes missing or left over, counts that do not
            add up to the number of gaps.
        """
        ...

    def difference(self, scheme: ValueScheme, old: np.ndarray, new: np.ndarray, dtype: DType) -> np.ndarray:
        """What travels for each changed word, same dtype as the words.

        ``overwrite``: the new word. ``xor``: old ^ new. ``ulp``: zigzag(order(new) - order(old)) - 1 modulo 2^bits,
        where ``order`` is the identity for integers and, for floats, the bijection to integers in numerical
        order (all bits flipped where the sign is set, else the sign bit flipped); changed words never differ by
        zero, so the - 1 never wraps.
        """
        ...

    def restore(self, scheme: ValueScheme, old: np.ndarray, coded: np.ndarray, dtype: DType) -> np.ndarray:
        """New words from old words and what travelled: inverse of :meth:`difference`."""
        ...

    def state_changes(
        self, geometry: np.ndarray, counts: np.ndarray, positions: np.ndarray, old: np.ndarray, new: np.ndarray
    ) -> np.ndarray:
        """How the changes move the state digest: uint64 (blocks, 2), mix(new) - mix(old) per block.

        ``geometry`` is int64 (blocks, 2 + 2 D): first word of the block in its tile, then base, D extents and D
        strides of the tile's region in its tensor (see :class:`dcr_mpi.region.Region`), outermost first.
        """
        ...

    def state_words(
        self, geometry: np.ndarray, words: np.ndarray, offsets: np.ndarray, sizes: np.ndarray
    ) -> np.ndarray:
        """The state digest's partial sums of whole blocks: uint64 (blocks, 2)."""
        ...

    def exponents(
        self, words: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, shift: int, mask: int, step: int
    ) -> np.ndarray:
        """Histogram of ``(word >> shift) & mask`` over every ``step``-th word of each block: int64 (mask + 1,)."""
        ...

    def tallies(self, old: np.ndarray, coded: np.ndarray, shift: int, mask: int) -> np.ndarray:
        """Changes by ``(old >> shift) & mask`` and by the token of their value: int64 (mask + 1, tokens)."""
        ...

    def hazards(
        self, model: Model, base: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, changes: Changes
    ) -> np.ndarray:
        """Sum of the rates of the words between each change and the one before it (over the ends of blocks), int64
        (total,). See :mod:`dcr_mpi.kernels.hazard`."""
        ...

    def hazard_encode(
        self, model: Model, axis: Axis, hazards: np.ndarray, old: np.ndarray, coded: np.ndarray
    ) -> np.ndarray:
        """Positions and values of all changes as one code: uint32 words, first to last as a decoder takes them.

        ``hazards`` as :meth:`hazards` gives them, ``old`` the words before, ``coded`` the values of :meth:`difference`.
        """
        ...

    def hazard_decode(
        self,
        model: Model,
        axis: Axis,
        base: np.ndarray,
        offsets: np.ndarray,
        sizes: np.ndarray,
        total: int,
        code: np.ndarray,
    ) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        """Inverse of :meth:`hazard_encode`: (words of code used, counts, positions, coded values) of ``total`` changes.

        Takes any ``code`` for hostile: instead of the words used a negative number says what is wrong (the code ends
        early, a position past the last block, or one inside what was passed already); it never reads outside.
        """
        ...
