"""Anchors, catching up, restoring and collecting: from any state a replica comes back to exactly a version's bits."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

from dcr_mpi import durable
from dcr_mpi.acts import apply as apply_module
from dcr_mpi.acts import restore as restore_module
from dcr_mpi.acts.anchor import AnchorJob, anchor
from dcr_mpi.acts.apply import ApplyJob
from dcr_mpi.acts.catch_up import CaughtUp, catch_up
from dcr_mpi.acts.collect import Collected, Retention, collect
from dcr_mpi.acts.commit import abort, decide
from dcr_mpi.acts.create import CreateJob, create_replica
from dcr_mpi.acts.init import register_site
from dcr_mpi.acts.patch import patch_file
from dcr_mpi.acts.prepare_plan import PrepareJob
from dcr_mpi.acts.restore import Restored, RestoreJob, restore
from dcr_mpi.errors import BaseMismatch, Conflict, CorruptInput, NotReady, UsageError
from dcr_mpi.synth import write_checkpoint
from tests.acts.local import Local
from tests.acts.tiny import SITE, TRAINER, full, write_steps

STEPS = 7


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_steps(tmp_path_factory.mktemp("steps"), STEPS)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory, steps: list[Path]) -> Path:
    """Versions 0 to 6 of which 3 was aborted; the replica is at 0; anchors of 0, 2 and 5."""
    local = Local(tmp_path_factory.mktemp("grown"), TRAINER, SITE)
    local.begin(steps[0])
    for step in range(1, STEPS):
        local.encode(steps[step])
        if step == 3:
            abort(local.ports.catalog, reason="a test")
            continue
        assert decide(local.ports.catalog, sites=[], wait_s=1).commit
        if step in (2, 5):
            anchor(local.ports, AnchorJob(steps[step], local.path / "state", codec=local.codec))
    return local.path


@pytest.fixture
def local(tmp_path: Path, grown: Path) -> Local:
    shutil.copytree(grown, tmp_path / "w")
    return Local(tmp_path / "w", TRAINER, SITE)


def _catch_up(local: Local) -> CaughtUp:
    where = local.replica.directory
    return catch_up(local.site_ports, PrepareJob("s", where), ApplyJob("s", where, full=True))


def _restore(local: Local, *, write: bool = True) -> Restored:
    return restore(local.site_ports, RestoreJob("s", local.replica.directory, write=write))


def _collect(local: Local, *, anchors: int = 2, lease_s: float = 1e6, dry: bool = False) -> Collected:
    return collect(local.ports.catalog, Retention(anchors, lease_s), dry=dry)


def _age(path: Path, seconds: float) -> None:
    for file in [path, *path.rglob("*")]:
        os.utime(file, (time.time() - seconds,) * 2)


# -- folding ------------------------------------------------------------------------------------------------------


def test_deltas_that_are_cut_alike_are_written_in_one_pass(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[Path] = []

    def counted(path: Path, *rest: Any) -> Any:
        passes.append(path)
        return patch_file(path, *rest)

    monkeypatch.setattr(apply_module, "patch_file", counted)
    assert _catch_up(local) == CaughtUp((1, 2, 4, 5, 6))
    assert local.words() == full(steps[6])
    assert len(passes) == len(SITE.shards)
    assert _catch_up(local) == CaughtUp(())


def test_where_the_cut_changes_another_pass_begins(local: Local, steps: list[Path], tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "7", TRAINER, 7)
    register_site(local.ports, "other", None)
    local.encode(tmp_path / "7", sites=("s", "other"))
    assert decide(local.ports.catalog, sites=[], wait_s=1).commit
    tilings = {local.ports.catalog.sealed(v)[0].tiling for v in (6, 7)}
    assert len(tilings) == 2
    assert _catch_up(local) == CaughtUp((1, 2, 4, 5, 6, 7))
    assert local.words() == full(tmp_path / "7")


def test_a_fold_goes_on_from_what_it_has(local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ended midway left journals of some parts: the next one fetches the others only."""
    from dcr_mpi.acts.folding import Folding

    whole, landed = Folding.land, []

    def limited(self: Folding, part: int, *rest: object) -> object:
        landed.append(part)
        if len(landed) == 3:
            raise CorruptInput("a fault in the middle")
        return whole(self, part, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Folding, "land", limited)
        with pytest.raises(CorruptInput, match="middle"):
            _catch_up(local)
    before = local.words()
    assert before == full(steps[0])
    first = set(landed[:2])
    landed.clear()

    def seen(self: Folding, part: int, *rest: Any) -> object:
        landed.append(part)
        return whole(self, part, *rest)

    monkeypatch.setattr(Folding, "land", seen)
    assert _catch_up(local).replayed == (1, 2, 4, 5, 6)
    assert landed
    assert not first & set(landed)
    assert local.words() == full(steps[6])


def test_journals_of_a_fold_are_no_journals_of_its_last_version(local: Local, steps: list[Path]) -> None:
    """A fold from 0 to 6 was prepared; meanwhile the replica is at 5 by another way: the journals do not fit."""
    from dcr_mpi.acts.prepare import prepare

    fold = PrepareJob("s", local.replica.directory, fold=True)
    assert prepare(local.site_ports, fold) is not None
    record = local.replica.need()
    manifest, _ = local.ports.catalog.sealed(5)
    moved = dataclasses.replace(record, version=5, state=manifest.state, tensors=manifest.tensors)
    local.save(moved)
    with pytest.raises(BaseMismatch, match="from version 0"):
        local.apply(6)
    assert local.words() == full(steps[0])


# -- anchors ------------------------------------------------------------------------------------------------------


def test_a_new_replica_starts_from_the_newest_anchor(local: Local, steps: list[Path], tmp_path: Path) -> None:
    shutil.rmtree(local.replica.directory)
    record, created = create_replica(local.site_ports, CreateJob("s", local.replica.directory))
    assert (record.version, created) == (5, True)
    assert local.words() == full(steps[5])
    assert _catch_up(local).replayed == (6,)
    assert local.words() == full(steps[6])


def test_an_anchor_is_of_a_committed_version_and_of_its_bits(local: Local, steps: list[Path]) -> None:
    ports, state = local.ports, local.path / "state"
    with pytest.raises(UsageError, match="abort"):
        anchor(ports, AnchorJob(steps[3], state, 3, local.codec))
    with pytest.raises(BaseMismatch, match="as in version 6"):
        anchor(ports, AnchorJob(steps[5], state, 6, local.codec))
    assert not ports.catalog.has_anchor(6)
    receipt = anchor(ports, AnchorJob(None, state, codec=local.codec))  # the directory on record
    assert (receipt.act, receipt.version, receipt.base) == ("anchored", 6, None)
    again = anchor(ports, AnchorJob(None, state, codec=local.codec))
    assert again.manifest_sha256 == receipt.manifest_sha256


def test_an_anchor_begun_with_other_settings_is_not_finished_with_these(local: Local, steps: list[Path]) -> None:
    ports, state = local.ports, local.path / "state"
    anchor(ports, AnchorJob(steps[6], state, 6, local.codec))
    (local.path / "store/p/anchors/000006/manifest.json").unlink()
    with pytest.raises(Conflict, match="other codec settings"):
        anchor(ports, AnchorJob(steps[6], state, 6, dataclasses.replace(local.codec, part_bytes=1 << 12)))
    anchor(ports, AnchorJob(steps[6], state, 6, local.codec))


def test_encode_publishes_an_anchor_of_its_base_when_one_is_due(tmp_path: Path, steps: list[Path]) -> None:
    from dcr_mpi.acts.encode import encode
    from dcr_mpi.acts.next_version import EncodeJob

    local = Local(tmp_path, TRAINER, SITE)
    local.begin(steps[0])
    for step in range(1, STEPS):
        encode(local.ports, EncodeJob(steps[step], None, tmp_path / "state", ["s"], local.codec, anchor_every=2))
        assert decide(local.ports.catalog, sites=[], wait_s=1).commit
    assert [v for v in range(STEPS) if local.ports.catalog.has_anchor(v)] == [0, 2, 4]


# -- restoring ----------------------------------------------------------------------------------------------------


def _flip(local: Local, shard: int, dataset: str) -> int:
    """Flip one bit in the middle of a dataset of the replica; the word's index."""
    path = local.replica.directory / SITE.shards[shard].file
    with h5py.File(path, "r") as file:
        offset, size = file[dataset].id.get_offset(), file[dataset].id.get_storage_size()
    at = offset + size // 2
    with open(path, "r+b") as raw:
        raw.seek(at)
        byte = raw.read(1)[0]
        raw.seek(at)
        raw.write(bytes([byte ^ 16]))
    return at


def _datasets() -> Iterator[tuple[int, str]]:
    for shard, layout in enumerate(SITE.shards):
        for dataset in layout.datasets:
            if dataset.pieces and not dataset.padding:
                yield shard, dataset.path


@pytest.mark.parametrize(("shard", "dataset"), list(_datasets()))
def test_a_flipped_bit_is_found_and_mended_alone(local: Local, steps: list[Path], shard: int, dataset: str) -> None:
    """In any tensor, touched by a delta or not; at a version that is reached by an anchor and a chain."""
    _catch_up(local)
    _flip(local, shard, dataset)
    broken = local.words()
    found = _restore(local, write=False)
    assert (found.ranges, found.words, found.written) == (1, 1, False)
    assert found.damage[0].shard == SITE.shards[shard].file
    assert found.damage[0].stop - found.damage[0].start == 1
    pieces = {p.tensor for d in SITE.shards[shard].datasets if d.path == dataset for p in d.pieces}
    assert found.damage[0].tensor in pieces
    assert local.words() == broken, "looking changes nothing"
    mended = _restore(local)
    assert (mended.ranges, mended.words, mended.written) == (1, 1, True)
    assert local.words() == full(steps[6])
    assert _restore(local).ranges == 0
    assert not (local.replica.work / "rebuild").exists()


@pytest.mark.parametrize("harm", ["cut", "gone", "scribbled"])
def test_a_shard_that_is_no_longer_one_is_made_anew(local: Local, steps: list[Path], harm: str) -> None:
    _catch_up(local)
    path = local.replica.directory / SITE.shards[1].file
    if harm == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif harm == "gone":
        path.unlink()
    else:
        path.write_bytes(bytes(path.stat().st_size))
    found = _restore(local)
    assert found.shards == (SITE.shards[1].file,)
    assert local.words() == full(steps[6])


def test_a_shard_that_was_to_be_made_anew_does_not_come_back_as_it_was(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before it is in place, a repair has not ended: the old file, mended as its error says, is no version."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    _catch_up(local)
    dataset = next(d for s, d in _datasets() if s == 1)
    _flip(local, 1, dataset)
    path = local.replica.directory / SITE.shards[1].file
    os.link(path, local.path / "backup")
    with monkeypatch.context() as patched:
        patched.setattr(durable, "copy", killed)
        with pytest.raises(Killed):
            _restore(local)
    os.unlink(local.path / "backup")
    with pytest.raises(NotReady, match="dcr repair"):
        apply_module.apply(local.site_ports, ApplyJob("s", local.replica.directory))
    assert local.replica.need().applying == 6
    _restore(local)
    assert local.words() == full(steps[6])
    assert local.replica.need().applying is None


def test_an_apply_whose_journals_are_gone(local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Torn between two versions, and nothing left to roll forward from: apply says so, and repair mends it."""
    from dcr_mpi.acts.prepare import prepare

    assert prepare(local.site_ports, PrepareJob("s", local.replica.directory, fold=True)) is not None
    calls: list[int] = []

    def torn(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise CorruptInput("the power went")
        return patch_file(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(apply_module, "patch_file", torn)
        with pytest.raises(CorruptInput, match="power"):
            local.apply(6)
    local.drop_journals(6)
    assert local.words() not in (full(steps[0]), full(steps[6]))
    with pytest.raises(NotReady, match="dcr repair"):
        local.apply()
    assert _restore(local).version == 6
    assert local.words() == full(steps[6])
    assert local.replica.need().applying is None


@pytest.mark.parametrize("point", ["create_replica", "replay", "_compare", "_mark", "apply"])
def test_a_repair_that_was_interrupted_is_run_again(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class Killed(BaseException):
        pass

    _catch_up(local)
    _flip(local, 0, next(d for s, d in _datasets() if s == 0))
    whole = getattr(restore_module, point)
    for when in ("before", "after"):

        def disturbed(*args: object, when: str = when, **kwargs: object) -> object:
            if when == "after":
                whole(*args, **kwargs)
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(restore_module, point, disturbed)
            with pytest.raises(Killed):
                _restore(local)
    _restore(local)
    assert local.words() == full(steps[6])
    assert local.replica.need().applying is None


def test_what_an_earlier_repair_left_is_of_no_use(local: Local, steps: list[Path]) -> None:
    _catch_up(local)
    _flip(local, 0, next(d for s, d in _datasets() if s == 0))
    _restore(local, write=False)
    rebuilt = local.replica.work / "rebuild"
    os.truncate(rebuilt / SITE.shards[0].file, 100)
    _restore(local)
    assert local.words() == full(steps[6])


def test_nothing_to_restore_from(local: Local) -> None:
    shutil.rmtree(local.path / "store/p/anchors")
    with pytest.raises(NotReady, match="anchor"):
        _restore(local)


# -- collecting ---------------------------------------------------------------------------------------------------


def test_everything_stays_that_a_site_still_needs(local: Local, steps: list[Path]) -> None:
    """The replica is at 0: all deltas stay, and the anchor that it would be repaired from."""
    before = _keys(local)
    found = _collect(local, anchors=1)
    assert (found.floor, found.anchors, found.sites) == (0, (0, 5), {"s": 0})
    gone = before - _keys(local)
    assert {key.split("/")[1:3][0] for key in gone} <= {"anchors", "versions"}
    assert not any("anchors/000005" in key or "anchors/000000" in key for key in gone)
    assert all("versions/000003" in key for key in gone if "/versions/" in key), "the aborted one alone"
    assert _catch_up(local).replayed == (1, 2, 4, 5, 6)
    assert local.words() == full(steps[6])


def test_what_no_site_needs_goes(local: Local, steps: list[Path]) -> None:
    _catch_up(local)
    dry = _collect(local, dry=True)
    before = _keys(local)
    found = _collect(local)
    assert (dry.keys, dry.objects, dry.bytes, dry.floor) == (found.keys, found.objects, found.bytes, found.floor)
    assert (found.floor, found.anchors) == (2, (2, 5))
    assert before - _keys(local) == set(found.keys) != set()
    left = {int(key.split("/")[2]) for key in _keys(local) if "/versions/" in key and "/parts/" in key}
    assert left == {4, 5, 6}
    assert _collect(local).objects == 0
    assert _restore(local).ranges == 0, "what is kept is enough to repair from"
    shutil.rmtree(local.replica.directory)
    create_replica(local.site_ports, CreateJob("s", local.replica.directory))
    assert _catch_up(local).replayed == (6,)
    assert local.words() == full(steps[6])
    local.encode(steps[1])  # the numbering goes on
    assert local.ports.catalog.last_opened() == 7


def test_a_site_whose_lease_ran_out_comes_back_by_an_anchor(local: Local, steps: list[Path]) -> None:
    _age(local.path / "store/p", 1000)
    found = _collect(local, anchors=1, lease_s=500)
    assert (found.floor, found.anchors, found.expired) == (5, (5,), ("s",))
    with pytest.raises(NotReady, match=r"version 1 .*collected"):
        local.prepare()
    assert _catch_up(local) == CaughtUp((), 6)
    assert local.words() == full(steps[6])


def test_a_site_that_is_being_made_holds_its_anchor(local: Local) -> None:
    """From version 2 on, by way of --from or an older anchor: nothing of it goes before it has reported."""
    _age(local.path / "store/p", 1000)
    shutil.rmtree(local.replica.directory)
    create_replica(local.site_ports, CreateJob("s", local.replica.directory, version=2))
    found = _collect(local, anchors=1, lease_s=500)
    assert (found.floor, found.anchors, found.sites) == (2, (2, 5), {"s": 2})
    assert _catch_up(local).replayed == (4, 5, 6)
    found = _collect(local, anchors=1, lease_s=500)
    assert (found.floor, found.sites) == (5, {"s": 6}), "it reported: the hold is of no more use"


def test_without_an_anchor_the_chain_stays(local: Local) -> None:
    shutil.rmtree(local.path / "store/p/anchors")
    _age(local.path / "store/p", 1000)
    found = _collect(local, lease_s=500)
    assert (found.floor, found.anchors, found.expired) == (0, (), ("s",))


def test_what_is_not_ours_stays(local: Local) -> None:
    _catch_up(local)
    strange = [
        "p/notes.txt",
        "p/versions/000001/parts/mine",
        "p/versions/000001/extra.json",
        "p/layouts/x/y.json",
        "q/policy.json",
    ]
    for key in strange:
        local.ports.catalog.store.put_once(key, b"not ours")
    found = _collect(local)
    assert found.objects
    assert found.strange == 4
    assert set(strange) <= _keys(local)


def test_the_version_under_way_stays(local: Local, steps: list[Path]) -> None:
    _catch_up(local)
    _age(local.path / "store/p", 1000)
    local.encode(steps[1])
    before = {key for key in _keys(local) if "/versions/000007/" in key}
    _collect(local, anchors=1)
    assert before <= _keys(local)
    assert local.prepare() is not None


def test_a_collection_that_was_interrupted_goes_on(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    _catch_up(local)
    whole, calls = type(local.ports.catalog.store).delete, []

    def failing(self: object, key: str) -> None:
        calls.append(key)
        if len(calls) == 4:
            raise NotReady("the network")
        whole(self, key)  # type: ignore[arg-type]

    want = set(_collect(local, dry=True).keys)
    before = _keys(local)
    with monkeypatch.context() as patched:
        patched.setattr(type(local.ports.catalog.store), "delete", failing)
        with pytest.raises(NotReady, match="network"):
            _collect(local)
    assert all("/parts/" not in key for key in calls[:3]), "manifests first"
    _collect(local)
    assert before - _keys(local) == want


def _keys(local: Local) -> set[str]:
    return {entry.key for entry in local.ports.catalog.store.walk("")}
