"""One bucket, both ways: changes of some spans of one dtype against their baseline.

Positions are gaps between changes inside a block; values are overwritten words, XOR masks or ulp differences; a
block that changed almost everywhere travels whole. Every changed block carries the digests of its base and of its
target; the unchanged blocks of a span share one digest of their base, so a part checks the whole baseline that it
covers, at a few bytes. Without a base (an anchor) every block is dense and has a target digest only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..digest import BLOCK_DIGEST_BYTES, block_digest, running_block_digest
from ..dtypes import DType, dtype
from ..errors import CorruptInput
from ..kernels.api import Changes, Kernels, ValueScheme
from ..layout import Span
from ..wire import Bucket, Stream, pack_bucket
from .table import MAX_BLOCK_LOG2, MIN_BLOCK_LOG2, BlockTable, block_table, pack_spans, unpack_spans
from .values import SCHEMES, SMALL_ESCAPES, pack_dense, pack_values, read, unpack_dense, unpack_values

PLAIN = 0  # position scheme: gaps in tile order
SPANS, CHANGED, DENSE, COUNTS, BASE, REST, TARGET, GAPS, GAP_ESCAPES = range(1, 10)
KNOWN_STREAMS = frozenset([*range(SPANS, SMALL_ESCAPES + 1), *range(16, 24), *range(32, 40)])


@dataclass(frozen=True)
class Scheme:
    """How to code: ``positions`` "plain" or "dense", ``values``, zstd ``level`` or None for no entropy stage."""

    positions: str = "plain"
    values: ValueScheme = "ulp"
    level: int | None = 1


def encode(
    scheme: Scheme, name: str, table: BlockTable, block: int,
    base: np.ndarray | None, new: np.ndarray, changes: Changes | None, kernels: Kernels,
) -> bytes:  # fmt: skip
    """Serialise one bucket.

    Parameters
    ----------
    name : str
        Canonical dtype of every span.
    table : BlockTable
        Blocks of ``block`` words; ``base`` and ``new`` are bucket arrays of it.
    base, changes
        The baseline and what changed; both None for an anchor.
    """
    kind = dtype(name)
    if changes is None or base is None:
        changed = np.ones(len(table), bool)
        dense, streams = changed, {}
    else:
        changed = changes.counts > 0
        dense = changed.copy() if scheme.positions == "dense" else _dense(scheme, changes, table, kind, kernels)
        streams = _sparse(scheme, changes, dense, kind, kernels) | _base_digests(table, base, changed)
        streams[CHANGED] = np.packbits(changed, bitorder="little").tobytes()
        streams[DENSE] = np.packbits(dense, bitorder="little").tobytes() if dense.any() else b""
    streams[SPANS] = pack_spans(table.spans, block)
    streams[TARGET] = b"".join(block_digest(table.view(new, b)) for b in np.flatnonzero(changed))
    if dense.any():
        streams |= pack_dense(np.concatenate([table.view(new, b) for b in np.flatnonzero(dense)]), kind)
    values = SCHEMES.index(scheme.values)
    return pack_bucket(Bucket(PLAIN, values, block.bit_length() - 1, name, streams), scheme.level)


def _dense(scheme: Scheme, changes: Changes, table: BlockTable, kind: DType, kernels: Kernels) -> np.ndarray:
    """Blocks that are smaller whole, by a cheap estimate in sixteenths of a byte (integers: the same on any machine).

    A gap costs about half a byte, a small ulp difference 6/16, an escaped one its word too, a plain word 13/16 of
    its bytes; a dense float word shrinks to about 0.7 (exponents repeat), a dense integer is taken as it is.
    """
    width = kind.word_bytes
    each = 8 + (6 if scheme.values == "ulp" and width > 1 else 13 * width)
    cost = changes.counts * each
    if scheme.values == "ulp" and width > 1:
        far = kernels.difference("ulp", changes.old, changes.new, kind) >= 255
        far_before = np.concatenate(([0], np.cumsum(far)))
        ends = np.cumsum(changes.counts)
        cost = cost + 16 * width * (far_before[ends] - far_before[ends - changes.counts])
    return cost > table.size * width * (11 if kind.is_float else 16)


def _sparse(scheme: Scheme, changes: Changes, dense: np.ndarray, kind: DType, kernels: Kernels) -> dict[int, bytes]:
    counts, positions, old, new = changes.counts, changes.positions, changes.old, changes.new
    if dense.any():
        keep = np.repeat(~dense, counts)
        counts, positions, old, new = counts[~dense], positions[keep], old[keep], new[keep]
    gaps, escapes = kernels.pack_gaps(positions, counts)
    streams = {COUNTS: counts[counts > 0].astype("<u4").tobytes(), GAPS: gaps.tobytes(), GAP_ESCAPES: escapes.tobytes()}
    return streams | pack_values(scheme.values, old, new, kind, kernels)


def _base_digests(table: BlockTable, base: np.ndarray, changed: np.ndarray) -> dict[int, bytes]:
    own = b"".join(block_digest(table.view(base, b)) for b in np.flatnonzero(changed))
    return {BASE: own, REST: b"".join(rest_digests(table, base, changed).values())}


def rest_digests(table: BlockTable, base: np.ndarray, changed: np.ndarray) -> dict[int, bytes]:
    """For every span with unchanged blocks, by span index: one digest over those blocks' base, in order."""
    running: dict[int, object] = {}
    for b in np.flatnonzero(~changed):
        running.setdefault(int(table.span[b]), running_block_digest()).update(table.view(base, b))  # type: ignore[attr-defined]
    return {span: state.digest() for span, state in running.items()}  # type: ignore[attr-defined]


class BucketReader:
    """A bucket from the wire: its geometry and digests at once, its changes once a baseline is at hand.

    Attributes
    ----------
    dtype : DType
    table : BlockTable
    changed, dense : bool arrays, one entry per block
    base, target : list of bytes or None, one digest per block where there is one
    rest : dict of span index to digest
    anchor : bool
        No baseline: every block is whole.

    Raises
    ------
    CorruptInput
        Unknown scheme or stream, or streams that do not fit each other.
    """

    def __init__(self, bucket: Bucket, anchor: bool) -> None:
        self._streams: Mapping[int, Stream] = bucket.streams  # type: ignore[assignment]
        unknown = sorted(set(self._streams) - KNOWN_STREAMS)
        log2 = bucket.block_log2
        if bucket.positions != PLAIN or bucket.values >= len(SCHEMES) or unknown or not MIN_BLOCK_LOG2 <= log2 <= MAX_BLOCK_LOG2:
            raise CorruptInput("bucket", found=f"schemes {bucket.positions}/{bucket.values}, block 2^{log2}, streams {unknown}",
                               expected="those of format 1", remedy="update dcr-mpi at this site")  # fmt: skip
        try:
            self.dtype = dtype(bucket.dtype)
        except Exception as error:
            raise CorruptInput("bucket", found=str(error), expected="a dtype") from None
        self.values = SCHEMES[bucket.values]
        self.block = 1 << log2
        self.anchor = anchor
        spans = unpack_spans(read(self._streams, SPANS, 1 << 24), self.block, self.dtype.word_bytes)
        self.table = block_table(spans, self.block)
        blocks = len(self.table)
        self.changed = np.ones(blocks, bool) if anchor else self._bitmap(CHANGED, blocks)
        self.dense = self.changed if anchor else self._bitmap(DENSE, blocks)
        if bool((self.dense & ~self.changed).any()):
            raise CorruptInput("bucket", found="a dense block that did not change", expected="dense blocks among the changed")
        quiet = np.unique(self.table.span[~self.changed])
        self.base = self._digests(BASE, np.flatnonzero(self.changed) if not anchor else quiet, blocks)
        self.target = self._digests(TARGET, np.flatnonzero(self.changed), blocks)
        rest = self._digests(REST, quiet, len(spans))
        self.rest = {int(span): digest for span in quiet if (digest := rest[span]) is not None}
        self._counts = self._read_counts()
        self._unpacked: tuple[np.ndarray, np.ndarray] | None = None

    def _bitmap(self, number: int, blocks: int) -> np.ndarray:
        raw = read(self._streams, number, -(-blocks // 8))
        if not raw:
            return np.zeros(blocks, bool)
        bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little").astype(bool)
        if len(raw) != -(-blocks // 8) or bool(bits[blocks:].any()):
            raise CorruptInput(f"stream {number}", found=f"{len(raw)} bytes", expected=f"a bitmap of {blocks} bits")
        return bits[:blocks]

    def _digests(self, number: int, which: np.ndarray, slots: int) -> list[bytes | None]:
        raw = read(self._streams, number, len(which) * BLOCK_DIGEST_BYTES)
        if len(raw) != len(which) * BLOCK_DIGEST_BYTES:
            raise CorruptInput(f"stream {number}", found=f"{len(raw)} bytes", expected=f"{len(which)} digests")
        out: list[bytes | None] = [None] * slots
        for k, slot in enumerate(which):
            out[slot] = raw[k * BLOCK_DIGEST_BYTES : (k + 1) * BLOCK_DIGEST_BYTES]
        return out

    def _read_counts(self) -> np.ndarray:
        sparse = self.changed & ~self.dense
        raw = read(self._streams, COUNTS, 4 * int(sparse.sum()))
        counts = np.zeros(len(self.table), np.int64)
        if len(raw) != 4 * int(sparse.sum()):
            raise CorruptInput("stream of counts", found=f"{len(raw)} bytes", expected=f"{int(sparse.sum())} counts")
        counts[sparse] = np.frombuffer(raw, "<u4")
        if bool((counts[sparse] < 1).any()) or bool((counts > self.table.size).any()):
            raise CorruptInput("stream of counts", found="a count of 0 or over its block", expected="1 to the block's words")
        return counts

    def _sparse(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions and coded values of every sparse block, unpacked once."""
        if self._unpacked is None:
            total = int(self._counts.sum())
            gaps = np.frombuffer(read(self._streams, GAPS, total), np.uint8)
            escapes = read(self._streams, GAP_ESCAPES, 4 * total)
            if len(escapes) % 4:
                raise CorruptInput("gap escapes", found=f"{len(escapes)} bytes", expected="a multiple of 4")
            positions = self._kernels.unpack_gaps(gaps, np.frombuffer(escapes, "<u4"), self._counts, self.table.size)
            self._unpacked = positions, unpack_values(self.values, self._streams, total, self.dtype)
        return self._unpacked

    def decode(self, blocks: np.ndarray, base: np.ndarray, kernels: Kernels) -> tuple[np.ndarray, Changes]:
        """The target of the given changed blocks, and what changed in them.

        Parameters
        ----------
        blocks : int array
            Indices of changed blocks, increasing. For an anchor ``base`` may hold anything.
        base : array
            Their verified baseline words, packed as ``table.select(blocks)``.

        Returns
        -------
        (array, Changes)
            Bucket array of the targets, packed alike; digests are the caller's to compare.
        """
        self._kernels = kernels
        mine = self.table.select(blocks)
        target = base.copy()
        picked = self._counts[blocks]
        positions, coded = self._sparse()
        if len(blocks) != len(self.table):
            begin = np.cumsum(self._counts) - self._counts
            keep = np.repeat(begin[blocks] - (np.cumsum(picked) - picked), picked) + np.arange(int(picked.sum()))
            positions, coded = positions[keep], coded[keep]
        old = kernels.gather(base, mine.offset, picked, positions)
        new = kernels.restore(self.values, old, coded, self.dtype)
        kernels.scatter(target, mine.offset, picked, positions, new)
        if not bool(self.dense[blocks].any()):
            return target, Changes(picked, positions, old, new)
        self._place_dense(blocks, mine, target)
        return target, kernels.changes(base, target, mine.offset, mine.size)

    def _place_dense(self, blocks: np.ndarray, mine: BlockTable, target: np.ndarray) -> None:
        sizes = np.where(self.dense, self.table.size, 0)
        whole = unpack_dense(self._streams, int(sizes.sum()), self.dtype)
        begin = np.cumsum(sizes) - sizes
        for k, block in enumerate(blocks):
            if self.dense[block]:
                mine.view(target, k)[...] = whole[begin[block] : begin[block] + sizes[block]]


def check_spans(reader: BucketReader, allowed: Sequence[Span], name_of: Mapping[int, str]) -> None:
    """Check that a bucket covers only spans that its part may hold, with the right dtype (``name_of`` by tile).

    Raises
    ------
    CorruptInput
    """
    limits = {s.tile: s for s in allowed}
    for span in reader.table.spans:
        room = limits.get(span.tile)
        if room is None or span.start < room.start or span.stop > room.stop or name_of[span.tile] != reader.dtype.name:
            raise CorruptInput("bucket", found=f"words {span.start}..{span.stop} of tile {span.tile}, {reader.dtype.name}",
                               expected="the spans and dtypes of its part in the tiling")  # fmt: skip
