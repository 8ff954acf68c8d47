"""Our own path from two checkpoints to patched shards, as the acts run it.

Encode is :class:`dcr_mpi.acts.parts.PartBuilder` and nothing less: reading both buckets, changes, block digests, state
digest, streams, framing. Prepare is :class:`dcr_mpi.acts.landing.Landing` and the journal's frames, written to a file;
apply is :func:`dcr_mpi.acts.patch.patch_file` on real shards. Either all of it is on real shards, cut as a trainer and
a site cut them; or checkpoints are arrays in memory, whole, which leaves the reading of files out of a codec's figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..acts.landing import Landing
from ..acts.parts import Built, PartBuilder
from ..acts.patch import patch_file
from ..acts.publish import CodecSettings
from ..acts.sides import Sides
from ..acts.target import ShardTarget
from ..checkpoint import Checkpoint
from ..codec import Scheme, block_table, lots
from ..digest import add
from ..dtypes import dtype
from ..journal import Binding, JournalWriter, read_journal
from ..kernels.api import Kernels
from ..layout import Place, build, cut_parts, make_tiles, tensors_of
from ..model import Box, Layout, Open, Policy, ShardLayout, Tiling
from ..wire import PartHeader
from .data import DataSet

_DIGEST = "0" * 64
_BINDING = Binding(_DIGEST, "model", _DIGEST)
_MATRICES = 3  # of which one is split by columns: gate and up by rows, down by columns


class Memory(Checkpoint):
    """A checkpoint whose words are arrays: what a shard in the page cache is, less the system call."""

    def __init__(self, layout: Layout, words: Mapping[str, np.ndarray]) -> None:
        super().__init__(Path("memory"), layout)
        self._words = words

    def read(self, place: Place, start: int, stop: int, out: np.ndarray) -> None:
        out[...] = self._words[place.dataset][start:stop]


class World:
    """One data set between a trainer and a site.

    Parameters
    ----------
    directory : Path
        All files go there; a file system in memory leaves the disk out of the figures.
    part_bytes, bucket_bytes : int
        Dense bytes of a part and of a bucket at most; the defaults of ``dcr`` where None.
    shards : (int, int), optional
        Of the trainer and of the site: all is read from such files, in which two matrices of three are split by rows
        and one by columns. None: each tensor is whole, and the trainer's and the site's words are the arrays.
    """

    def __init__(
        self,
        data: DataSet,
        kernels: Kernels,
        directory: Path,
        part_bytes: int | None = None,
        bucket_bytes: int | None = None,
        shards: tuple[int, int] | None = None,
    ) -> None:
        defaults = CodecSettings()
        self.data, self._kernels, self._directory = data, kernels, directory
        self._bucket = bucket_bytes or min(defaults.bucket_bytes, part_bytes or defaults.bucket_bytes)
        trainer, self._site = (_layout(data, count) for count in shards or (1, 1))
        self._policy = Policy("bench", tensors_of(trainer), trainer)
        tiles = make_tiles(self._policy, {"site": self._site})
        cuts = cut_parts(tiles, self._policy.tensors, defaults.block, part_bytes or defaults.part_bytes)
        self._tiling = Tiling(_DIGEST, {"site": _DIGEST}, defaults.block, tiles, cuts)
        self.parts, self.tiles = range(len(cuts)), len(tiles)
        self._before, self._after = {t.name: t.base for t in data.tensors}, {t.name: t.new for t in data.tensors}
        self._base: Checkpoint
        self._new: Checkpoint
        self._held: Checkpoint
        if shards is None:
            self._base, self._new = Memory(trainer, self._before), Memory(trainer, self._after)
            self._held = Memory(self._site, self._before)
        else:
            self._base = self._written("base", trainer, self._before)
            self._new = self._written("new", trainer, self._after)
            self._held = self._written("held", self._site, self._before)
        self._replica = self._filled()
        self._journals = [directory / f"journal-{shard}" for shard in range(len(self._site.shards))]

    def _filled(self) -> Checkpoint:
        """The replica at the base: apply writes there, while prepare reads what is held beside it."""
        return self._written("replica", self._site, self._before)

    def _written(self, name: str, layout: Layout, words: Mapping[str, np.ndarray]) -> Checkpoint:
        """Shards of a layout, anew."""
        where = self._directory / name
        where.mkdir(exist_ok=True)
        target = ShardTarget(where, layout, self._policy, range(len(layout.shards)))
        for number, spec in enumerate(self._policy.tensors):
            target.put(number, Box.whole(spec.shape), 0, words[spec.name])
        target.publish(layout)
        return Checkpoint(where, layout)

    def builder(self, scheme: Scheme, check: bool) -> PartBuilder:
        header = PartHeader.bound(_DIGEST, _DIGEST, 1, 0)
        return PartBuilder(
            self._policy, self._tiling, self._base, self._new, header, scheme, self._kernels, self._bucket, check
        )

    def encode(self, scheme: Scheme, check: bool = False) -> list[Built]:
        """All parts."""
        builder = self.builder(scheme, check)
        return [builder.build(part) for part in self.parts]

    def read(self) -> None:
        """What encoding reads, and nothing else: both checkpoints, a few blocks at a time."""
        builder, sides = self.builder(Scheme(), check=False), Sides(self._policy, self._tiling, self._base, self._new)
        for part in self.parts:
            for name, spans in builder.buckets(part):
                table, width = block_table(spans, self._tiling.block), dtype(name).word_bytes
                _, read = sides.both(table, width)
                for first, last in lots(table, self._kernels.lot // width):
                    read(first, last)

    def prepare(self, parts: list[Built]) -> dict[int, tuple[int, int]]:
        """Decode and check all parts and write their journal frames; returns the lanes by tensor."""
        opened = Open(_DIGEST, 1, 0, _DIGEST, _DIGEST, len(parts))
        inventories = {shard: self._replica.inventory(shard) for shard in range(len(self._journals))}
        landing = Landing(self._policy, self._tiling, opened, self._held, inventories, self._kernels)
        for journal in self._journals:
            journal.unlink(missing_ok=True)
        writers = [JournalWriter(journal, _BINDING) for journal in self._journals]
        total: dict[int, tuple[int, int]] = {}
        for k, built in enumerate(parts):
            for shard, frame in landing.land(k, built.data, landing.shards_of(k)).items():
                writers[shard].append(k, frame)
                for tensor, lanes in frame.lanes.items():
                    total[tensor] = add(total.get(tensor, (0, 0)), lanes)
        for writer in writers:
            writer.finish()
        return total

    def apply(self) -> None:
        """Replay the journals into the replica; it may hold the base or the target."""
        for shard, journal in enumerate(self._journals):
            names = [d.path for d in self._replica.inventory(shard).datasets]
            patches = (patch for _, patch in read_journal(journal, _BINDING))
            patch_file(self._replica.path(shard), patches, self._kernels, names)

    def check(self, parts: list[Built]) -> None:
        """The whole way once: the replica's words must become the new ones, and the state must agree.

        Raises
        ------
        SystemExit
            They did not: no figure of this run would mean anything.
        """
        self._replica = self._filled()
        prepared = self.prepare(parts)
        encoded: dict[int, tuple[int, int]] = {}
        for built in parts:
            for tensor, lanes in built.lanes.items():
                encoded[tensor] = add(encoded.get(tensor, (0, 0)), lanes)
        self.apply()
        if {t: v for t, v in encoded.items() if v != (0, 0)} != {t: v for t, v in prepared.items() if v != (0, 0)}:
            raise SystemExit(f"{self.data.name}: the state digests of encode and prepare differ")
        for moved in self.data.tensors:
            for shard, layout in enumerate(self._site.shards):
                piece = next(d.pieces[0] for d in layout.datasets if d.path == moved.name)
                found = np.empty(piece.local.shape, moved.new.dtype)
                self._replica.read(Place(shard, moved.name, piece.local), 0, found.size, found)
                wanted = moved.new.reshape(moved.shape)[tuple(map(slice, piece.canonical.start, piece.canonical.stop))]
                if (found != wanted).any():
                    raise SystemExit(f"{self.data.name}: {moved.name} did not become the new words")


def _layout(data: DataSet, shards: int) -> Layout:
    """So many shards, each of which holds a part of every tensor."""
    cut = [(t.name, t.shape, data.dtype, int(k % _MATRICES == _MATRICES - 1)) for k, t in enumerate(data.tensors)]
    each = [
        tuple(build.split(*how, shards, k) if shards > 1 else build.whole(*how[:3]) for how in cut)
        for k in range(shards)
    ]
    return Layout("bench", tuple(ShardLayout(f"model-{k}.h5", datasets) for k, datasets in enumerate(each)))
