"""Our own path from two checkpoints to patched shards, as the acts run it, with the checkpoints in memory.

Encode is :class:`dcr_mpi.acts.parts.PartBuilder` and nothing less: reading both buckets (from memory), changes, block
digests, state digest, streams, framing. Prepare is :class:`dcr_mpi.acts.landing.Landing` and the journal's frames,
written to a file; apply is :func:`dcr_mpi.acts.apply.patch_file` on a real shard.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..acts.landing import Landing
from ..acts.parts import Built, PartBuilder
from ..acts.patch import patch_file
from ..acts.publish import CodecSettings
from ..acts.sides import Sides
from ..checkpoint import Checkpoint, by_name
from ..codec import Scheme, block_table, lots
from ..digest import add
from ..dtypes import dtype
from ..hdf5 import create_shard
from ..journal import Binding, JournalWriter, read_journal
from ..kernels.api import Kernels
from ..layout import Place, build, cut_parts, make_tiles, tensors_of
from ..model import Layout, Open, Policy, ShardLayout, Tiling
from ..wire import PartHeader
from .data import DataSet

_DIGEST = "0" * 64
_BINDING = Binding(_DIGEST, "model.h5", _DIGEST)


class Memory(Checkpoint):
    """A checkpoint whose words are arrays: what a shard in the page cache is, less the system call."""

    def __init__(self, layout: Layout, words: Mapping[str, np.ndarray]) -> None:
        super().__init__(Path("memory"), layout)
        self._words = words

    def read(self, place: Place, start: int, stop: int, out: np.ndarray) -> None:
        out[...] = self._words[place.dataset][start:stop]


class World:
    """One data set between a trainer and a site that both keep every tensor whole in one shard.

    Parameters
    ----------
    directory : Path
        Shard and journal go there; a file system in memory leaves the disk out of the figures.
    part_bytes, bucket_bytes : int
        Dense bytes of a part and of a bucket at most; the defaults of ``dcr`` where None.
    """

    def __init__(
        self,
        data: DataSet,
        kernels: Kernels,
        directory: Path,
        part_bytes: int | None = None,
        bucket_bytes: int | None = None,
    ) -> None:
        defaults = CodecSettings()
        self.data, self._kernels = data, kernels
        self._bucket = bucket_bytes or min(defaults.bucket_bytes, part_bytes or defaults.bucket_bytes)
        datasets = tuple(build.whole(t.name, t.shape, data.dtype) for t in sorted(data.tensors, key=lambda t: t.name))
        shard = ShardLayout("model.h5", datasets)
        layout = Layout("bench", (shard,))
        self._policy = Policy("bench", tensors_of(layout), layout)
        tiles = make_tiles(self._policy, {"site": layout})
        cuts = cut_parts(tiles, self._policy.tensors, defaults.block, part_bytes or defaults.part_bytes)
        self._tiling = Tiling(_DIGEST, {"site": _DIGEST}, defaults.block, tiles, cuts)
        self._base = Memory(layout, {t.name: t.base for t in data.tensors})
        self._new = Memory(layout, {t.name: t.new for t in data.tensors})
        self._layout, self._directory = layout, directory
        self.parts = range(len(cuts))
        self._shard, self._journal = directory / "model.h5", directory / "journal"
        for old in (self._shard, self._journal):
            old.unlink(missing_ok=True)
        self._inventory = create_shard(self._shard, shard)
        self._fill()

    def _fill(self) -> None:
        offsets = {name: d.offset for name, d in by_name(self._inventory).items()}
        with open(self._shard, "r+b") as file:
            for tensor in self.data.tensors:
                at = offsets[tensor.name]
                assert at is not None
                file.seek(at)
                file.write(tensor.base.data)

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
        landing = Landing(self._policy, self._tiling, opened, self._base, {0: self._inventory}, self._kernels)
        self._journal.unlink(missing_ok=True)
        writer = JournalWriter(self._journal, _BINDING)
        total: dict[int, tuple[int, int]] = {}
        for k, built in enumerate(parts):
            frame = landing.land(k, built.data, {0})[0]
            writer.append(k, frame)
            for tensor, lanes in frame.lanes.items():
                total[tensor] = add(total.get(tensor, (0, 0)), lanes)
        writer.finish()
        return total

    def apply(self) -> None:
        """Replay the journal into the shard; it may hold the base or the target."""
        names = [d.path for d in self._inventory.datasets]
        patch_file(self._shard, (p for _, p in read_journal(self._journal, _BINDING)), self._kernels, names)

    def check(self, parts: list[Built]) -> None:
        """The whole way once, from a shard at the base: its words must become the new ones, and the state must agree.

        Raises
        ------
        SystemExit
            They did not: no figure of this run would mean anything.
        """
        self._fill()
        prepared = self.prepare(parts)
        encoded: dict[int, tuple[int, int]] = {}
        for built in parts:
            for tensor, lanes in built.lanes.items():
                encoded[tensor] = add(encoded.get(tensor, (0, 0)), lanes)
        self.apply()
        if {t: v for t, v in encoded.items() if v != (0, 0)} != {t: v for t, v in prepared.items() if v != (0, 0)}:
            raise SystemExit(f"{self.data.name}: the state digests of encode and prepare differ")
        datasets = by_name(self._inventory)
        fd = os.open(self._shard, os.O_RDONLY)
        try:
            for moved in self.data.tensors:
                raw = os.pread(fd, moved.new.nbytes, datasets[moved.name].offset or 0)
                if raw != moved.new.tobytes():
                    raise SystemExit(f"{self.data.name}: {moved.name} did not become the new words")
        finally:
            os.close(fd)
