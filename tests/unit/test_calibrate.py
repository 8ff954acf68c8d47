"""What dcr bench measures with: neighbours that work beside it and are gone after it, costs that are a machine's."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dcr_mpi.calibrate.coding import Sample, coding
from dcr_mpi.calibrate.neighbours import neighbours
from dcr_mpi.calibrate.storing import storing
from dcr_mpi.calibrate.timing import core_share
from dcr_mpi.errors import ResourceError
from dcr_mpi.kernels import get_kernels
from dcr_mpi.store import open_store

MIB = 1 << 20
ADAM = Sample("adam", 0.03, MIB, MIB)
pytestmark = pytest.mark.timeout(180)


def test_neighbours_work_until_the_block_ends_and_are_gone_then(tmp_path: Path) -> None:
    with neighbours(2, ADAM, tmp_path):
        beside = multiprocessing.active_children()
        assert len(beside) == 2
        assert {path.name for path in tmp_path.iterdir()} == {"beside-0", "beside-1"}
        assert (tmp_path / "beside-1" / "replica" / "model-1.h5").exists()
        ticks = os.sysconf("SC_CLK_TCK")
        for process in beside:
            worked = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            assert (int(worked[11]) + int(worked[12])) / ticks > 0.1
    assert not any(process.is_alive() for process in beside)
    assert multiprocessing.active_children() == []


def test_neighbours_are_gone_after_an_error_too(tmp_path: Path) -> None:
    beside = []
    with pytest.raises(ZeroDivisionError), neighbours(1, replace(ADAM, law="uniform"), tmp_path):
        beside = multiprocessing.active_children()
        raise ZeroDivisionError
    assert len(beside) == 1 and not beside[0].is_alive()


def test_a_neighbour_that_ends_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="--ranks 1"), neighbours(1, ADAM, tmp_path / "nowhere"):
        raise AssertionError("it has nowhere to write")


def test_costs_are_over_nothing(tmp_path: Path) -> None:
    found = coding(get_kernels(), ADAM, tmp_path)
    for cost in (*found.encode.values(), *found.prepare.values(), found.apply):
        assert 0 < cost.byte_s + cost.change_s < 1e-4 and min(cost.byte_s, cost.change_s) >= 0


@pytest.mark.parametrize(("tile_s", "left_s"), [(0.0, 1.0), (0.01, 0.68), (1.0, 0.5)])
def test_what_a_tile_takes_counts_once(
    tile_s: float, left_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 32 tiles, in work of a second; at most half of that is theirs."""
    monkeypatch.setattr("dcr_mpi.calibrate.coding.seconds", lambda work, turns: dict.fromkeys(work, 1.0))
    found = coding(get_kernels(), ADAM, tmp_path, {"encode": tile_s})
    assert found.encode["plain"].byte_s * MIB == pytest.approx(left_s) and found.encode["plain"].change_s == 0
    assert found.prepare["plain"].byte_s * MIB == pytest.approx(1.0)


def test_a_directory_as_the_store_is_measured_and_left_empty(tmp_path: Path) -> None:
    found = storing(open_store(str(tmp_path / "store")))
    assert found.put_s > 0 and found.get_s > 0 and found.put_rate > 0 and found.get_rate > 0
    assert found.put_byte_s >= 0 and found.get_byte_s >= 0
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


def test_a_share_of_a_core_is_one() -> None:
    assert 0 < core_share() <= 1
