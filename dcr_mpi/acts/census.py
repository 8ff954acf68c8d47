"""What changed between two checkpoints: how much, where, by how far, and what each way to code it would cost.

Works on directories of shards alone, without store or configuration; memory is bounded by a bucket of each side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint, check_shard, default_layout
from ..codec import MAX_BLOCKS, BlockTable, block_table
from ..dtypes import dtype
from ..errors import GeometryError, NotReady, UsageError
from ..hdf5 import Inventory, checkpoint_inventory
from ..kernels.api import Kernels
from ..layout import Place, Placement, Span, check_layout, make_tiles, tensors_of, tile_words
from ..model import Box, Layout, Policy
from .kinds import kind_of, layer_of
from .tally import SCHEMES, Tally, scheme_rows

BLOCK = 1 << 18  # words


@dataclass(frozen=True)
class CensusJob:
    """``sample_bytes`` of dense bytes, about, are coded by every scheme; the counts always cover everything."""

    base: Path
    new: Path
    layout: Layout | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    sample_bytes: int = 256 << 20
    bucket_bytes: int = 32 << 20


@dataclass(frozen=True)
class _Item:
    """Words of a tensor or a part of one, at the same place in both checkpoints."""

    name: str
    dtype: str
    place: Place
    words: int
    row: int  # words of a row; 0 where there are none

    @property
    def bytes(self) -> int:
        return self.words * dtype(self.dtype).word_bytes


def census(job: CensusJob, kernels: Kernels, began: Callable[[int], Callable[[int], None]]) -> dict[str, Any]:
    """Compare two checkpoints and count.

    Parameters
    ----------
    began : callable
        Told the dense bytes of a side once they are known; what it returns is told the bytes done, now and then.

    Returns
    -------
    dict
        ``words``, ``changed``, ``dense_bytes`` and ``coded_bytes`` in all; ``kinds`` (names with their numbers left
        out) and ``layers`` (the first number in a name); ``dtypes``, as :meth:`.tally.Tally.report` gives them; and
        ``schemes``, the expected payload of everything.

    Raises
    ------
    NotReady, CorruptInput
        A directory or shard is missing or incomplete, or the shards of one side are of several steps.
    GeometryError
        The checkpoints or the layout do not fit each other.
    UsageError
        A pattern of ``dtypes`` that fits no dataset.
    """
    layout, found = _sides(job)
    _check_patterns(job.dtypes, [shard for side in found for shard in side])
    steps = [side[0].step if side else None for side in found]
    items = _as_they_lie(layout) if job.layout is None else _canonical(layout)
    total = sum(item.bytes for item in items)
    done = began(total)
    with Checkpoint(job.base, layout, dtypes=job.dtypes) as base, Checkpoint(job.new, layout, dtypes=job.dtypes) as new:
        counting = _Counting(base, new, items, kernels, min(1.0, job.sample_bytes / max(total, 1)))
        for spans in _buckets(items, job.bucket_bytes):
            done(counting.bucket(spans))
    return {"act": "census", "base": str(job.base), "new": str(job.new), "steps": steps, **counting.report()}


def _sides(job: CensusJob) -> tuple[Layout, list[tuple[Inventory, ...]]]:
    """The layout, and the shards of both directories, which must be as it says.

    Nobody need wait for a checkpoint here, or begin a policy: the next step is to name other directories.
    """
    try:
        layout = default_layout("census", job.base, dtypes=job.dtypes) if job.layout is None else job.layout
        files = [s.file for s in layout.shards]
        found = [checkpoint_inventory(side, files, dtypes=job.dtypes) for side in (job.base, job.new)]
    except NotReady as error:
        remedy = "name directories of finished checkpoints, and the layout that they were written in if any"
        raise NotReady(error.what, found=error.found, expected=error.expected, remedy=remedy) from None
    try:
        for side in found:
            for shard, expected in zip(side, layout.shards, strict=True):
                check_shard(shard, expected)
    except GeometryError as error:
        remedy = "name two checkpoints of one run, and their own layout if any"
        raise GeometryError(error.what, found=error.found, expected=error.expected, remedy=remedy) from None
    return layout, found


def _check_patterns(dtypes: Mapping[str, str], shards: Sequence[Inventory]) -> None:
    """A pattern that fits nothing was mistyped: the words that it was meant for would be taken for integers."""
    datasets = [d for shard in shards for d in shard.datasets]
    names = sorted({name for d in datasets for name in (d.path, *d.names)})
    for pattern, name in dtypes.items():
        storage = pattern.startswith("storage:") and any(d.dtype == name for d in datasets)
        if not storage and not any(fnmatchcase(n, pattern) for n in names):
            raise UsageError(
                f"dtype {pattern}={name}",
                found="a pattern that fits no dataset",
                expected=f"one that fits names such as {names[:3]}",
                remedy="correct the pattern; dcr inspect SHARD lists the names",
            )


def _as_they_lie(layout: Layout) -> list[_Item]:
    """Every dataset of every shard: without a layout nobody knows which of them are copies or parts of one tensor."""
    return [
        _Item(d.path, d.dtype, Place(number, d.path, box), box.size * dtype(d.dtype).words, _row(box, d.dtype))
        for number, shard in enumerate(layout.shards)
        for d in sorted(shard.datasets, key=lambda d: d.dtype)
        for box in [Box.whole(d.shape)]
    ]


def _canonical(layout: Layout) -> list[_Item]:
    """Every tensor of the layout, each word once; padding is left out."""
    tensors = tensors_of(layout)
    check_layout(layout, tensors)
    placement = Placement(layout, tensors)
    return [
        _Item(
            tensors[t.tensor].name,
            tensors[t.tensor].dtype,
            placement.find(t.tensor, t.box)[0],
            tile_words(t, tensors),
            _row(t.box, tensors[t.tensor].dtype),
        )
        for t in make_tiles(Policy("census", tensors, layout), {})
    ]


def _row(box: Box, name: str) -> int:
    return box.shape[-1] * dtype(name).words if len(box.shape) > 1 else 0


def _buckets(items: Sequence[_Item], bucket_bytes: int) -> Iterator[list[Span]]:
    """All words in buckets of one dtype and at most ``bucket_bytes`` each; a span's tile is the item's index."""
    group: list[Span] = []
    name, room, blocks = "", 0, 0
    for number, item in enumerate(items):
        width, at = dtype(item.dtype).word_bytes, 0
        while at < item.words:
            full = blocks == MAX_BLOCKS or room < min(item.words - at, BLOCK) * width
            if item.dtype != name or full:
                if group:
                    yield group
                group, name, room, blocks = [], item.dtype, max(bucket_bytes, BLOCK * width), 0
            fit = min(max(room // (BLOCK * width), 1), MAX_BLOCKS - blocks)
            stop = min(item.words, at + fit * BLOCK)
            group.append(Span(number, at, stop))
            room, blocks = room - (stop - at) * width, blocks - (at - stop) // BLOCK
            at = stop
    if group:
        yield group


class _Counting:
    """Tallies by dtype; words and changes by tensor."""

    def __init__(
        self, base: Checkpoint, new: Checkpoint, items: Sequence[_Item], kernels: Kernels, share: float
    ) -> None:
        self._base, self._new, self._items, self._kernels, self._share = base, new, items, kernels, share
        self._credit: dict[str, float] = {}
        self._tallies: dict[str, Tally] = {}
        self._words: Counter[tuple[str, str]] = Counter()  # by name and dtype
        self._changed: Counter[tuple[str, str]] = Counter()

    def bucket(self, spans: list[Span]) -> int:
        """Count one bucket; its dense bytes."""
        name = self._items[spans[0].tile].dtype
        tally = self._tallies.setdefault(name, Tally(dtype(name)))
        table = block_table(spans, BLOCK)
        base, new = self._read(self._base, table, name), self._read(self._new, table, name)
        changes = self._kernels.changes(base, new, table.offset, table.size)
        tally.count(base, table, changes, self._kernels)
        for span, size, count in zip(table.span.tolist(), table.size.tolist(), changes.counts.tolist(), strict=True):
            tensor = self._items[table.spans[span].tile].name, name
            self._words[tensor] += size
            self._changed[tensor] += count
        size = int(table.size.sum()) * base.itemsize
        # The first bucket of every dtype, and then as many as the sample has room for, evenly spread.
        credit = self._credit.get(name, float(size)) + size * self._share
        if credit >= size:
            credit -= size
            tally.code(BLOCK, base, new, table, changes, self._row(spans), self._kernels)
        self._credit[name] = credit
        return size

    def _row(self, spans: Sequence[Span]) -> int:
        """Words of a row of most of a bucket."""
        lengths: Counter[int] = Counter()
        for span in spans:
            lengths[self._items[span.tile].row] += span.stop - span.start
        return lengths.most_common(1)[0][0]

    def _read(self, side: Checkpoint, table: BlockTable, name: str) -> np.ndarray:
        words = np.empty(table.length, f"<u{dtype(name).word_bytes}")
        for block in range(len(table)):
            place, start = self._items[table.spans[table.span[block]].tile].place, int(table.start[block])
            side.read(place, start, start + int(table.size[block]), table.view(words, block))
        return words

    def report(self) -> dict[str, Any]:
        tallies = [self._tallies[name] for name in sorted(self._tallies)]
        changed, dense = sum(t.changed for t in tallies), sum(t.dense_bytes for t in tallies)
        payload = {s: sum(t.expected(s) for t in tallies) for s in SCHEMES}
        tensors = sorted(self._words)
        return {
            "tensors": len({name for name, _ in tensors}),
            "words": sum(t.words for t in tallies),
            "changed": changed,
            "dense_bytes": dense,
            "coded_bytes": sum(t.coded_bytes for t in tallies),
            "kinds": [
                {"kind": kind, "dtype": name, **row}
                for (kind, name), row in self._grouped((kind_of(n), d) for n, d in tensors)
            ],
            "layers": [
                {"layer": layer, **row}
                for layer, row in sorted(
                    self._grouped(layer_of(n) for n, _ in tensors), key=lambda r: (r[0] is None, r[0] or 0)
                )
            ],
            "dtypes": [t.report() for t in tallies],
            "schemes": scheme_rows(payload, changed, dense),
        }

    def _grouped(self, keys: Iterable[Any]) -> list[tuple[Any, dict[str, int]]]:
        """Tensors, words and changes by a key of each tensor, which come in the order of the sorted tensors."""
        rows: dict[Any, dict[str, int]] = {}
        for key, tensor in zip(keys, sorted(self._words), strict=True):
            row = rows.setdefault(key, {"tensors": 0, "words": 0, "changed": 0})
            row["tensors"] += 1
            row["words"] += self._words[tensor]
            row["changed"] += self._changed[tensor]
        return list(rows.items())
