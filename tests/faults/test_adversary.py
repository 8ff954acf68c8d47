"""What an adversary tried: each of these once left a replica in between, hid an error, or told a wrong remedy."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from dcr_mpi import durable
from dcr_mpi import journal as journal_module
from dcr_mpi.acts.commit import abort, decide
from dcr_mpi.acts.create import CreateJob, create_replica
from dcr_mpi.acts.encode import encode
from dcr_mpi.acts.init import InitJob, init_policy, register_site
from dcr_mpi.acts.next_version import EncodeJob, find_next, open_version
from dcr_mpi.acts.relay import relay
from dcr_mpi.acts.replica import journal
from dcr_mpi.acts.target import ShardTarget
from dcr_mpi.catalog import Catalog
from dcr_mpi.comm import Solo
from dcr_mpi.errors import BaseMismatch, Conflict, CorruptInput, DcrError, NotReady, ResourceError, VerifyFailed
from dcr_mpi.journal import Binding, Frame, JournalWriter, Patch, read_journal
from dcr_mpi.model import Layout, PartEntry
from dcr_mpi.region import Region
from tests.acts.local import SMALL, Local
from tests.world import read_all


def checkpoint(path: Path, seed: int) -> Path:
    path.mkdir()
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2**32, 3000, dtype=np.uint32), rng.integers(0, 2**16, 3000, dtype=np.uint16)
    own = np.random.default_rng(seed)
    if seed:
        x[own.integers(0, 3000, 20)] ^= 1
        y[own.integers(0, 3000, 50)] ^= 1
    with h5py.File(path / "a.h5", "w") as file:
        file["x"], file["y"] = x, y
    return path


@pytest.fixture
def world(tmp_path: Path) -> Local:
    local = Local(tmp_path, None, None)
    local.begin(checkpoint(tmp_path / "s0", 0))
    return local


def is_step(local: Local, step: int) -> bool:
    return local.words() == read_all(local.path / f"s{step}", local.ports.catalog.policy()[0].trainer)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_journal_never_leaves_the_replica_between_versions(world: Local, damage: str) -> None:
    """The error's own remedy must work: refit, apply, and the bits are right."""
    world.encode(checkpoint(world.path / "s1", 1))
    world.prepare()
    world.commit()
    journals = world.replica.sealed(1)
    assert journals is not None
    path = journal(journals, 0)
    raw = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw if damage == "flip" else raw[:-40])
    with pytest.raises(CorruptInput):
        world.apply()
    assert is_step(world, 0), "nothing may be written before all journals are known to be whole"
    world.prepare()
    world.apply()
    assert is_step(world, 1)


def test_refit_again_killed_then_commit_and_apply(world: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second refit takes finished journals over into its own; dying there must not end in a dead end."""
    world.encode(checkpoint(world.path / "s1", 1))
    world.prepare()

    class Killed(BaseException): ...

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(JournalWriter, "finish", die)
        with pytest.raises(Killed):
            world.prepare()
    world.commit()
    try:
        world.apply()
    except DcrError:
        world.prepare()
        world.apply()
    assert is_step(world, 1)


def test_create_killed_between_its_renames_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = Local(tmp_path, None, None)
    init_policy(local.ports, InitJob(checkpoint(tmp_path / "s0", 0), tmp_path / "state", None, local.codec))
    register_site(local.ports, "s", None)

    class Killed(BaseException): ...

    whole = ShardTarget.publish

    def die(self: ShardTarget, layout: Layout, allowed: Callable[[], None]) -> None:
        whole(self, layout, allowed)
        raise Killed

    job = CreateJob("s", local.replica.directory)
    with monkeypatch.context() as patch:
        patch.setattr(ShardTarget, "publish", die)
        with pytest.raises(Killed):
            create_replica(local.ports, job)
    create_replica(local.ports, job)
    assert is_step(local, 0)


def test_create_does_not_call_a_broken_replica_created(world: Local) -> None:
    (world.replica.directory / "a.h5").unlink()
    with pytest.raises(DcrError):
        create_replica(world.ports, CreateJob("s", world.replica.directory))


def test_create_does_not_call_an_interrupted_apply_created(world: Local) -> None:
    world.save(dataclasses.replace(world.replica.need(), applying=1))
    with pytest.raises(NotReady):
        create_replica(world.ports, CreateJob("s", world.replica.directory))


def test_a_failing_rank_does_not_wait_for_fetches_under_way() -> None:
    entries = [PartEntry(k, f"k{k}", 4, "", 1, 1) for k in range(4)]

    def fetch(entry: PartEntry) -> bytes:
        if entry.index == 0:
            raise CorruptInput("part 0 is bad")
        time.sleep(6)
        return b"abcd"

    begun = time.monotonic()
    with pytest.raises(CorruptInput):
        relay(Solo(), entries, [True] * 4, fetch, lambda *_: None, degree=2, window=4)
    assert time.monotonic() - begun < 2


def _tamper(local: Local, **changes: object) -> None:
    path = local.path / "store/p/versions/000001/manifest.json"
    plain = {**json.loads(path.read_bytes()), **changes}
    path.unlink()
    path.write_bytes(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


def test_a_manifest_whose_state_does_not_follow_from_its_tensors(world: Local) -> None:
    world.encode(checkpoint(world.path / "s1", 1))
    _tamper(world, state="0" * 64)
    with pytest.raises((CorruptInput, VerifyFailed)):
        world.prepare()


@pytest.mark.parametrize("changes", [{"tensors": []}, {"version": 7}, {"tensors": ["zz", "zz"]}])
def test_a_manifest_that_does_not_fit_is_corrupt_before_any_fetch(world: Local, changes: dict[str, object]) -> None:
    world.encode(checkpoint(world.path / "s1", 1))
    _tamper(world, **changes)
    with pytest.raises(CorruptInput) as caught:
        world.prepare()
    assert caught.value.remedy


@pytest.mark.parametrize("key", ["../x", "/abs", "."])
def test_hostile_part_keys_are_corrupt_input_not_usage(world: Local, key: str) -> None:
    world.encode(checkpoint(world.path / "s1", 1))
    path = world.path / "store/p/versions/000001/manifest.json"
    parts = json.loads(path.read_bytes())["parts"]
    parts[0]["key"] = key
    _tamper(world, parts=parts)
    with pytest.raises(CorruptInput) as caught:
        world.prepare()
    assert caught.value.remedy


def test_an_open_announcement_cut_for_other_sites_is_not_joined(world: Local) -> None:
    """A dead publisher opened version 1 for nobody: the next one must not seal (and commit) it without site s."""
    new = checkpoint(world.path / "s1", 1)
    nobody = EncodeJob(new, None, world.path / "state", (), world.codec)
    policy = world.ports.catalog.policy()[0]
    open_version(world.ports.catalog, nobody, policy, find_next(world.ports.catalog, nobody, policy))
    with pytest.raises(Conflict):
        world.encode(new)


def test_a_state_directory_that_remembers_another_store_makes_no_gap(world: Local) -> None:
    for step in (1, 2, 3):
        world.cycle(checkpoint(world.path / f"s{step}", step))
    world.encode(checkpoint(world.path / "s4", 4))  # settles: the record says version 3
    shutil.rmtree(world.path / "store")
    shutil.rmtree(world.path / "replica")
    init_policy(world.ports, InitJob(world.path / "s0", world.path / "elsewhere", None, world.codec))
    register_site(world.ports, "s", None)
    create_replica(world.ports, CreateJob("s", world.replica.directory))
    assert world.encode(checkpoint(world.path / "s5", 5), base=world.path / "s0").version == 1
    assert world.prepare() is not None


def test_the_publishers_record_is_of_one_policy(world: Local) -> None:
    """Policy q's commit of its version 1 says nothing about policy p's version 1."""
    q = dataclasses.replace(world.ports, catalog=Catalog(world.ports.catalog.store, "q"))
    init_policy(q, InitJob(world.path / "s0", world.path / "state-q", None, SMALL))
    one, two = checkpoint(world.path / "s1", 1), checkpoint(world.path / "s2", 2)
    encode(q, EncodeJob(one, None, world.path / "state-q", (), SMALL))
    decide(q.catalog, wait_s=0)
    world.encode(one)
    abort(world.ports.catalog, 1, "test")
    with contextlib.suppress(DcrError):
        encode(q, EncodeJob(two, one, world.path / "state", (), SMALL))  # q with p's state directory, by mistake
    assert world.encode(two).base == 0


def test_a_base_that_changes_while_it_is_read_seals_nothing(world: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    module = sys.modules["dcr_mpi.acts.encode"]
    publish = module.publish

    def meanwhile(*args: object, **more: object) -> object:
        with h5py.File(world.path / "s0/a.h5", "r+") as file:
            file["x"][5] = file["x"][5] ^ 1
        return publish(*args, **more)

    monkeypatch.setattr(module, "publish", meanwhile)
    with pytest.raises(CorruptInput):
        world.encode(checkpoint(world.path / "s1", 1))
    assert world.ports.catalog.manifest(1) is None


def test_apply_of_an_aborted_version_is_not_reported_as_applied(world: Local) -> None:
    world.encode(checkpoint(world.path / "s1", 1))
    world.prepare()
    abort(world.ports.catalog, 1, "test")
    try:
        receipt = world.apply(1)
    except Conflict:
        return
    assert receipt.act != "applied"


def test_apply_of_an_older_version_says_what_to_do(world: Local) -> None:
    for step in (1, 2):
        world.cycle(checkpoint(world.path / f"s{step}", step))
    with pytest.raises(DcrError) as caught:
        world.apply(1)
    assert "refit" not in caught.value.remedy, "no refit brings a replica back to an older version"


def test_an_error_is_not_hidden_by_a_lease_that_cannot_be_given_back(
    world: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.encode(checkpoint(world.path / "s1", 1))
    path = world.replica.directory / "a.h5"
    with h5py.File(path, "r+") as file:
        file["x"][5] = file["x"][5] ^ 1

    def full(path: object, data: object) -> None:
        raise ResourceError("replacing lease", found="ENOSPC")

    monkeypatch.setattr(durable, "replace", full)
    with pytest.raises(BaseMismatch):
        world.prepare()


def test_a_journal_never_holds_a_frame_that_its_reader_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """part_mib may be 4096, and a shard may hold several copies: then a frame passes 4 GiB."""
    monkeypatch.setattr(journal_module, "_MAX_FRAME", 1000)
    binding = Binding("0" * 64, "a.h5", "1" * 64)
    writer = JournalWriter(tmp_path / "j", binding)
    words = np.zeros(2000, "<u2")
    patch = Patch(0, 0, Region(0, (2000,), (1,)), 0, 2000, bytes(16), words)
    try:
        writer.append(0, Frame({}, [patch]))
    except DcrError:
        return
    writer.finish()
    assert len(list(read_journal(tmp_path / "j", binding))) == 1


def test_a_shard_with_another_hard_link_is_not_patched(world: Local) -> None:
    """cp -al of a replica (or of the trainer's checkpoint) shares the bytes: patching in place would change both."""
    world.encode(checkpoint(world.path / "s1", 1))
    os.link(world.replica.directory / "a.h5", world.path / "backup.h5")
    before = (world.path / "backup.h5").read_bytes()
    try:
        world.prepare()
        world.commit()
        world.apply()
    except DcrError:
        pass
    assert (world.path / "backup.h5").read_bytes() == before
