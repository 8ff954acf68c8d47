"""Every shard set of the zoo: listed in order, or refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcr_mpi.hdf5 import checkpoint_inventory
from tests.zoo import SETS


@pytest.mark.parametrize("kind", SETS)
def test_listed_or_refused(kind: str, tmp_path: Path) -> None:
    case = SETS[kind](tmp_path / "checkpoint")
    if case.refused:
        with pytest.raises(case.refused.error) as caught:
            checkpoint_inventory(case.directory, case.files)
        assert type(caught.value) is case.refused.error
        assert [w for w in case.refused.words if w not in str(caught.value)] == []
        return
    found = checkpoint_inventory(case.directory, case.files)
    assert tuple(i.file for i in found) == case.listed
    assert {i.step for i in found} == ({case.step} if case.listed else set())
    assert [i.path for i in found] == [str(case.directory / f) for f in case.listed]


def test_options_reach_every_shard(tmp_path: Path) -> None:
    case = SETS["set_whole"](tmp_path / "checkpoint")
    found = checkpoint_inventory(case.directory, step_attribute="epoch", dtypes={"of/*": "bf16"})
    assert [i.step for i in found] == [None] * 3
    assert [i.fingerprint[0] for i in found] == [(case.directory / f).stat().st_size for f in case.listed]
