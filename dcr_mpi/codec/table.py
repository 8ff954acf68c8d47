"""Spans cut into blocks, and where each block lies in the flat arrays that the kernels work on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import CorruptInput
from ..kernels.api import ALIGN
from ..layout import Span
from .varints import pack_varints, unpack_varints

MIN_BLOCK_LOG2, MAX_BLOCK_LOG2 = 6, 24
MAX_BUCKET_BYTES = 1 << 30
MAX_BLOCKS = 1 << 18  # in a bucket: a reader keeps a few hundred bytes for each, before it knows the part's geometry
MAX_WORD = 1 << 62  # index of a word or a tile: sums stay inside 64 signed bits


def is_block(log2: int) -> bool:
    """Whether blocks may have ``2 ** log2`` words."""
    return MIN_BLOCK_LOG2 <= log2 <= MAX_BLOCK_LOG2


@dataclass(frozen=True)
class BlockTable:
    """Blocks of a bucket, span after span; int64 arrays of one entry per block, all in words.

    ``span`` is the index into ``spans``, ``start`` the block's first word in its tile, ``offset`` its place in a
    bucket array of ``length`` words.
    """

    spans: tuple[Span, ...]
    span: np.ndarray
    start: np.ndarray
    size: np.ndarray
    offset: np.ndarray
    length: int

    def __len__(self) -> int:
        return len(self.size)

    def view(self, words: np.ndarray, block: int) -> np.ndarray:
        """The words of one block in a bucket array."""
        return words[self.offset[block] : self.offset[block] + self.size[block]]

    def only(self, blocks: np.ndarray) -> BlockTable:
        """The table of some of the blocks, where they are."""
        return BlockTable(
            self.spans, self.span[blocks], self.start[blocks], self.size[blocks], self.offset[blocks], self.length
        )

    def select(self, blocks: np.ndarray) -> BlockTable:
        """The table of some of the blocks, packed anew."""
        offset, length = _offsets(self.size[blocks])
        return BlockTable(self.spans, self.span[blocks], self.start[blocks], self.size[blocks], offset, length)


def block_table(spans: Sequence[Span], block: int) -> BlockTable:
    """Cut spans into blocks of ``block`` words; the last of each span is short."""
    counts = np.array([-(-(s.stop - s.start) // block) for s in spans], np.int64)
    span = np.repeat(np.arange(len(spans), dtype=np.int64), counts)
    inside = np.arange(len(span), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    start = np.array([s.start for s in spans], np.int64)[span] + inside * block
    size = np.minimum(np.array([s.stop for s in spans], np.int64)[span] - start, block)
    offset, length = _offsets(size)
    return BlockTable(tuple(spans), span, start, size, offset, length)


def _offsets(size: np.ndarray) -> tuple[np.ndarray, int]:
    room = -(-size // ALIGN) * ALIGN
    ends = np.cumsum(room)
    return ends - room, int(ends[-1]) if len(ends) else 0


def pack_spans(spans: Sequence[Span], block: int) -> bytes:
    """Spans as LEB128 varints: tile (difference to the one before), first block of the tile, words."""
    rows, previous = [], 0
    for span in spans:
        rows += [span.tile - previous, span.start // block, span.stop - span.start]
        previous = span.tile
    return pack_varints(rows)


def unpack_spans(data: bytes, block: int, word_bytes: int) -> tuple[Span, ...]:
    """Inverse of :func:`pack_spans`.

    Raises
    ------
    CorruptInput
        A cut or oversized varint, no span or an empty one, spans out of order, or more than the largest bucket.
    """
    spans: list[Span] = []
    tile, end, total, blocks = 0, 0, 0, 0
    for step, first, words in _triples(data):
        if step:
            tile, end = tile + step, 0
        start = first * block
        total += words
        blocks += -(-words // block)
        if not words or start < end or total * word_bytes > MAX_BUCKET_BYTES or blocks > MAX_BLOCKS:
            raise _bad(f"{words} words at {start} of tile {tile}")
        end = start + words
        if max(end, tile) > MAX_WORD:
            raise _bad(f"word {end} of tile {tile}")
        spans.append(Span(tile, start, end))
    if not spans:
        raise _bad("no span")
    return tuple(spans)


def _triples(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Varints three by three; the list is never held."""
    numbers = unpack_varints(data, "span stream")
    for first in numbers:
        second, third = next(numbers, None), next(numbers, None)
        if second is None or third is None:
            raise _bad("a cut list")
        yield first, second, third


def _bad(found: str) -> CorruptInput:
    limit = f"one or more ordered spans of at most {MAX_BUCKET_BYTES} bytes and {MAX_BLOCKS} blocks in all"
    return CorruptInput("span stream", found=found, expected=limit)
