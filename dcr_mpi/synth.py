"""A small transformer-shaped model as training shards, moved from step to step by a law like a real optimiser's.

Adam's update is about as large for every weight, whatever the weight's size (|m| / sqrt(v) is of order one), and a
bf16 weight changes only when the update reaches about half a unit in its last place: so small weights change often
and large ones seldom. ``u ~ N(0, 0.23^2)`` follows measurements of AdamW on a real transformer. Masters are fp32 and
never stored: they are drawn again from (seed, tensor, step), so any step can be made by itself; who makes many steps
keeps ``Masters`` between them, and then each costs one step.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import durable
from .acts.target import ShardTarget
from .layout import build, tensors_of
from .model import Box, DatasetLayout, Layout, Piece, Policy, ShardLayout, TensorSpec

_UPDATE_SPREAD = 0.23
_SAMPLE = 1 << 20


@dataclass(frozen=True)
class Shape:
    """Sizes of the model. ``padded`` and ``site_padded`` are vocabulary rows in training and at a site."""

    layers: int = 4
    hidden: int = 512
    vocabulary: int = 32003
    padded: int = 32256
    site_padded: int = 32064
    groups: int = 4
    queries: int = 2
    head: int = 64
    experts: int = 8
    inner: int = 768


TINY = Shape(layers=1, hidden=32, vocabulary=101, padded=128, site_padded=104, head=8, experts=4, inner=16)


def trainer_layout(shape: Shape, shards: int = 4) -> Layout:
    """Tensor- and expert-parallel training shards: padded, tied vocabulary rows, group-interleaved QKV, stacked
    experts with fused gate and up, replicated norms; buffers live on the first shard."""
    return Layout(
        "trainer", tuple(ShardLayout(f"train-{i:05d}.h5", _trainer_shard(shape, shards, i)) for i in range(shards))
    )


def site_layout(shape: Shape, shards: int = 2) -> Layout:
    """An inference engine's shards: other padding, untied head, plain fused QKV, one tensor-parallel dataset per
    expert, column splits, everything small replicated."""
    return Layout(
        "site", tuple(ShardLayout(f"engine-{i:05d}.h5", _site_shard(shape, shards, i)) for i in range(shards))
    )


def _trainer_shard(s: Shape, parts: int, i: int) -> tuple[DatasetLayout, ...]:
    tied = build.padded("model.embed.weight", (s.vocabulary, s.hidden), "bf16", s.padded, parts, i)
    out = [DatasetLayout("lm_head.weight", tied.shape, tied.dtype, tied.pieces, tied.padding, (tied.path,))]
    for layer in range(s.layers):
        n, q = f"model.layers.{layer}", s.groups * s.queries * s.head
        out.append(
            build.grouped_qkv(
                f"{n}.attn.qkv",
                f"{n}.q",
                f"{n}.k",
                f"{n}.v",
                "bf16",
                groups=s.groups,
                queries=s.queries,
                head=s.head,
                hidden=s.hidden,
                parts=parts,
                index=i,
            )
        )
        out.append(build.split(f"{n}.o", (s.hidden, q), "bf16", 1, parts, i, f"{n}.attn.out"))
        first, last = build.chunk(s.experts, parts, i)
        out.append(_stacked_gate_up(n, s, first, last))
        out.append(
            build.stacked(
                f"{n}.experts.down", [f"{n}.experts.{e}.down" for e in range(first, last)], (s.hidden, s.inner), "bf16"
            )
        )
        out.append(build.whole(f"{n}.norm.weight", (s.hidden,), "bf16"))
        out.append(build.whole(f"{n}.router.weight", (s.experts, s.hidden), "f32"))
    if i == 0:
        out += _buffers(s)
    return tuple(out)


def _stacked_gate_up(n: str, s: Shape, first: int, last: int) -> DatasetLayout:
    pieces = []
    for k, e in enumerate(range(first, last)):
        for half, name in enumerate(("gate", "up")):
            local = Box((k, half * s.inner, 0), (k + 1, (half + 1) * s.inner, s.hidden))
            pieces.append(Piece(f"{n}.experts.{e}.{name}", local, Box.whole((s.inner, s.hidden))))
    return DatasetLayout(f"{n}.experts.gate_up", (last - first, 2 * s.inner, s.hidden), "bf16", tuple(pieces))


def _buffers(s: Shape) -> list[DatasetLayout]:
    return [
        build.whole("rotary.inv_freq", (s.head // 2,), "f32"),
        build.whole("steps", (), "i64"),
        build.whole("position_ids", (4096,), "i64"),
        build.whole("causal_mask", (64, 64), "bool"),
    ]


def _site_shard(s: Shape, parts: int, i: int) -> tuple[DatasetLayout, ...]:
    vocabulary = (s.vocabulary, s.hidden)
    out = [
        build.padded("model.embed.weight", vocabulary, "bf16", s.site_padded, parts, i, path)
        for path in ("embed", "lm_head")
    ]
    for layer in range(s.layers):
        n, q, kv = f"model.layers.{layer}", s.groups * s.queries * s.head, s.groups * s.head
        members = [(f"{n}.q", (q, s.hidden)), (f"{n}.k", (kv, s.hidden)), (f"{n}.v", (kv, s.hidden))]
        out.append(build.fused(f"{layer}/qkv", members, "bf16", 0, parts, i))
        out.append(build.split(f"{n}.o", (s.hidden, q), "bf16", 1, parts, i, f"{layer}/o"))
        for e in range(s.experts):
            x = f"{n}.experts.{e}"
            gate_up = [(f"{x}.gate", (s.inner, s.hidden)), (f"{x}.up", (s.inner, s.hidden))]
            out.append(build.fused(f"{layer}/expert{e}/gate_up", gate_up, "bf16", 0, parts, i))
            out.append(build.split(f"{x}.down", (s.hidden, s.inner), "bf16", 1, parts, i, f"{layer}/expert{e}/down"))
        out.append(build.whole(f"{layer}/norm", (s.hidden,), "bf16", tensor=f"{n}.norm.weight"))
        out.append(build.whole(f"{layer}/router", (s.experts, s.hidden), "f32", tensor=f"{n}.router.weight"))
    return (*out, *(build.whole(f"buffers/{b.path}", b.shape, b.dtype, tensor=b.path) for b in _buffers(s)))


class Masters:
    """The fp32 masters of the last step that was made, by tensor; 4 bytes per weight.

    A later step goes on from there by its own law and fraction; an earlier one starts anew.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, np.ndarray]] = {}

    def at(self, spec: TensorSpec, step: int, rate: float, law: str, seed: int) -> np.ndarray:
        """The master of a float tensor at a step: fp32, flat, to be read only."""
        begun, master = self._kept.get(spec.name, (step + 1, _NOTHING))
        if begun > step:
            scale = np.float32(1.0 if "norm" in spec.name else 0.02)
            begun, master = 0, _draws(spec, 0, seed).standard_normal(_size(spec), np.float32) * scale
        for k in range(begun + 1, step + 1):
            master = _LAWS[law](spec, master, _draws(spec, k, seed), rate)
        self._kept[spec.name] = step, master
        return master


def write_checkpoint(
    directory: Path,
    layout: Layout,
    step: int,
    *,
    changed: float = 0.03,
    law: str = "adam",
    seed: int = 0,
    masters: Masters | None = None,
) -> None:
    """Write step ``step`` of the model as shards; each appears under its name once it is whole.

    Parameters
    ----------
    changed : float
        Fraction of bf16 weights that each step changes.
    law : "adam" or "uniform"
        Uniform: random positions move by one unit in the last place.
    masters : Masters, optional
        What the steps before left, to go on from; without it, and without keeping anything, from step 0.
    """
    tensors = tensors_of(layout)
    durable.make_dirs(directory)
    hidden = Layout(layout.name, tuple(ShardLayout(".dcr-new-" + s.file, s.datasets) for s in layout.shards))
    target = ShardTarget(directory, hidden, Policy("synth", tensors, hidden), range(len(layout.shards)), step=step)
    rate = learning_rate(changed, seed)
    try:
        for number, spec in enumerate(tensors):
            kept = masters if masters is not None else Masters()  # of this tensor alone: nothing piles up
            words = tensor_words(spec, step, rate if law == "adam" else changed, law, seed, kept)
            target.put(number, Box.whole(spec.shape), 0, words)
        target.sync()
    except BaseException:
        target.discard()
        raise
    target.publish(layout)


def tensor_words(spec: TensorSpec, step: int, rate: float, law: str, seed: int, masters: Masters) -> np.ndarray:
    """Raw words of a tensor at a step, flat; ``rate`` is the learning rate, or the fraction for the uniform law."""
    size = _size(spec)
    if spec.dtype == "i64":
        return (np.arange(size, dtype=np.uint64) if size > 1 else np.full(1, step, np.uint64)).reshape(-1)
    if spec.dtype == "bool":
        return np.tril(np.ones(spec.shape, np.uint8)).reshape(-1)
    if spec.name.endswith("inv_freq"):
        return (10000.0 ** (-np.arange(size) / size)).astype(np.float32).view(np.uint32)
    return _words(spec, masters.at(spec, step, rate, law, seed))


def _size(spec: TensorSpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64))


def _adam(spec: TensorSpec, master: np.ndarray, draw: np.random.Generator, rate: float) -> np.ndarray:
    return master - np.float32(rate * _UPDATE_SPREAD) * draw.standard_normal(len(master), np.float32)


def _uniform(spec: TensorSpec, master: np.ndarray, draw: np.random.Generator, fraction: float) -> np.ndarray:
    words = _words(spec, master)
    moved = draw.random(len(words), np.float32) < fraction
    up = draw.random(len(words), np.float32) < 0.5
    stepped = np.where(moved, np.where(up, words + words.dtype.type(1), words - words.dtype.type(1)), words)
    if spec.dtype != "bf16":
        return stepped.view(np.float32)
    # What rounding took away stays, as an optimiser's master has it; less than half a unit, so that it rounds the same.
    rest = (master.view(np.uint32) - (words.astype(np.uint32) << np.uint32(16))).view(np.int32).clip(-0x7FFF, 0x7FFF)
    return ((stepped.astype(np.uint32) << np.uint32(16)) + rest.view(np.uint32)).view(np.float32)


_NOTHING = np.zeros(0, np.float32)
_LAWS = {"adam": _adam, "uniform": _uniform}


def _words(spec: TensorSpec, master: np.ndarray) -> np.ndarray:
    return round_bf16(master) if spec.dtype == "bf16" else master.view(np.uint32)


def round_bf16(values: np.ndarray) -> np.ndarray:
    """fp32 to bf16 words, round to nearest even (finite values)."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def _draws(spec: TensorSpec, step: int, seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64([seed, step, zlib.crc32(spec.name.encode())]))


def learning_rate(changed: float, seed: int) -> float:
    """The learning rate at which one step changes this fraction of bf16 weights of spread 0.02, by bisection."""
    draw = np.random.Generator(np.random.SFC64([seed, 1 << 20]))
    master = draw.standard_normal(_SAMPLE, np.float32) * np.float32(0.02)
    update = draw.standard_normal(_SAMPLE, np.float32) * np.float32(_UPDATE_SPREAD)
    before, low, high = round_bf16(master), 1e-9, 1.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        fraction = float((round_bf16(master - np.float32(middle) * update) != before).mean())
        low, high = (middle, high) if fraction < changed else (low, middle)
    return high


def layouts(shape: Shape, sites: Sequence[str], train_shards: int = 4, site_shards: int = 2) -> dict[str, Layout]:
    """The trainer's layout under "trainer" and the same engine layout for each site."""
    return {"trainer": trainer_layout(shape, train_shards), **{s: site_layout(shape, site_shards) for s in sites}}
