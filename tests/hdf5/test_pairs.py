"""Every pair of the zoo: the raw words that differ are exactly those that were changed; geometry changes show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dcr_mpi.dtypes import dtype
from dcr_mpi.hdf5 import Inventory, ShardReader, inventory
from dcr_mpi.model import Box
from tests.zoo import PAIRS

_STEP = 1 << 24  # words compared at a time
_LARGE = 1 << 26  # above it only windows around the changes are compared


@pytest.mark.parametrize("kind", PAIRS)
def test_words_that_differ(kind: str, tmp_path: Path) -> None:
    pair = PAIRS[kind](tmp_path / "base.h5", tmp_path / "new.h5")
    base, new = (inventory(p, dtypes=pair.dtypes) for p in (pair.base, pair.new))
    assert _geometry(base, new) == pair.geometry
    if pair.geometry:
        return
    with ShardReader(pair.base, base) as old, ShardReader(pair.new, new) as fresh:
        for dataset in base.datasets:
            changes = pair.changes.get(dataset.path, {})
            assert _differences(old, fresh, dataset.path, changes) == changes


def _differences(old: ShardReader, new: ShardReader, path: str, around: object) -> dict[int, tuple[int, int]]:
    dataset = next(d for d in old.inventory.datasets if d.path == path)
    kind, box = dtype(dataset.dtype), Box.whole(dataset.shape)
    words = box.size * kind.words
    order = ">" if dataset.dtype.endswith("be") else "<"
    spans = [(a, min(a + _STEP, words)) for a in range(0, words, _STEP)]
    if words > _LARGE:
        spans = sorted({(max(k - 2, 0), min(k + 3, words)) for k in around})  # type: ignore[attr-defined]
    found = {}
    for a, b in spans:
        pair = np.empty((2, b - a), f"{order}u{kind.word_bytes}")
        old.read(path, box, a, b, pair[0].view(np.uint8))
        new.read(path, box, a, b, pair[1].view(np.uint8))
        found.update({int(a + k): (int(pair[0, k]), int(pair[1, k])) for k in np.flatnonzero(pair[0] != pair[1])})
    return found


def _geometry(base: Inventory, new: Inventory) -> str:
    """The word for what differs between two inventories beyond the words of their tensors."""
    one, two = ({d.path: d for d in i.datasets} for i in (base, new))
    added, removed = set(two) - set(one), set(one) - set(two)
    names = [({d.path, *d.names}) for i in (base, new) for d in i.datasets]
    if set().union(*names[: len(one)]) == set().union(*names[len(one) :]) and len(one) != len(two):
        return "untied" if len(one) < len(two) else "tied"
    if added or removed:
        return "renamed" if added and removed else "added" if added else "removed"
    if any(one[p].shape != two[p].shape for p in one) and all(one[p].dtype == two[p].dtype for p in one):
        return "resized"
    return "retyped" if any(one[p].dtype != two[p].dtype for p in one) else ""


def test_sparse_files_stay_small_on_disk(tmp_path: Path) -> None:
    """The zoo's giants must not fill a disk, nor take the time to."""
    for kind in ("sparse_past_2_31_elements", "sparse_past_2_32_bytes", "one_change_in_2_30"):
        pair = PAIRS[kind](tmp_path / f"{kind}.base.h5", tmp_path / f"{kind}.new.h5")
        assert pair.base.stat().st_size >= 1 << 31
        assert pair.base.stat().st_blocks * 512 < 1 << 20
