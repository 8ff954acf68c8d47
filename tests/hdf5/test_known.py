"""Inventories that are known already: used as long as nobody wrote to the file, and never in place of a look at it."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from dcr_mpi import checkpoint as door
from dcr_mpi.checkpoint import Checkpoint, check_shard, default_layout
from dcr_mpi.errors import CorruptInput, GeometryError, NotReady
from dcr_mpi.hdf5 import Inventories, Stamp, inventory, listed_by, stamp_of
from dcr_mpi.hdf5 import known as known_module
from dcr_mpi.jsonable import dumps
from dcr_mpi.layout import Place
from dcr_mpi.model import Box, Layout


def _shard(path: Path, rows: int = 4, fill: int = 7) -> Path:
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        file["w"] = np.full((rows, 3), fill, np.uint16)
    return _age(path)


def _age(path: Path) -> Path:
    """A tick of the kernel's clock later."""
    time.sleep(0.03)
    return path


class _Counted:
    """A way to open checkpoints that says how many shards were listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known, self.listed = Inventories(), 0

        def counted(*args: object, **options: object) -> object:
            self.listed += 1
            return inventory(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(door, "inventory", counted)

    def open(self, directory: Path, layout: Layout) -> Checkpoint:
        return Checkpoint(directory, layout, known=self.known)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> _Counted:
    return _Counted(monkeypatch)


def test_listed_once_while_nobody_writes(tmp_path: Path, counted: _Counted) -> None:
    _shard(tmp_path / "a/s.h5")
    layout = default_layout("l", tmp_path / "a")
    for _ in range(3):
        with counted.open(tmp_path / "a", layout) as found:
            assert [d.path for d in found.inventory(0).datasets] == ["w"]
    assert counted.listed == 1


@pytest.mark.parametrize("how", ["written to", "replaced", "cut", "longer"])
def test_a_file_that_changed_is_listed_again(how: str, tmp_path: Path, counted: _Counted) -> None:
    path = _shard(tmp_path / "a/s.h5")
    layout = default_layout("l", tmp_path / "a")
    counted.open(tmp_path / "a", layout).inventory(0)
    if how == "written to":
        with h5py.File(path, "r+") as file:
            file["more"] = np.zeros(3)
    elif how == "replaced":
        os.replace(_shard(tmp_path / "b/s.h5", rows=5), path)
    elif how == "cut":
        os.truncate(path, path.stat().st_size - 8)
    else:
        os.truncate(path, path.stat().st_size + 8)
    with pytest.raises((CorruptInput, GeometryError)):
        counted.open(tmp_path / "a", layout).inventory(0)
    assert counted.listed == (1 if how in ("cut", "longer") else 2), "what is not whole is refused at a look"


def test_a_file_that_is_gone_is_no_longer_known(tmp_path: Path) -> None:
    path, known = _shard(tmp_path / "a/s.h5"), Inventories()
    known.keep(str(path), None, inventory(path))
    assert known.find(str(path), None) is not None
    path.unlink()
    with pytest.raises(NotReady):
        known.find(str(path), None)


def test_a_file_written_just_now_is_not_kept(tmp_path: Path) -> None:
    """Within one tick of the kernel's clock a second write would not show."""
    path, known = _shard(tmp_path / "a/s.h5"), Inventories()
    os.utime(path)
    known.keep(str(path), None, inventory(path))
    assert known.find(str(path), None) is None


def test_bytes_in_other_files_are_looked_at_every_time(tmp_path: Path, counted: _Counted) -> None:
    raw = tmp_path / "a/words.raw"
    raw.parent.mkdir()
    raw.write_bytes(bytes(64))
    with h5py.File(tmp_path / "a/s.h5", "w") as file:
        file.create_dataset("w", (16,), np.uint16, external=[("words.raw", 0, 32)])
    _age(tmp_path / "a/s.h5")
    layout = default_layout("l", tmp_path / "a")
    counted.open(tmp_path / "a", layout).inventory(0)
    raw.write_bytes(bytes(8))
    with pytest.raises(CorruptInput):
        counted.open(tmp_path / "a", layout).inventory(0)


def test_another_layout_or_declaration_is_another_question(tmp_path: Path, counted: _Counted) -> None:
    _shard(tmp_path / "a/s.h5")
    layout, other = default_layout("l", tmp_path / "a"), default_layout("l", _shard(tmp_path / "b/s.h5", 5).parent)
    counted.open(tmp_path / "a", layout).inventory(0)
    with pytest.raises(GeometryError):
        counted.open(tmp_path / "a", other).inventory(0)
    declared = Checkpoint(tmp_path / "a", layout, dtypes={"w": "bf16"}, known=counted.known)
    with pytest.raises(GeometryError):
        declared.inventory(0)


def test_what_we_wrote_ourselves_stays_known(tmp_path: Path, counted: _Counted) -> None:
    path = _shard(tmp_path / "a/s.h5")
    layout = default_layout("l", tmp_path / "a")
    with counted.open(tmp_path / "a", layout) as found:
        at = found.inventory(0).datasets[0].offset
        assert at is not None
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(b"\x09\x00")
            file.flush()
            found.written(0, stamp_of(os.fstat(file.fileno())))
    with counted.open(tmp_path / "a", layout) as again:
        words = np.zeros(12, np.uint16)
        again.read(Place(0, "w", Box((0, 0), (4, 3))), 0, 12, words)
        assert words.tolist() == [9] + [7] * 11
        check_shard(again.inventory(0), layout.shards[0])
    assert counted.listed == 1
    with open(path, "r+b") as file:  # and what others write does not
        file.truncate(path.stat().st_size + 1)
    with pytest.raises(CorruptInput):
        counted.open(tmp_path / "a", layout).inventory(0)


def test_the_last_few_directories_are_kept(tmp_path: Path) -> None:
    known, paths = Inventories(), [_shard(tmp_path / f"step-{k}/s.h5") for k in range(6)]
    for path in paths:
        known.keep(str(path), None, inventory(path))
        assert known.find(str(paths[0]), None) is not None  # the one in use stays
    assert [known.find(str(path), None) is not None for path in paths] == [True, False, False, False, False, True]


def test_what_takes_its_place_but_cannot_be_kept_leaves_nothing(tmp_path: Path) -> None:
    path, known = _shard(tmp_path / "a/s.h5"), Inventories()
    first = inventory(path)
    known.keep(str(path), None, first)
    os.utime(path, ns=(2**62, 2**62))  # the file server's clock is ahead
    known.keep(str(path), None, inventory(path))
    assert not known.has(str(path), None)
    known.written(str(path), first, first.fingerprint)
    assert not known.has(str(path), None)


def test_what_was_replaced_while_we_wrote_is_listed_again(tmp_path: Path) -> None:
    path, known = _shard(tmp_path / "a/s.h5"), Inventories()
    found = inventory(path)
    known.keep(str(path), None, found)
    with open(path, "r+b") as ours:
        os.replace(_shard(tmp_path / "b/s.h5"), path)
        known.written(str(path), found, stamp_of(os.fstat(ours.fileno())))
    assert known.find(str(path), None) is None


def test_a_file_whose_times_were_set_back_is_listed_again(tmp_path: Path) -> None:
    path, known = _shard(tmp_path / "a/s.h5"), Inventories()
    known.keep(str(path), None, inventory(path))
    stat = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    assert known.find(str(path), None) is None


def test_a_file_that_somebody_has_open_for_writing_is_refused(tmp_path: Path) -> None:
    path, known = _shard(tmp_path / "a/s.h5"), Inventories()
    known.keep(str(path), None, inventory(path))
    with open(path, "rb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with pytest.raises(CorruptInput, match="open for writing"):
            known.find(str(path), None)
    assert known.find(str(path), None) is not None


@pytest.mark.parametrize(("age_ns", "young"), [(10**9, False), (10**7, True), (-(10**9), True)])
def test_fine_clocks(age_ns: int, young: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 10**18 + 5 + age_ns)
    assert known_module._is_young(Stamp(1, 10**18 + 5, 1, 10**18 + 5)) is young


@pytest.mark.parametrize(("age_ns", "young"), [(3 * 10**9, False), (10**9, True)])
def test_clocks_of_whole_seconds(age_ns: int, young: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 10**18 + age_ns)
    assert known_module._is_young(Stamp(1, 10**18, 1, 10**18)) is young


def test_what_another_rank_listed_is_taken_for_the_same_file(tmp_path: Path, counted: _Counted) -> None:
    path = _shard(tmp_path / "a/s.h5")
    layout, theirs = default_layout("l", tmp_path / "a"), inventory(path)
    assert listed_by(dumps([theirs, theirs])) == [theirs, theirs]
    elsewhere = dataclasses.replace(
        theirs, fingerprint=theirs.fingerprint._replace(inode=1, ctime_ns=1)
    )  # inodes of another client
    with counted.open(tmp_path / "a", layout) as mine:
        assert not mine.is_known(0)
        mine.take(0, elsewhere)
        assert mine.is_known(0) and mine.inventory(0) == theirs
        words = np.zeros(12, np.uint16)
        mine.read(Place(0, "w", Box((0, 0), (4, 3))), 0, 12, words)
        assert words.tolist() == [7] * 12
    assert counted.listed == 0


def test_what_another_rank_listed_of_an_older_file_is_not_taken(tmp_path: Path, counted: _Counted) -> None:
    path = _shard(tmp_path / "a/s.h5")
    layout, theirs = default_layout("l", tmp_path / "a"), inventory(path)
    os.utime(path, ns=(1, 1))
    with counted.open(tmp_path / "a", layout) as mine:
        mine.take(0, theirs)
        assert not mine.is_known(0)
        assert mine.inventory(0).fingerprint.mtime_ns == 1
    assert counted.listed == 1
