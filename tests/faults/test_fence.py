"""A job that was taken for dead and goes on all the same: it must not touch what its successor works on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcr_mpi import durable, lease
from dcr_mpi.acts import apply as apply_module
from dcr_mpi.acts import patch, prepare
from dcr_mpi.acts import replica as replica_module
from dcr_mpi.acts.commit import decide
from dcr_mpi.acts.create import CreateJob, create_replica
from dcr_mpi.acts.replica import journal
from dcr_mpi.acts.target import ShardTarget
from dcr_mpi.errors import Conflict, DcrError, ResourceError
from dcr_mpi.journal import Binding, Frame, JournalWriter, read_journal
from dcr_mpi.lease import Fence, Lease
from tests.acts.local import Local
from tests.acts.tiny import SITE, TRAINER, full, write_steps

BINDING = Binding("0" * 64, "a.h5", "1" * 64)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_steps(tmp_path_factory.mktemp("steps"), 3)


@pytest.fixture
def local(tmp_path: Path, steps: list[Path]) -> Local:
    made = Local(tmp_path, TRAINER, SITE)
    made.begin(steps[0])
    return made


def _meanwhile(monkeypatch: pytest.MonkeyPatch, where: object, name: str, course: Callable[[], None]) -> list[int]:
    """At the first call of ``where.name`` this job stands still, is taken for dead, and ``course`` happens."""
    whole, calls = getattr(where, name), []

    def late(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            with monkeypatch.context() as dead:
                dead.setattr(lease, "_alive", lambda *_: False)
                course()
        return whole(*args, **kwargs)

    monkeypatch.setattr(where, name, late)
    return calls


def test_a_late_job_does_not_patch_a_newer_version(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the words of version 1 in its hands while its successor brings the replica to version 2."""
    local.encode(steps[1])
    local.prepare()
    local.commit()
    other = Local(local.path, TRAINER, SITE)

    def course() -> None:
        assert other.apply().version == 1
        other.cycle(steps[2])

    calls = _meanwhile(monkeypatch, patch, "_change", course)
    with pytest.raises(Conflict, match="another job that took it over"):
        local.apply()
    assert calls
    assert local.words() == full(steps[2])
    assert local.replica.need().version == 2
    assert local.prepare() is None, "and the lease is free again"


@pytest.mark.parametrize("at", ["_check_journals", "_roll_forward", "_close"])
def test_a_late_rank_0_changes_neither_record_nor_journals(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    local.encode(steps[1])
    local.prepare()
    local.commit()
    other = Local(local.path, TRAINER, SITE)

    def course() -> None:
        other.apply()
        other.encode(steps[2])
        other.prepare()

    _meanwhile(monkeypatch, apply_module, at, course)
    done = at == "_close"  # then its own version was recorded before, and it has nothing left to do
    with nullcontext() if done else pytest.raises(DcrError):
        assert local.apply().version == 1
    assert local.words() == full(steps[1])
    local.commit()
    assert local.apply().version == 2, "what the successor prepared is whole"
    assert local.words() == full(steps[2])


@pytest.mark.parametrize("record", ["replica.json", "prepared.json"])
def test_a_record_that_was_long_in_being_synced_is_not_put(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    """The lease was ours when the write of the record began; the file system hung, and a successor went on."""
    local.encode(steps[1])
    if record == "replica.json":
        local.prepare()
    decide(local.ports.catalog, sites=[], wait_s=0)
    other, whole = Local(local.path, TRAINER, SITE), durable._write_temp
    seen: list[dict[Path, bytes]] = []

    def course() -> None:
        other.prepare()
        other.apply()
        other.cycle(steps[2])
        seen.append(_tree(local.replica.directory))

    def slow(path: Any, data: Any) -> str:
        temp = whole(path, data)
        if Path(path).name == record and not seen:
            with monkeypatch.context() as dead:
                dead.setattr(durable, "_write_temp", whole)
                dead.setattr(lease, "_alive", lambda *_: False)
                course()
        return temp

    monkeypatch.setattr(durable, "_write_temp", slow)
    with pytest.raises(DcrError):
        local.apply() if record == "replica.json" else local.prepare()
    assert seen, "the record was never written"
    assert _tree(local.replica.directory) == seen[0]
    assert local.words() == full(steps[2])


def test_sets_of_journals_are_dropped_one_by_one(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of which two sets are to go is taken for dead after the first: the second, now a successor's, stays."""
    local.encode(steps[1])
    local.prepare()
    other, whole = Local(local.path, TRAINER, SITE), replica_module._drop
    seen: list[Path] = []

    def slow(journals: Path) -> None:
        whole(journals)
        if not seen:
            seen.append(journals)
            with monkeypatch.context() as dead:
                dead.setattr(lease, "_alive", lambda *_: False)
                other.prepare()

    with monkeypatch.context() as paused:
        paused.setattr(replica_module, "_drop", slow)
        with pytest.raises(Conflict, match="took it over"):
            local.drop_journals(1)
    assert seen
    local.commit()
    assert local.apply().version == 1
    assert local.words() == full(steps[1])


def _tree(folder: Path) -> dict[Path, bytes]:
    """All files by content, but leases, which every job writes, and what somebody is still writing."""
    others = ("lease-", durable.TEMP_PREFIX)
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and not p.name.startswith(others)}


def test_a_late_prepare_writes_journals_of_its_own(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    local.encode(steps[1])
    other = Local(local.path, TRAINER, SITE)
    seen: dict[Path, bytes] = {}

    def course() -> None:
        other.prepare()
        journals = other.replica.sealed(1)
        assert journals is not None
        seen.update({path: path.read_bytes() for path in journals.iterdir()})

    _meanwhile(monkeypatch, prepare, "_check_state", course)
    with pytest.raises(DcrError):
        local.prepare()
    assert seen
    assert {path: path.read_bytes() for path in seen} == seen
    local.commit()
    local.apply()
    assert local.words() == full(steps[1])


def test_a_late_creation_publishes_nothing(tmp_path: Path, steps: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its temporary shards are gone: the replica is the one that its successor made."""
    local = Local(tmp_path, TRAINER, SITE)
    local.begin(steps[0])
    other, job = Local(tmp_path, TRAINER, SITE), CreateJob("s", tmp_path / "second")

    def course() -> None:
        create_replica(other.ports, job)

    _meanwhile(monkeypatch, ShardTarget, "sync", course)
    with pytest.raises(DcrError):
        create_replica(local.ports, job)
    record, created = create_replica(other.ports, job)
    assert not created
    assert record.version == 0
    assert not list((tmp_path / "second").glob(".dcr-new-*"))


def test_every_rank_sees_that_the_lease_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Lease(tmp_path)
    fence = Fence(tmp_path, first.grant)
    fence.check()
    first.release()
    with pytest.raises(Conflict):
        fence.check()
    second = Lease(tmp_path)
    fence = Fence(tmp_path, second.grant)
    fence.heed()
    monkeypatch.setattr(lease, "_alive", lambda *_: False)
    third = Lease(tmp_path)
    monkeypatch.setattr(lease, "LOOK_S", 0)
    for late in (fence.heed, fence.check, second.check):
        with pytest.raises(Conflict, match="took it over"):
            late()
    assert (first.epoch, second.epoch, third.epoch) == (1, 2, 3)
    second.release()  # a late one's leaving gives nobody's lease back
    third.check()
    third.release()


def test_a_lease_that_could_not_be_given_back_is_not_in_its_own_way(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system fails in the last write of an act; the process goes on with the next act, as catch-up does."""
    local.encode(steps[1])

    def failing(path: Any, data: Any, *rest: Any) -> None:
        raise ResourceError("the medium")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "replace", failing)
        first = Lease(local.replica.work)
        first.release()
    assert b"released" not in first._path.read_bytes()
    assert local.prepare() is not None
    with Lease(local.replica.work), pytest.raises(Conflict, match="held by pid"):
        local.prepare()


def test_a_lease_of_a_removed_directory_is_no_lease(tmp_path: Path) -> None:
    """Epochs begin again in a replica that was made anew; the old job's nonce tells it apart."""
    old = Lease(tmp_path / "work")
    (tmp_path / "work/lease-00000001").unlink()
    new = Lease(tmp_path / "work")
    assert new.epoch == old.epoch
    with pytest.raises(Conflict):
        old.check()
    new.release()


@pytest.mark.parametrize("cut", [0, 1, 30, None])
def test_a_journal_takes_over_what_is_whole(tmp_path: Path, cut: int | None) -> None:
    """From several earlier tries, torn or not; what their writers still append is not in it."""
    frames = {k: Frame({0: (k, k)}, []) for k in range(5)}
    older, newer = JournalWriter(tmp_path / "e1/0", BINDING), JournalWriter(tmp_path / "e2/0", BINDING)
    for k in (0, 1):
        older.append(k, frames[k])
    for k in (1, 2):
        newer.append(k, frames[k])
    if cut:
        raw = (tmp_path / "e2/0").read_bytes()
        (tmp_path / "e2/0").write_bytes(raw[:-cut])
    elif cut == 0:
        (tmp_path / "e2/0").unlink()
    mine = JournalWriter(tmp_path / "e3/0", BINDING, [tmp_path / "e2/0", tmp_path / "e1/0", tmp_path / "e0/0"])
    assert mine.done == ({0, 1, 2} if cut is None else {0, 1})
    newer.append(3, frames[3])
    for k in sorted({0, 1, 2, 3, 4} - mine.done):
        mine.append(k, frames[k])
    mine.finish()
    assert sorted(part for part, *_ in mine.frames) == [0, 1, 2, 3, 4]
    assert list(read_journal(tmp_path / "e3/0", BINDING)) == []  # frames without patches, all whole, and an end
    other = JournalWriter(tmp_path / "e4/0", Binding("2" * 64, "a.h5", "1" * 64), [tmp_path / "e3/0"])
    assert other.done == set(), "a journal for another version gives nothing"
    wanted = {0: "0" * 64, 1: "f" * 64}
    sealed = JournalWriter(tmp_path / "e5/0", BINDING, [tmp_path / "e3/0"], wanted)
    assert sealed.done == {0}, "of the sealed parts, only those that the frames were made of"
    for writer in (older, newer, other, sealed):
        writer.close()


def test_unfinished_sets_of_journals_do_not_pile_up(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tries that die late leave one set, and the fourth finishes from it without a fetch."""
    local.encode(steps[1])

    class Killed(BaseException): ...

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(JournalWriter, "finish", die)
        for _ in range(3):
            with pytest.raises(Killed):
                local.prepare()
            assert len(local.replica.sets(1)) == 1
    monkeypatch.setattr(local.ports.catalog.contents, "part", die)
    local.prepare()
    (only,) = local.replica.sets(1)
    assert only == local.replica.sealed(1)
    assert np.all([journal(only, k).exists() for k in range(len(SITE.shards))])
    durable.remove(only / "prepared.json")
    assert local.replica.sealed(1) is None
