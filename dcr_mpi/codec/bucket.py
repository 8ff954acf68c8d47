"""Writing a bucket: changes of some spans of one dtype against their baseline.

Positions are coded by class (see :mod:`.classes`) or as plain gaps between changes inside a block; values are ulp
differences, XOR masks or overwritten words; a block that changed almost everywhere travels whole. Every changed block
carries the digests of its base and of its target; the unchanged blocks of a span share one digest of their base, so a
part checks the whole baseline that it covers, at a few bytes. Without a base (an anchor) every block is dense and has
a target digest only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..dtypes import DType, dtype
from ..errors import GeometryError
from ..kernels.api import Changes, Kernels, ValueScheme
from ..wire import Bucket, pack_bucket, packed_size
from .compare import Digests, digests_of
from .table import MAX_BLOCKS, MAX_BUCKET_BYTES, BlockTable, is_block, pack_spans
from .values import SCHEMES, pack_dense, pack_values
from .walk import best_walk, code_walk

PLAIN, CLASS = 0, 1  # position schemes: gaps in tile order, and by class of the baseline
SPANS, CHANGED, DENSE, COUNTS, BASE, REST, TARGET, GAPS, GAP_ESCAPES = range(1, 10)
_TRIAL_WORDS, _STRIP = 1 << 16, 1 << 12
_STREAMS = 20  # bytes of the headers of the class coder's two streams
# Dense bytes per second of encode and decode together, one thread: see docs/benchmarks.md.
CLASS_SPEED, PLAIN_SPEED = 0.35e9, 0.6e9


ValueChoice = ValueScheme | Literal["mixed"]


@dataclass(frozen=True)
class Scheme:
    """How to code: ``positions`` "auto", "class", "plain" or "dense", ``values``, zstd ``level`` or None for none.

    Values "mixed" is XOR or overwrite, whichever makes the bucket smaller.

    "auto" weighs class against plain for every bucket: by size, or by time where ``link``, the bytes per second that
    one rank has to the other side, is known (see :func:`_by_class`).
    """

    positions: str = "auto"
    values: ValueChoice = "ulp"
    level: int | None = 1
    link: float | None = None

    @property
    def value(self) -> ValueScheme:
        """The value scheme of a bucket; "mixed" is settled before."""
        assert self.values != "mixed"
        return self.values

    @property
    def trial(self) -> int | None:
        """The level at which forms are weighed: which one wins hardly depends on it."""
        return None if self.level is None else 1


def encode(
    scheme: Scheme,
    name: str,
    table: BlockTable,
    block: int,
    base: np.ndarray | None,
    new: np.ndarray | None,
    changes: Changes | None,
    kernels: Kernels,
    row: int = 0,
    digests: Digests | None = None,
) -> bytes:
    """Serialise one bucket.

    Parameters
    ----------
    name : str
        Canonical dtype of every span.
    table : BlockTable
        Blocks of ``block`` words; ``base`` and ``new`` are bucket arrays of it.
    base, changes
        The baseline and what changed; both None for an anchor.
    new
        May be None where the baseline, what changed and the digests say all of it.
    row : int
        Words of a tensor row, for the map of touched rows; 0 where the spans have no common one.
    digests : Digests, optional
        Where they are at hand.

    Raises
    ------
    GeometryError
        More than a reader takes: ``MAX_BLOCKS`` blocks, ``MAX_BUCKET_BYTES`` bytes, or blocks of an odd size.
    """
    if scheme.values == "mixed":
        both = (replace(scheme, values=v) for v in ("xor", "overwrite"))
        return min((encode(s, name, table, block, base, new, changes, kernels, row, digests) for s in both), key=len)
    kind = dtype(name)
    size = int(table.size.sum()) * kind.word_bytes
    log2 = block.bit_length() - 1
    if len(table) > MAX_BLOCKS or size > MAX_BUCKET_BYTES or block != 1 << log2 or not is_block(log2):
        raise GeometryError(
            "bucket",
            found=f"{len(table)} blocks of up to {block} words, {size} bytes in all",
            expected=f"at most {MAX_BLOCKS} blocks of a power of two words and {MAX_BUCKET_BYTES} bytes",
            remedy="choose another block size or smaller buckets",
        )
    if changes is None or base is None:
        changed = np.ones(len(table), bool)
        dense, positions = changed, PLAIN
        streams: dict[int, bytes] = {}
    else:
        changed = changes.counts > 0
        dense = changed.copy() if scheme.positions == "dense" else _dense(scheme, changes, table, base, kind, kernels)
        positions, streams = _positions(scheme, table, base, changes, dense, kind, row, kernels)
        streams[CHANGED] = np.packbits(changed, bitorder="little").tobytes()
        streams[DENSE] = np.packbits(dense, bitorder="little").tobytes() if dense.any() else b""
    streams[SPANS] = pack_spans(table.spans, block)
    if digests is None:
        assert new is not None
        digests = digests_of(table, base, new, changed)
    streams |= {BASE: digests.base, REST: digests.rest, TARGET: digests.target}
    if base is None or changes is None:
        assert new is not None
        streams |= pack_dense(np.concatenate([table.view(new, block) for block in range(len(table))]), kind)
    elif dense.any():
        some = table.only(np.flatnonzero(dense))
        streams |= pack_dense(_whole(some, base, _these(changes, dense), kernels), kind)
    values = SCHEMES.index(scheme.value)
    return pack_bucket(Bucket(positions, values, log2, name, streams), scheme.level)


def _positions(
    scheme: Scheme,
    table: BlockTable,
    base: np.ndarray,
    changes: Changes,
    dense: np.ndarray,
    kind: DType,
    row: int,
    kernels: Kernels,
) -> tuple[int, dict[int, bytes]]:
    """The position scheme of a bucket and the streams of its sparse blocks."""
    if scheme.positions in ("plain", "dense") or not bool((changes.counts[~dense] > 0).any()):
        return PLAIN, _sparse(scheme, changes, dense, kind, kernels)
    blocks = np.flatnonzero((changes.counts > 0) & ~dense)
    here, mine = _these(changes, (changes.counts > 0) & ~dense), table.only(blocks)
    size, plain, plain_size = int(mine.size.sum()) * kind.word_bytes, None, 0
    if scheme.positions == "auto":
        plain = _sparse(scheme, changes, dense, kind, kernels)
        plain_size = packed_size(plain, scheme.trial)
        if not _by_class(scheme, 0, plain_size, size):  # on so fast a link nothing that classes make would be shorter
            return PLAIN, plain
    # Values other than ulp differences keep their streams; the class coder then sees one value, which costs nothing.
    ulp = scheme.value == "ulp"
    coded = kernels.difference("ulp", here.old, here.new, kind) if ulp else np.zeros_like(here.new)
    values = {} if ulp else pack_values(scheme.value, here.old, here.new, kind, kernels)
    found = best_walk(kind, base, mine, here, coded, row, kernels)
    if plain is not None:
        promised = found.promised + _STREAMS + packed_size(values, scheme.trial)
        if not _by_class(scheme, promised, plain_size, size):
            return PLAIN, plain
    return CLASS, code_walk(kind, base, found, coded, kernels) | values


def _by_class(scheme: Scheme, promised: float, plain: int, dense_bytes: int) -> bool:
    """Whether the class coder makes the refit shorter than plain gaps do.

    With no link rate the smaller form wins. With one, a form's time is what coding its dense bytes takes on both
    sides plus what sending its payload takes; only the difference between the two forms' speeds matters.
    """
    spared = plain - promised
    if scheme.link is None:
        return spared > 0
    return spared / scheme.link > dense_bytes * (1 / CLASS_SPEED - 1 / PLAIN_SPEED)


def _dense(
    scheme: Scheme, changes: Changes, table: BlockTable, base: np.ndarray, kind: DType, kernels: Kernels
) -> np.ndarray:
    """Blocks that are smaller whole.

    Few changes are never worth a whole block; where more than a quarter of the words changed, both forms are made and
    weighed: of small neighbouring blocks together, up to about ``_TRIAL_WORDS`` words, and of a larger one by a sample.
    """
    dense = np.zeros(len(table), bool)
    candidates = np.flatnonzero(changes.counts * 4 > table.size)
    if not len(candidates):
        return dense
    lot = np.cumsum(table.size) // _TRIAL_WORDS
    apart = (np.diff(candidates) > 1) | (np.diff(lot[candidates]) > 0)
    ends = np.cumsum(changes.counts)
    for run in np.split(candidates, np.flatnonzero(apart) + 1):
        here = slice(int(ends[run[0]] - changes.counts[run[0]]), int(ends[run[-1]]))
        some = Changes(changes.counts[run], changes.positions[here], changes.old[here], changes.new[here])
        tried = table.only(run)
        if len(run) == 1 and int(tried.size[0]) > _TRIAL_WORDS:
            tried, some = _strips(tried, some)
        sparse = _sparse(scheme, some, np.zeros(len(tried), bool), kind, kernels)
        whole = pack_dense(_whole(tried, base, some, kernels), kind)
        dense[run] = packed_size(whole, scheme.trial) < packed_size(sparse, scheme.trial)
    return dense


def _strips(table: BlockTable, changes: Changes) -> tuple[BlockTable, Changes]:
    """Every fourth strip of a single block as a block of its own, and what changed there."""
    first = np.arange(0, int(table.size[0]), 4 * _STRIP)
    size = np.minimum(table.size[0] - first, _STRIP)
    low, high = np.searchsorted(changes.positions, [first, first + size])
    index = np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)])
    counts = high - low
    positions = changes.positions[index] - np.repeat(first, counts).astype(np.uint32)
    span, start, offset = np.full(len(first), table.span[0]), table.start[0] + first, table.offset[0] + first
    strips = BlockTable(table.spans, span, start, size, offset, table.length)
    return strips, Changes(counts, positions, changes.old[index], changes.new[index])


def _whole(table: BlockTable, base: np.ndarray, changes: Changes, kernels: Kernels) -> np.ndarray:
    """The new words of all blocks of a table, one after another, from their base and what changed in them."""
    packed = table.select(np.arange(len(table)))
    new = np.zeros(packed.length, base.dtype)
    for block in range(len(table)):
        packed.view(new, block)[...] = table.view(base, block)
    kernels.scatter(new, packed.offset, changes.counts, changes.positions, changes.new)
    return np.concatenate([packed.view(new, block) for block in range(len(table))])


def _these(changes: Changes, blocks: np.ndarray) -> Changes:
    """The changes of some blocks (bool, one entry per block)."""
    if bool(blocks.all()):
        return changes
    moved = np.repeat(blocks, changes.counts)
    return Changes(changes.counts[blocks], changes.positions[moved], changes.old[moved], changes.new[moved])


def _sparse(scheme: Scheme, changes: Changes, dense: np.ndarray, kind: DType, kernels: Kernels) -> dict[int, bytes]:
    here = _these(changes, ~dense)
    counts, positions, old, new = here.counts, here.positions, here.old, here.new
    gaps, escapes = kernels.pack_gaps(positions, counts)
    streams = {COUNTS: counts[counts > 0].astype("<u4").tobytes(), GAPS: gaps.tobytes(), GAP_ESCAPES: escapes.tobytes()}
    return streams | pack_values(scheme.value, old, new, kind, kernels)
