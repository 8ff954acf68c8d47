"""Every awkward file and pair of the zoo through the whole cycle: carried bit-exactly, or refused before any byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dcr_mpi.errors import GeometryError, UsageError
from tests.acts.local import Local
from tests.world import read_all
from tests.zoo import PAIRS, ZOO

# tests/acts/test_memory.py has the huge ones.
MOVES = [kind for kind in PAIRS if not kind.startswith("sparse_") and kind != "one_change_in_2_30"]


def _folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("base", "new"):
        (tmp_path / name).mkdir()
    return tmp_path / "base", tmp_path / "new"


def _words(local: Local, directory: Path) -> dict[tuple[int, str], bytes]:
    return read_all(directory, local.ports.catalog.policy()[0].trainer, local.dtypes)


@pytest.mark.parametrize("kind", MOVES)
def test_a_pair(kind: str, tmp_path: Path) -> None:
    base, new = _folders(tmp_path)
    pair = PAIRS[kind](base / "w.h5", new / "w.h5")
    local = Local(tmp_path, None, None, dtypes=pair.dtypes)
    local.begin(base)
    before = local.words()
    assert before == _words(local, base)
    if pair.geometry:
        with pytest.raises(GeometryError, match=r"Next: .*dcr init"):
            local.encode(new)
        assert local.ports.catalog.opened(1) is None
        assert local.words() == before
        return
    sealed = local.cycle(new)
    assert local.words() == _words(local, new)
    assert sealed.detail["changed"] == sum(len(changes) for changes in pair.changes.values())


@pytest.mark.parametrize("kind", [kind for kind in ZOO if not kind.startswith("sparse_")])
def test_a_file(kind: str, tmp_path: Path) -> None:
    """Read where reading makes sense, into a replica that can be patched; an empty delta is a version too."""
    base, new = _folders(tmp_path)
    path = base / "w.h5"
    case = ZOO[kind](path)
    local = Local(tmp_path, None, None, dtypes=case.dtypes)
    if case.refused is not None:
        with pytest.raises(case.refused.error):
            local.begin(base)
        assert local.ports.catalog.store.stat("p/policy.json") is None
        return
    if not case.want:
        with pytest.raises(UsageError, match="no tensors"):
            local.begin(base)
        return
    local.begin(base)
    assert local.words() == _words(local, base)
    for entry in base.iterdir():
        (shutil.copytree if entry.is_dir() else shutil.copy2)(entry, new / entry.name)
    sealed = local.cycle(new)
    assert (sealed.detail["changed"], sealed.version) == (0, 1)
