"""The class coder's walk over a bucket: the words it passes, the model that fits them, the code of the changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..dtypes import DType
from ..kernels.api import Changes, Kernels
from ..kernels.hazard import Model, axis
from .classes import fit, most_code, pack_model
from .rows import MAX_ROW, MIN_ROW, into_runs, pack_rows, runs_of, touched
from .table import BlockTable

MODEL, CODE, ROWS = 12, 13, 14
_ENOUGH = 21  # log2 of the words that tell how many words each exponent has: rare ones count, where much changes
_FEW = 1 << 14  # words that are all looked at


@dataclass(frozen=True)
class Walk:
    """Places passed (``table`` of whole blocks, or of runs of touched rows), the changes in them, the map of rows."""

    table: BlockTable
    changes: Changes
    rows: bytes = b""
    map_bits: float = 0.0

    @property
    def words(self) -> int:
        return int(self.table.size.sum())


@dataclass(frozen=True)
class Fit:
    """A walk with its model, and the bytes that it promises."""

    walk: Walk
    model: Model
    bits: float

    @property
    def promised(self) -> float:
        return (self.bits + self.walk.map_bits) / 8


def best_walk(
    kind: DType, base: np.ndarray, table: BlockTable, changes: Changes, coded: np.ndarray, row: int, kernels: Kernels
) -> Fit:
    """The better of passing every word and passing touched rows of ``row`` words only (0: rows are not known)."""
    walks = [Walk(table, changes), *_by_rows(table, changes, row)]
    fits = [Fit(w, *fit(kind, base, w.table, w.changes, coded, kernels, _step(w.words))) for w in walks]
    return min(fits, key=lambda f: f.promised)


def _step(words: int) -> int:
    """One of how many pieces to look at."""
    return 1 if words <= _FEW else max(4, words >> _ENOUGH)


def _by_rows(table: BlockTable, changes: Changes, row: int) -> list[Walk]:
    """The walk over touched rows, where clearly fewer are touched than chance would touch."""
    if not MIN_ROW <= row <= MAX_ROW:
        return []
    kept = touched(table, row, changes.counts, changes.positions)
    share = float(kept.mean())
    density = len(changes.positions) / int(table.size.sum())
    if share == 1 or share > 0.9 * -math.expm1(-density * row):
        return []
    runs = runs_of(table, row, kept)
    counts, positions = into_runs(table, runs, changes.counts, changes.positions)
    placed = BlockTable(
        table.spans, table.span[runs.block], table.start[runs.block], runs.size, runs.offset, table.length
    )
    bits = -len(kept) * (share * math.log2(share) + (1 - share) * math.log2(1 - share))
    return [Walk(placed, Changes(counts, positions, changes.old, changes.new), pack_rows(row, kept), bits)]


def code_walk(kind: DType, base: np.ndarray, found: Fit, coded: np.ndarray, kernels: Kernels) -> dict[int, bytes]:
    """The streams of a walk.

    Where the exponents have the sample's period, what it saw misleads; the code is then longer than promised, and the
    model is fitted again with every word looked at.
    """
    walk, model, bits = found.walk, found.model, found.bits
    code = _code(base, walk, model, coded, kernels)
    if code.nbytes > min(bits / 7 + (walk.words >> 14) + 64, most_code(kind, len(coded), walk.words)):
        model, _ = fit(kind, base, walk.table, walk.changes, coded, kernels, 1)
        code = _code(base, walk, model, coded, kernels)
    return {MODEL: pack_model(model, len(coded)), CODE: code.astype("<u4").tobytes(), ROWS: walk.rows}


def _code(base: np.ndarray, walk: Walk, model: Model, coded: np.ndarray, kernels: Kernels) -> np.ndarray:
    hazards = kernels.hazards(model, base, walk.table.offset, walk.table.size, walk.changes)
    return kernels.hazard_encode(model, axis(model.log2), hazards, walk.changes.old, coded)
