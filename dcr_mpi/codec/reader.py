"""Reading a bucket, strictly: its geometry and digests first, its changes once a baseline is at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..digest import BLOCK_DIGEST_BYTES, block_digest
from ..dtypes import dtype
from ..errors import CorruptInput, GeometryError
from ..kernels.api import Changes, Kernels
from ..layout import Span
from ..wire import Bucket, Stream
from .bucket import BASE, CHANGED, CLASS, COUNTS, DENSE, GAP_ESCAPES, GAPS, PLAIN, REST, SPANS, TARGET
from .classes import most_code, unpack_model
from .compare import lots
from .rows import out_of_runs, runs_of, unpack_rows
from .table import BlockTable, block_table, is_block, unpack_spans
from .values import SCHEMES, dense_streams, read, unpack_dense, unpack_values, value_streams
from .walk import CODE, MODEL, ROWS


class BucketReader:
    """A bucket from the wire: its geometry and digests at once, its changes once a baseline is at hand.

    Attributes
    ----------
    dtype : DType
    table : BlockTable
    changed, dense, sparse : bool arrays, one entry per block
        Changed blocks are either dense or sparse.
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
        log2 = bucket.block_log2
        if bucket.positions not in (PLAIN, CLASS) or bucket.values >= len(SCHEMES) or not is_block(log2):
            raise CorruptInput(
                "bucket",
                found=f"schemes {bucket.positions}/{bucket.values}, block 2^{log2}",
                expected="those of format 1",
                remedy="update dcr-mpi at this site",
            )
        try:
            self.dtype = dtype(bucket.dtype)
        except GeometryError as error:
            raise CorruptInput("bucket", found=str(error), expected="a dtype") from None
        self.values = SCHEMES[bucket.values]
        self.by_class = bucket.positions == CLASS
        self.block = 1 << log2
        self.anchor = anchor
        spans = unpack_spans(read(self._streams, SPANS, 1 << 24), self.block, self.dtype.word_bytes)
        self.table = block_table(spans, self.block)
        blocks = len(self.table)
        self.changed = np.ones(blocks, bool) if anchor else self._bitmap(CHANGED, blocks)
        self.dense = self.changed if anchor else self._bitmap(DENSE, blocks)
        if bool((self.dense & ~self.changed).any()):
            raise CorruptInput(
                "bucket", found="a dense block that did not change", expected="dense blocks among the changed"
            )
        self.sparse = self.changed & ~self.dense
        if self.by_class and not bool(self.sparse.any()):
            raise CorruptInput("bucket", found="no block with changes by class", expected="one at least")
        self._check_streams()
        quiet = np.unique(self.table.span[~self.changed])
        self.base = self._digests(BASE, np.flatnonzero(self.changed) if not anchor else quiet, blocks)
        self.target = self._digests(TARGET, np.flatnonzero(self.changed), blocks)
        rest = self._digests(REST, quiet, len(spans))
        self.rest = {int(span): digest for span in quiet if (digest := rest[span]) is not None}
        self._counts = np.zeros(blocks, np.int64) if self.by_class else self._read_counts()

    def _check_streams(self) -> None:
        """Refuse streams that nothing here would read: every byte of a part has a meaning."""
        width = self.dtype.word_bytes
        used = {SPANS, TARGET}
        if not self.anchor:
            used |= {CHANGED, DENSE, BASE, REST}
        if bool(self.sparse.any()):
            used |= {MODEL, CODE, ROWS} if self.by_class else {COUNTS, GAPS, GAP_ESCAPES}
            if not self.by_class or self.values != "ulp":
                used |= set(value_streams(self.values, width))
        if bool(self.dense.any()):
            used |= set(dense_streams(width))
        extra = sorted(set(self._streams) - used)
        if extra:
            raise CorruptInput(
                "bucket",
                found=f"streams {extra[:8]}",
                expected=f"some of {sorted(used)}",
                remedy="update dcr-mpi at this site",
            )

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
        sparse = self.sparse
        raw = read(self._streams, COUNTS, 4 * int(sparse.sum()))
        counts = np.zeros(len(self.table), np.int64)
        if len(raw) != 4 * int(sparse.sum()):
            raise CorruptInput("stream of counts", found=f"{len(raw)} bytes", expected=f"{int(sparse.sum())} counts")
        counts[sparse] = np.frombuffer(raw, "<u4")
        if bool((counts[sparse] < 1).any()) or bool((counts > self.table.size).any()):
            raise CorruptInput(
                "stream of counts", found="a count of 0 or over its block", expected="1 to the block's words"
            )
        return counts

    def decode(self, base: np.ndarray, kernels: Kernels) -> tuple[np.ndarray, Changes]:
        """The target of all changed blocks, and what changed in them.

        Parameters
        ----------
        base : array
            Verified baseline words of the changed blocks, packed as ``table.select(flatnonzero(changed))``. For an
            anchor it may hold anything.

        Returns
        -------
        (array, Changes)
            Bucket array of the targets, packed alike; digests are the caller's to compare.

        Raises
        ------
        CorruptInput
            Streams that cannot be decoded against this base.
        """
        mine = self.table.select(np.flatnonzero(self.changed))
        target = base.copy()
        return target, self._patch(target, mine, kernels)[0]

    def patch(self, words: np.ndarray, kernels: Kernels) -> tuple[Changes, list[bytes]]:
        """:meth:`decode` in place: ``words`` is a bucket array of ``table`` whose changed blocks are verified baseline;
        they become the target, or anything where it raises. The list has the digest of each of them afterwards."""
        return self._patch(words, self.table.only(np.flatnonzero(self.changed)), kernels)

    def _patch(self, words: np.ndarray, mine: BlockTable, kernels: Kernels) -> tuple[Changes, list[bytes]]:
        assert (len(words), words.itemsize) == (mine.length, self.dtype.word_bytes)  # no kernel checks it
        none = np.empty(0, words.dtype)
        counts, positions, coded = np.zeros(len(mine), np.int64), np.empty(0, np.uint32), none
        if bool(self.sparse.any()):
            counts, positions, coded = (self._classes if self.by_class else self._plain)(mine, words, kernels)
        dense = self._place_dense(words, mine, kernels) if bool(self.dense.any()) else None
        # A few blocks at a time, which stay in the cache until their digest is taken.
        ends, old, new, digests = np.cumsum(counts), [none], [none], []
        for first, last in lots(mine, kernels.lot // words.itemsize):
            here = slice(int(ends[first] - counts[first]), int(ends[last - 1]))
            place = mine.offset[first:last], counts[first:last], positions[here]
            old.append(kernels.gather(words, *place))
            new.append(kernels.restore(self.values, old[-1], coded[here], self.dtype))
            kernels.scatter(words, *place, new[-1])
            digests += [block_digest(mine.view(words, block)) for block in range(first, last)]
        changes = Changes(counts, positions, np.concatenate(old), np.concatenate(new))
        return (changes if dense is None else _merged(changes, *dense)), digests

    def _plain(self, mine: BlockTable, base: np.ndarray, kernels: Kernels) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Counts, positions and coded values of the changed blocks; dense ones have none."""
        counts = self._counts[self.changed]
        total = int(counts.sum())
        gaps = np.frombuffer(read(self._streams, GAPS, total), np.uint8)
        escapes = read(self._streams, GAP_ESCAPES, 4 * total)
        if len(escapes) % 4:
            raise CorruptInput("gap escapes", found=f"{len(escapes)} bytes", expected="a multiple of 4")
        positions = kernels.unpack_gaps(gaps, np.frombuffer(escapes, "<u4"), counts, mine.size)
        return counts, positions, unpack_values(self.values, self._streams, total, self.dtype)

    def _classes(
        self, mine: BlockTable, base: np.ndarray, kernels: Kernels
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        sparse = self.sparse[self.changed]
        offsets, sizes = mine.offset[sparse], mine.size[sparse]
        runs = None
        if ROWS in self._streams:
            where = mine.only(sparse)
            runs = runs_of(where, *unpack_rows(read(self._streams, ROWS, 16 + int(sizes.sum()) // 8), where))
            offsets, sizes = runs.offset, runs.size
        words = int(sizes.sum())
        raw = read(self._streams, MODEL, 1 << 20)
        model, bound, total = unpack_model(raw, self.dtype, words)
        code = read(self._streams, CODE, most_code(self.dtype, total, words))
        if len(code) % 4:
            raise CorruptInput("class code", found=f"{len(code)} bytes", expected="a multiple of 4")
        words_of_code = np.frombuffer(code, "<u4")
        used, found, positions, coded = kernels.hazard_decode(model, bound, base, offsets, sizes, total, words_of_code)
        if used != len(words_of_code) or bool((found < 1).any()):
            raise CorruptInput(
                "class code",
                found=f"{used} of {len(words_of_code)} words read",
                expected="all of them, and a change in each block",
            )
        if runs is not None:
            found, positions = out_of_runs(where, runs, found, positions)
            if bool((found < 1).any()):
                raise CorruptInput("class code", found="a block without changes", expected="a change in each block")
        counts = np.zeros(len(mine), np.int64)
        counts[sparse] = found
        if self.values != "ulp":
            if coded.any():
                raise CorruptInput(
                    "class code", found="values in it", expected=f"values in the streams of {self.values}"
                )
            coded = unpack_values(self.values, self._streams, total, self.dtype)
        return counts, positions, coded

    def _place_dense(self, words: np.ndarray, mine: BlockTable, kernels: Kernels) -> tuple[np.ndarray, Changes]:
        """Put the dense blocks into ``words``: which of the changed blocks they are, and what changed in them."""
        blocks = np.flatnonzero(self.dense[self.changed])
        packed = mine.select(blocks)
        whole = unpack_dense(self._streams, int(packed.size.sum()), self.dtype)
        before, after = np.zeros(packed.length, words.dtype), np.zeros(packed.length, words.dtype)
        ends = np.cumsum(packed.size).tolist()
        for k, block in enumerate(blocks.tolist()):
            packed.view(before, k)[...] = mine.view(words, block)
            mine.view(words, block)[...] = packed.view(after, k)[...] = whole[ends[k] - packed.size[k] : ends[k]]
        return blocks, kernels.changes(before, after, packed.offset, packed.size)


def _merged(sparse: Changes, blocks: np.ndarray, dense: Changes) -> Changes:
    """The changes of all blocks, from those of all (none in the dense ones) and of the dense ones, ``blocks``."""
    counts = sparse.counts.copy()
    counts[blocks] = dense.counts
    owner = np.concatenate([np.repeat(np.arange(len(counts)), sparse.counts), np.repeat(blocks, dense.counts)])
    order = np.argsort(owner, kind="stable")
    columns = ((sparse.positions, dense.positions), (sparse.old, dense.old), (sparse.new, dense.new))
    return Changes(counts, *(np.concatenate(column)[order] for column in columns))


class Cover:
    """The spans of a part, as its buckets must hold them: exactly, in order, each word once, in the right dtype and
    blocks. Every bucket is checked before anything is read or allocated for its words, so that a part costs no more
    than what it covers, whatever it repeats.

    Parameters
    ----------
    what : str
        The part, for messages.
    wanted : sequence of Span
        Its spans in the tiling.
    name_of : mapping of tile to dtype name
    block : int
        The tiling's words per block.
    """

    def __init__(self, what: str, wanted: Sequence[Span], name_of: Mapping[int, str], block: int) -> None:
        self._what, self._wanted, self._name_of, self._block = what, wanted, name_of, block
        self._next, self._at = 0, wanted[0].start if wanted else 0

    @property
    def buckets(self) -> int:
        """How many buckets the part can have: each holds a block at least."""
        return sum(-(-(s.stop - s.start) // self._block) for s in self._wanted)

    def take(self, reader: BucketReader) -> None:
        """The next bucket; raises CorruptInput unless it goes on where the one before ended."""
        for span in reader.table.spans:
            room = self._wanted[self._next] if self._next < len(self._wanted) else None
            follows = room is not None and (span.tile, span.start) == (room.tile, self._at) and span.stop <= room.stop
            if not follows or self._name_of[span.tile] != reader.dtype.name or reader.block != self._block:
                where = "no more" if room is None else f"words {self._at}..{room.stop} of tile {room.tile}"
                raise CorruptInput(
                    self._what,
                    found=f"words {span.start}..{span.stop} of tile {span.tile}, {reader.dtype.name}, "
                    f"in blocks of {reader.block}",
                    expected=f"{where}, in the tiling's dtype and blocks of {self._block}",
                )
            self._at = span.stop
            if room is not None and span.stop == room.stop:
                self._next += 1
                self._at = self._wanted[self._next].start if self._next < len(self._wanted) else 0

    def finish(self) -> None:
        """After the last bucket; raises CorruptInput where something is left out."""
        if self._next < len(self._wanted):
            span = self._wanted[self._next]
            raise CorruptInput(
                self._what,
                found=f"nothing for words {self._at}..{span.stop} of tile {span.tile}",
                expected=f"its {len(self._wanted)} spans of the tiling",
            )
