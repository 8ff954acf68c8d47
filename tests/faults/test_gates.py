"""What must be refused, with the replica untouched, the right exit code and a message that says what to do."""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import h5py
import pytest

from dcr_mpi.acts import encode as encode_module
from dcr_mpi.acts.anchor import AnchorJob, anchor
from dcr_mpi.acts.baseline import BaselineRecord
from dcr_mpi.acts.commit import abort, decide
from dcr_mpi.acts.create import CreateJob, create_replica
from dcr_mpi.acts.init import InitJob, init_policy, register_site
from dcr_mpi.acts.ports import Ports
from dcr_mpi.acts.restore import RestoreJob, restore
from dcr_mpi.acts.state import check_checkpoint
from dcr_mpi.checkpoint import Checkpoint, fingerprint
from dcr_mpi.cli import follow
from dcr_mpi.cli.staying import Due
from dcr_mpi.config import load
from dcr_mpi.digest import sha256
from dcr_mpi.errors import (
    BaseMismatch,
    Conflict,
    CorruptInput,
    GeometryError,
    NotReady,
    ResourceError,
    UsageError,
    VerifyFailed,
)
from dcr_mpi.jsonable import dumps
from dcr_mpi.lease import Lease
from dcr_mpi.synth import TINY, trainer_layout, write_checkpoint
from tests.acts.local import Local
from tests.acts.tiny import SITE, TRAINER, full, write_steps


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Checkpoints of steps 0 to 3."""
    return write_steps(tmp_path_factory.mktemp("steps"), 4)


@pytest.fixture
def local(tmp_path: Path, steps: list[Path]) -> Local:
    made = Local(tmp_path, TRAINER, SITE)
    made.begin(steps[0])
    return made


def _flip(local: Local, shard: int, dataset: str, byte: int) -> None:
    """Flip one bit of a replica's file behind its back."""
    path = local.replica.directory / SITE.shards[shard].file
    with h5py.File(path) as file:
        at = file[dataset].id.get_offset() + byte
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_three_versions(local: Local, steps: list[Path]) -> None:
    for step in (1, 2, 3):
        sealed = local.cycle(steps[step])
        assert (sealed.version, sealed.base) == (step, step - 1)
        assert local.words() == full(steps[step])
    assert local.prepare() is None


@pytest.mark.parametrize("dataset", ["0/qkv", "0/expert3/down", "buffers/position_ids", "0/norm"])
def test_one_flipped_bit_is_refused(local: Local, steps: list[Path], dataset: str) -> None:
    """In a touched tensor, and also in one that the version does not change at all."""
    local.encode(steps[1])
    _flip(local, 1, dataset, 5)
    before = local.words()
    with pytest.raises(BaseMismatch, match="other bytes in the replica"):
        local.prepare()
    assert local.words() == before
    _flip(local, 1, dataset, 5)
    assert local.prepare() is not None


def test_a_bit_flipped_between_prepare_and_apply_is_found_before_the_block_is_written(
    local: Local, steps: list[Path]
) -> None:
    local.encode(steps[1])
    local.prepare()
    local.commit()
    _flip(local, 0, "0/qkv", 4)
    with pytest.raises(VerifyFailed, match="changed after prepare"):
        local.apply()
    _flip(local, 0, "0/qkv", 4)
    local.apply()
    assert local.words() == full(steps[1])


def test_stale_and_skipped_versions(local: Local, steps: list[Path], tmp_path: Path) -> None:
    shutil.copytree(local.replica.directory, tmp_path / "late")
    local.cycle(steps[1])
    local.cycle(steps[2])
    late = Local(tmp_path, TRAINER, SITE)
    shutil.rmtree(local.replica.directory)
    shutil.copytree(tmp_path / "late", local.replica.directory)
    before = late.words()
    with pytest.raises(BaseMismatch, match="the base of version 2") as refused:
        late.prepare(2)
    assert "next" in str(refused.value)
    assert late.words() == before
    for version in (1, 2):
        late.prepare(version)
        late.apply(version)
    assert late.words() == full(steps[2])


def test_applied_twice_is_applied_once(local: Local, steps: list[Path]) -> None:
    local.cycle(steps[1])
    before, files = local.words(), fingerprint(local.replica.directory, SITE)
    first = local.ports.catalog.receipt(1, "applied", "s")
    assert local.apply(1).detail["action"] == "done"
    assert local.ports.catalog.receipt(1, "applied", "s") == first
    assert (local.words(), fingerprint(local.replica.directory, SITE)) == (before, files)


def test_abort_is_free_and_the_next_delta_is_made_from_the_last_commit(local: Local, steps: list[Path]) -> None:
    local.encode(steps[1])
    local.prepare()
    before = local.words()
    assert not abort(local.ports.catalog, 1, "test").commit
    assert local.apply().detail["action"] == "discard"
    with pytest.raises(Conflict, match="a decision to abort it"):
        local.apply(1)
    assert local.words() == before
    sealed = local.cycle(steps[2])
    assert (sealed.version, sealed.base) == (2, 0)
    assert local.words() == full(steps[2])
    with pytest.raises(Conflict, match="aborted"):
        local.prepare(1)


def test_nothing_is_applied_before_the_decision(local: Local, steps: list[Path]) -> None:
    local.encode(steps[1])
    local.prepare()
    before = local.words()
    with pytest.raises(NotReady, match="decision on version 1"):
        local.apply()
    assert local.words() == before


def test_commit_waits_for_every_site(local: Local, steps: list[Path]) -> None:
    local.encode(steps[1])
    with pytest.raises(NotReady, match="prepared receipt of site 's'"):
        decide(local.ports.catalog, wait_s=0.2)
    assert local.ports.catalog.decision(1) is None
    assert not decide(local.ports.catalog, wait_s=0.2, on_timeout="abort").commit


def test_a_site_that_was_not_waited_for_prepares_and_applies_late(local: Local, steps: list[Path]) -> None:
    local.encode(steps[1])
    assert decide(local.ports.catalog, sites=[], wait_s=1).commit
    with pytest.raises(NotReady, match="run dcr refit"):
        local.apply(1)
    local.prepare()
    local.apply()
    assert local.words() == full(steps[1])


def test_two_publishers_of_one_version(local: Local, steps: list[Path], tmp_path: Path) -> None:
    """The first sealed manifest stands; the other publisher learns that it lost; encoding the same again is fine."""
    local.encode(steps[1])
    with pytest.raises(Conflict, match="undecided, expected a decision before"):
        local.encode(steps[2])
    (tmp_path / "state/pending.json").unlink()  # the other publisher has records of its own
    other = Local(tmp_path, TRAINER, SITE)
    with pytest.raises(Conflict, match="another publisher sealed this version"):
        other.encode(steps[2], base=steps[0])
    assert other.encode(steps[1], base=steps[0]).version == 1


def test_a_step_that_is_repeated_under_the_same_name(local: Local, steps: list[Path], tmp_path: Path) -> None:
    """Stopped after it had sealed, a job writes its checkpoint again: the same words are fine, others are not."""
    written = tmp_path / "written"
    shutil.copytree(steps[1], written)
    first = local.encode(written)
    shutil.rmtree(written)
    shutil.copytree(steps[1], written)
    again = local.encode(written)
    assert (again.version, again.manifest_sha256) == (1, first.manifest_sha256)
    shutil.rmtree(written)
    shutil.copytree(steps[2], written)
    with pytest.raises(Conflict, match="written again since with other words"):
        local.encode(written)
    local.prepare()
    assert decide(local.ports.catalog, wait_s=1).commit
    local.apply()
    assert local.words() == full(steps[1])


def test_an_anchor_of_another_checkpoint_fills_no_replica(local: Local, steps: list[Path], tmp_path: Path) -> None:
    """An older dcr, killed between the anchor and version 0, could leave one."""
    (tmp_path / "elsewhere").mkdir()
    other = Local(tmp_path / "elsewhere", TRAINER, SITE)
    other.begin(steps[1])
    anchors = tmp_path / "store/p/anchors"
    shutil.rmtree(anchors)
    shutil.copytree(tmp_path / "elsewhere/store/p/anchors", anchors)
    for tiling in (tmp_path / "elsewhere/store/p/tilings").iterdir():
        shutil.copy(tiling, tmp_path / "store/p/tilings" / tiling.name)
    with pytest.raises(CorruptInput, match="made of another checkpoint"):
        create_replica(local.site_ports, CreateJob("s", tmp_path / "new"))
    with pytest.raises(CorruptInput, match="made of another checkpoint"):
        anchor(local.ports, AnchorJob(steps[0], tmp_path / "state", 0, local.codec))
    local.cycle(steps[1])
    anchor(local.ports, AnchorJob(None, tmp_path / "state", None, local.codec))
    record, made = create_replica(local.site_ports, CreateJob("s", tmp_path / "new"))
    assert made and record.version == 1


def test_version_0_is_never_aborted(local: Local) -> None:
    with pytest.raises(Conflict, match="all others are made from this one"):
        abort(local.ports.catalog, 0)


def test_a_publisher_that_dies_before_it_seals_may_bring_another_checkpoint(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had noted what it was about to seal; nothing stands, so nothing binds it."""
    with monkeypatch.context() as patched:
        patched.setattr(local.ports.catalog, "put_manifest", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            local.encode(steps[1])
    local.cycle(steps[2])
    assert local.words() == full(steps[2])
    local.cycle(steps[1])
    assert local.words() == full(steps[1])


def test_another_publishers_version_is_no_baseline_of_ours(local: Local, steps: list[Path], tmp_path: Path) -> None:
    """Killed between its note and the manifest, it comes back when another's version of that number is committed."""
    record = BaselineRecord(tmp_path / "state")
    local.encode(steps[1])
    note = record.pending()
    assert note is not None
    record.drop_pending()
    (tmp_path / "store/p/versions/000001/manifest.json").unlink()
    Local(tmp_path, TRAINER, SITE).encode(steps[2], base=steps[0])
    record.set_pending(note)
    local.prepare()
    local.commit()
    record.settle(local.ports.catalog)
    found = record.baseline()
    assert found is not None
    assert found.version == 0, "our directory does not hold what was committed"
    assert local.encode(steps[1], base=steps[2]).version == 2
    local.apply(1)
    local.prepare()
    local.commit()
    local.apply()
    assert local.words() == full(steps[1])


def test_a_shard_that_is_written_again_once_it_was_listed(
    local: Local, steps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its words lie is known from the list: from then on nobody may write to it."""
    new = tmp_path / "new"
    shutil.copytree(steps[1], new)
    whole = check_checkpoint

    def rewritten(ports: Ports, checkpoint: Checkpoint) -> int | None:
        step = whole(ports, checkpoint)
        if checkpoint.directory == new:
            path = next(new.glob("*.h5"))
            path.write_bytes(path.read_bytes())
        return step

    monkeypatch.setattr(encode_module, "check_checkpoint", rewritten)
    with pytest.raises(CorruptInput, match="changed while they were read"):
        local.encode(new)
    assert local.ports.catalog.manifest(1) is None


def test_a_manifest_that_is_shown_late_costs_no_record(
    local: Local, steps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A committed version has a manifest: a publisher that does not see it must still know its own later."""
    local.cycle(steps[1])
    record = BaselineRecord(tmp_path / "state")
    with monkeypatch.context() as patched:
        patched.setattr(local.ports.catalog, "manifest", lambda *_: None)
        record.settle(local.ports.catalog)
    pending = record.pending()
    assert pending is not None and pending.version == 1
    local.cycle(steps[2])
    found = record.baseline()
    assert found is not None and found.version >= 1
    assert local.words() == full(steps[2])


def test_a_publisher_that_goes_back_is_heard(local: Local, steps: list[Path], tmp_path: Path) -> None:
    """Another publisher went on from our version; our old shards, brought in again, are a new version, not a re-run."""
    local.cycle(steps[1])
    assert local.encode(steps[1]).version == 1, "a re-run, as long as nobody went on"
    other = Local(tmp_path, TRAINER, SITE)
    for record in (tmp_path / "state").iterdir():
        record.rename(tmp_path / record.name)
    other.encode(steps[2], base=steps[1])
    for record in (tmp_path / "state").iterdir():
        record.unlink()
    for record in tmp_path.glob("*.json"):
        record.rename(tmp_path / "state" / record.name)
    other.prepare()
    other.commit()
    other.apply()
    assert local.words() == full(steps[2])
    again = local.encode(steps[1], base=steps[2])
    assert again.version == 3
    local.prepare()
    local.commit()
    local.apply()
    assert local.words() == full(steps[1])


def test_a_tiling_that_was_collected_while_a_version_was_opened_is_put_again(
    local: Local, steps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(local.ports.catalog, "put_manifest", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            local.encode(steps[1])
    opened = local.ports.catalog.opened(1)
    assert opened is not None
    (tmp_path / f"store/p/tilings/{opened.tiling}.json.zst").unlink()
    local.cycle(steps[1])
    assert local.words() == full(steps[1])


def test_a_wrong_base_directory_is_refused(local: Local, steps: list[Path], tmp_path: Path) -> None:
    local.cycle(steps[1])
    with pytest.raises(BaseMismatch, match="base checkpoint"):
        local.encode(steps[3], base=steps[2])
    assert local.encode(steps[1]).version == 1, "encoding a committed checkpoint again is a re-run"
    with pytest.raises(UsageError, match="as base and as new"):
        local.encode(steps[2], base=steps[2])
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(UsageError, match="no record of a directory"):
        local.encode(steps[2])
    assert local.encode(steps[2], base=steps[1]).base == 1


def test_a_base_that_was_written_to_since_is_recognised_by_its_state(
    local: Local, steps: list[Path], tmp_path: Path
) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(steps[0], twin)
    assert local.encode(steps[1], base=twin).version == 1
    path = twin / TRAINER.shards[0].file
    with h5py.File(path) as file:
        at = file["model.layers.0.attn.qkv"].id.get_offset()
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(BaseMismatch, match=r"model\.layers\.0\.q"):
        local.encode(steps[1], base=twin)


def test_two_shards_that_publish_different_bytes_for_one_tensor(
    local: Local, steps: list[Path], tmp_path: Path
) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(steps[1], torn)
    path = torn / TRAINER.shards[2].file
    with h5py.File(path) as file:
        at = file["model.layers.0.norm.weight"].id.get_offset()
    raw = bytearray(path.read_bytes())
    raw[at] ^= 4
    path.write_bytes(raw)
    with pytest.raises(VerifyFailed, match="different bytes in"):
        local.encode(torn)
    assert local.ports.catalog.manifest(1) is None


@pytest.mark.parametrize("fault", ["missing", "extra", "other step", "truncated", "empty"])
def test_an_incomplete_shard_set_is_refused(local: Local, steps: list[Path], tmp_path: Path, fault: str) -> None:
    new = tmp_path / "new"
    shutil.copytree(steps[1], new)
    last = new / TRAINER.shards[3].file
    if fault == "missing":
        last.unlink()
    elif fault == "extra":
        shutil.copy(last, new / "train-00009.h5")
    elif fault == "other step":
        shutil.copy(steps[2] / last.name, last)
    elif fault == "truncated":
        last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    else:
        last.write_bytes(b"")
    with pytest.raises((CorruptInput, GeometryError, NotReady)):
        local.encode(new)
    assert local.ports.catalog.opened(1) is None


def test_a_site_whose_layout_was_not_listed(local: Local, steps: list[Path]) -> None:
    local.encode(steps[1], sites=())
    with pytest.raises(GeometryError, match="let the trainer list this site"):
        local.prepare()


def test_what_is_sealed_goes_on_as_it_was_cut(local: Local, steps: list[Path]) -> None:
    """A publisher comes back to it, and the sites that are listed are others by now."""
    sealed = local.encode(steps[1])
    assert local.encode(steps[1], sites=()).manifest_sha256 == sealed.manifest_sha256
    local.prepare()
    local.commit()
    local.apply()
    assert local.words() == full(steps[1])


def test_an_abort_between_two_looks_of_a_site_that_stays(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows of a version that was undecided a moment ago: neither applied nor caught up with."""
    local.encode(steps[1])
    local.prepare()
    abort(local.ports.catalog, 1)
    monkeypatch.setattr(follow, "following", lambda *_: 1)
    config = load(None, {"policy": "p", "store.url": str(local.path / "store")})
    args = Namespace(until=None, idle=0.2, after=None)
    due = Due(local.site_ports, args, local.replica.work / "paused.json")
    found = follow._look(local.site_ports, config, local.replica, args, due)
    assert found == {"do": "wait", "version": None, "at": 0, "unfinished": False}


def test_another_policy_of_the_same_name(local: Local, steps: list[Path], tmp_path: Path) -> None:
    other = Local(tmp_path / "other", None, SITE)
    (tmp_path / "other").mkdir()
    smaller = trainer_layout(TINY, shards=2)
    write_checkpoint(tmp_path / "two", smaller, 0)
    init_policy(other.ports, InitJob(tmp_path / "two", tmp_path / "other/state", smaller))
    register_site(other.ports, "s", SITE)
    shutil.copytree(local.replica.directory, other.replica.directory)
    with pytest.raises(BaseMismatch, match="policy"):
        other.prepare()
    with pytest.raises(Conflict, match="other content"):
        init_policy(local.ports, InitJob(tmp_path / "two", tmp_path / "state", smaller))


def test_no_replica_yet(local: Local, steps: list[Path]) -> None:
    shutil.rmtree(local.replica.directory)
    local.encode(steps[1])
    with pytest.raises(NotReady, match="dcr init --site"):
        local.prepare()


def test_a_replica_is_never_made_over_other_files(local: Local) -> None:
    (local.replica.work / "replica.json").unlink()
    with pytest.raises(Conflict, match="without a replica record"):
        create_replica(local.ports, CreateJob("s", local.replica.directory))


def test_a_part_replaced_in_the_store(local: Local, steps: list[Path]) -> None:
    local.encode(steps[1])
    part = min((local.path / "store/p/versions/000001/parts").iterdir())
    good = part.read_bytes()
    for bad in (good[:-1], b"", good[:50] + bytes([good[50] ^ 1]) + good[51:]):
        part.chmod(0o644)
        part.write_bytes(bad)
        before = local.words()
        with pytest.raises(CorruptInput, match="part 0"):
            local.prepare()
        assert local.words() == before
    part.unlink()
    with pytest.raises(NotReady, match="part 0"):
        local.prepare()
    part.write_bytes(good)
    assert local.prepare() is not None


def test_a_lease_is_held_once(local: Local, steps: list[Path]) -> None:
    local.encode(steps[1])
    with Lease(local.replica.work), pytest.raises(Conflict, match="held by pid"):
        local.prepare()
    assert local.prepare() is not None


def test_prepared_again_fetches_nothing(local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    local.encode(steps[1])
    first = local.prepare()
    fetched: list[int] = []
    monkeypatch.setattr(local.ports.catalog.contents, "part", lambda entry, *_: fetched.append(entry.index))
    again = local.prepare()
    assert first is not None
    assert again is not None
    assert (again.manifest_sha256, again.state) == (first.manifest_sha256, first.state)
    assert fetched == []
    assert local.ports.catalog.receipt(1, "prepared", "s") == (first, sha256(dumps(first))), "the first one stands"


def test_too_little_room_is_found_before_anything_is_fetched(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system with 1000 bytes left: the message says how much is needed."""
    local.encode(steps[1])
    fetched: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
        patched.setattr(local.ports.catalog.contents, "part", lambda entry, *_: fetched.append(entry.index))
        with pytest.raises(ResourceError, match=r"found 1000 B free, expected about .* changed words. Next: make room"):
            local.prepare()
    assert fetched == []
    assert local.prepare() is not None


def test_too_little_room_for_a_new_replica(
    local: Local, steps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found before a shard is begun; the same for the copy that a repair is made from."""
    other = CreateJob("s", tmp_path / "other")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
        with pytest.raises(ResourceError, match=r"new shards in .*: found 1000 B free, expected about .* version 0"):
            create_replica(local.site_ports, other)
        with pytest.raises(ResourceError, match=r"new shards in .*rebuild"):
            restore(local.site_ports, RestoreJob("s", local.replica.directory))
    assert not list((tmp_path / "other").glob("*.h5"))
    assert create_replica(local.site_ports, other)[1]
    assert local.words() == full(steps[0])


def test_the_publisher_restarts(local: Local, steps: list[Path], tmp_path: Path) -> None:
    """Versions and base are read back from the store, with or without the publisher's own record."""
    local.cycle(steps[1])
    local.cycle(steps[2])
    shutil.rmtree(tmp_path / "state")
    again = Local(tmp_path, TRAINER, SITE)
    sealed = again.encode(steps[3], base=steps[2])
    assert (sealed.version, sealed.base) == (3, 2)


def test_three_steps_between_refits(local: Local, steps: list[Path]) -> None:
    """What changed in a step that was never sent by itself is still sent."""
    assert local.cycle(steps[3]).version == 1
    assert local.words() == full(steps[3])
