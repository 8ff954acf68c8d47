"""The encoder decodes its own output before it publishes: whatever goes wrong inside it, nothing is sealed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dcr_mpi.acts.ports import Ports
from dcr_mpi.acts.publish import CodecSettings
from dcr_mpi.errors import VerifyFailed
from dcr_mpi.kernels.api import Changes
from dcr_mpi.kernels.jit import JitKernels
from tests.acts.local import SMALL, Local


def _drop_last(found: Changes) -> Changes:
    """A comparison that misses a change."""
    if not len(found.positions) or found.counts.max() < 2:
        return found
    block = int(found.counts.argmax())
    at = int(found.counts[: block + 1].sum()) - 1
    counts = found.counts.copy()
    counts[block] -= 1
    keep = [k for k in range(len(found.positions)) if k != at]
    return Changes(counts, found.positions[keep], found.old[keep], found.new[keep])


def _drop_block(found: Changes) -> Changes:
    """A comparison that misses a whole block."""
    some = np.flatnonzero(found.counts)
    if not len(some):
        return found
    counts, block = found.counts.copy(), int(some[-1])
    keep = np.repeat(np.arange(len(counts)) != block, counts)
    counts[block] = 0
    return Changes(counts, found.positions[keep], found.old[keep], found.new[keep])


def _next_gap(packed: tuple[Any, Any]) -> tuple[Any, Any]:
    gaps = packed[0].copy()
    gaps[-1] ^= 1
    return gaps, packed[1]


FAULTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a change missed": ("changes", _drop_last),
    "a block missed": ("changes", _drop_block),
    "a value off by one": ("difference", lambda coded: coded ^ coded.dtype.type(1)),
    "a gap off by one": ("pack_gaps", _next_gap),
    "hazards off by one": ("hazards", lambda found: found + 1),
}
NO_STEP = {("hazards off by one", "plain"), ("a gap off by one", "class")}


class Faulty(JitKernels):
    """Kernels of which one call gives something else."""

    def __init__(self, method: str, spoil: Callable[[Any], Any]) -> None:
        true = getattr(super(), method)
        setattr(self, method, lambda *args: spoil(true(*args)))


def checkpoint(path: Path, seed: int) -> Path:
    """One shard of bf16 noise; every seed but 0 changes some words of it by one."""
    path.mkdir()
    words = (np.random.default_rng(0).standard_normal(3000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if seed:
        words[np.random.default_rng(seed).integers(0, 3000, 300)] ^= 1
    with h5py.File(path / "a.h5", "w") as file:
        file["x"] = words
        file["x"].attrs["dcr_dtype"] = "bf16"
    return path


@pytest.mark.parametrize(
    ("fault", "positions"), [(f, p) for f in FAULTS for p in ("plain", "class") if (f, p) not in NO_STEP]
)
def test_a_fault_of_the_encoder_is_never_published(fault: str, positions: str, tmp_path: Path) -> None:
    codec: CodecSettings = replace(SMALL, positions=positions)
    local = Local(tmp_path, None, None, codec)
    local.begin(checkpoint(tmp_path / "s0", 0))
    good = local.ports
    local.ports = Ports(good.catalog, good.comm, Faulty(*FAULTS[fault]), good.events)
    with pytest.raises(VerifyFailed, match="self-check"):
        local.encode(checkpoint(tmp_path / "s1", 1))
    assert good.catalog.manifest(1) is None
    local.ports = good
    local.encode(tmp_path / "s1")
    assert good.catalog.manifest(1) is not None
