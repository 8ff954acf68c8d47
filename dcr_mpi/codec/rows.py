"""The touched-row map: idle rows (of embeddings, of experts) are left out of the class coder's walk.

A row is ``row`` consecutive words of a tile, counted from the tile's first word; a block may cut one in two. What is
left of the blocks are *runs* of touched rows, and the coder takes runs for blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import CorruptInput
from .table import BlockTable
from .varints import pack_varints, unpack_varints

MIN_ROW, MAX_ROW = 16, 1 << 20


@dataclass(frozen=True)
class Runs:
    """Runs of touched rows, int64 arrays: place in the bucket array, words, and the block each lies in."""

    offset: np.ndarray
    size: np.ndarray
    block: np.ndarray


def row_counts(table: BlockTable, row: int) -> np.ndarray:
    """Rows, whole or cut, in each block: int64 (blocks,)."""
    return (table.start + table.size - 1) // row - table.start // row + 1


def touched(table: BlockTable, row: int, counts: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """For every row of every block in order, whether a change lies in it: bool (rows,)."""
    rows, ends = row_counts(table, row), np.cumsum(counts)
    out = []
    for block in range(len(table)):
        here = positions[ends[block] - counts[block] : ends[block]]
        edges = np.arange(rows[block] + 1) * row - table.start[block] % row
        found = np.searchsorted(here, np.clip(edges, 0, table.size[block]).astype(here.dtype))
        out.append(np.diff(found) > 0)
    return np.concatenate(out)


def runs_of(table: BlockTable, row: int, kept: np.ndarray) -> Runs:
    """The runs that a map of touched rows leaves."""
    rows = row_counts(table, row)
    block = np.repeat(np.arange(len(rows)), rows)
    inside = np.arange(len(block)) - np.repeat(np.cumsum(rows) - rows, rows)
    low = np.maximum((table.start[block] // row + inside) * row - table.start[block], 0)
    high = np.minimum((table.start[block] // row + inside + 1) * row - table.start[block], table.size[block])
    before = np.concatenate(([False], kept[:-1])) & (inside > 0)
    after = np.concatenate((kept[1:], [False])) & np.concatenate((inside[1:] > 0, [False]))
    begins, ends = kept & ~before, kept & ~after
    where = block[begins]
    return Runs(table.offset[where] + low[begins], high[ends] - low[begins], where)


def into_runs(
    table: BlockTable, runs: Runs, counts: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Counts per run and positions inside runs, of changes given by block; every change lies in a run."""
    at = np.repeat(table.offset, counts) + positions.astype(np.int64)
    run = np.searchsorted(runs.offset, at, side="right") - 1
    return np.bincount(run, minlength=len(runs.size)), (at - runs.offset[run]).astype(np.uint32)


def out_of_runs(
    table: BlockTable, runs: Runs, counts: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Inverse of :func:`into_runs`."""
    at = np.repeat(runs.offset, counts) + positions.astype(np.int64)
    block = np.repeat(runs.block, counts)
    return np.bincount(block, minlength=len(table)), (at - table.offset[block]).astype(np.uint32)


def pack_rows(row: int, kept: np.ndarray) -> bytes:
    """The row length as a varint, then a bitmap of the rows, lowest bit first."""
    return pack_varints([row]) + np.packbits(kept, bitorder="little").tobytes()


def unpack_rows(data: bytes, table: BlockTable) -> tuple[int, np.ndarray]:
    """Inverse of :func:`pack_rows`.

    Raises
    ------
    CorruptInput
        A row length out of its limits, or a bitmap that is not as long as the blocks have rows.
    """
    head = next((k + 1 for k, byte in enumerate(data[:10]) if byte < 0x80), 0)
    row = next(unpack_varints(data[:head], "row map"), 0)
    if not MIN_ROW <= row <= MAX_ROW:
        raise CorruptInput("row map", found=f"rows of {row} words", expected=f"{MIN_ROW} to {MAX_ROW}")
    rows = int(row_counts(table, row).sum())
    bits = np.unpackbits(np.frombuffer(data[head:], np.uint8), bitorder="little").astype(bool)
    if len(data) - head != -(-rows // 8) or bool(bits[rows:].any()) or not bool(bits.any()):
        raise CorruptInput(
            "row map", found=f"{len(data) - head} bytes", expected=f"a bitmap of {rows} rows, one touched"
        )
    return row, bits[:rows]
