"""The fine-tuned model on disk: one layout, one directory per step, and the pairs that they make.

Needs numpy and dcr-mpi only, so the codec's benchmark reads pairs without torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dcr_mpi.acts.target import ShardTarget
from dcr_mpi.checkpoint import Checkpoint
from dcr_mpi.jsonable import dumps, loads
from dcr_mpi.layout import Placement, build, tensors_of
from dcr_mpi.model import Box, Layout, Policy, ShardLayout

OUT = Path("bench/out/real")
_SHARDS = 2
_LAYOUT, _PAIRS = "layout.json", "pairs.json"


@dataclass(frozen=True)
class Pair:
    """Two checkpoints of one run: ``name`` says loss, learning rate and steps between them."""

    name: str
    base: Path
    new: Path


def layout_of(shapes: Mapping[str, tuple[int, ...]]) -> Layout:
    """Matrices split by rows over two shards, vectors whole in both: as a small tensor-parallel trainer has them."""
    shards = []
    for i in range(_SHARDS):
        datasets = tuple(
            build.split(name, shape, "bf16", 0, _SHARDS, i) if len(shape) > 1 else build.whole(name, shape, "bf16")
            for name, shape in sorted(shapes.items())
        )
        shards.append(ShardLayout(f"model-{i:05d}-of-{_SHARDS:05d}.h5", datasets))
    return Layout("trainer", tuple(shards))


def write(directory: Path, layout: Layout, words: Mapping[str, np.ndarray], step: int) -> None:
    """One checkpoint from raw bf16 words by tensor; the shards appear whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = tensors_of(layout)
    hidden = Layout(layout.name, tuple(ShardLayout(".dcr-new-" + s.file, s.datasets) for s in layout.shards))
    target = ShardTarget(directory, hidden, Policy("real", tensors, hidden), range(len(layout.shards)), step=step)
    try:
        for number, spec in enumerate(tensors):
            target.put(number, Box.whole(spec.shape), 0, np.ascontiguousarray(words[spec.name]).reshape(-1))
        target.sync()
    except BaseException:
        target.discard()
        raise
    target.publish(layout)


def describe(directory: Path, layout: Layout, pairs: list[tuple[str, str, str]], facts: Mapping[str, object]) -> None:
    """Write the layout (as ``dcr`` takes it in ``trainer.layout``) and the list of pairs beside the checkpoints."""
    (directory / _LAYOUT).write_bytes(dumps(layout))
    (directory / _PAIRS).write_text(json.dumps({"pairs": pairs, "facts": facts}, indent=1))


def found_pairs(directory: Path = OUT) -> list[Pair]:
    """The pairs that were made here; none where there are none."""
    if not (directory / _PAIRS).exists():
        return []
    rows = json.loads((directory / _PAIRS).read_text())["pairs"]
    return [Pair(name, directory / base, directory / new) for name, base, new in rows]


def read(directory: Path, layout_file: Path | None = None) -> Iterator[tuple[str, tuple[int, ...], np.ndarray]]:
    """(name, shape, words) of every tensor of a checkpoint."""
    layout = loads(Layout, (layout_file or directory.parents[1] / _LAYOUT).read_bytes(), "layout")
    tensors = tensors_of(layout)
    placement = Placement(layout, tensors)
    with Checkpoint(directory, layout) as checkpoint:
        for number, spec in enumerate(tensors):
            words = np.empty(spec.shape, np.uint16)
            for box in placement.boxes(number):
                place = placement.find(number, box)[0]
                part = np.empty(box.shape, np.uint16)
                checkpoint.read(place, 0, part.size, part.reshape(-1))
                words[tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))] = part
            yield spec.name, spec.shape, words.reshape(-1)
