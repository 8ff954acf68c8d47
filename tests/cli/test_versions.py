"""Versions as a user moves them: run, abort, late and lagging sites, the birth of a policy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import KIND, Quick, Setup, Stages
from tests.world import LAUNCHERS, World

STRACE = ("strace", "-f", "-qq", "-o", "/dev/null")


@pytest.mark.mpi
def test_run_moves_every_site_and_may_be_run_again(pairs: Stages, tmp_path: Path) -> None:
    world = pairs.copy("begun", tmp_path / "w")
    new = str(world.synth(1))
    first = world.dcr(1, "run", new)
    assert set(first["acts"]) == {"encode", "refit east", "refit west", "commit", "apply east", "apply west"}
    again = world.dcr(1, "run", new)
    assert (again["version"], again["state"]) == (first["version"], first["state"]) == (1, first["state"])
    assert again["acts"]["refit east"]["act"] == "up to date"
    assert world.dcr(2, "run", str(world.synth(2)))["version"] == 2
    for site in world.sites:
        assert world.words(site) == world.full_transfer(2)


@pytest.mark.faults
def test_catch_up_tells_the_store_of_an_apply_that_could_not(stages: Stages, tmp_path: Path) -> None:
    """Killed after the last word and the record, before the applied receipt: nothing is left to catch up with."""
    world = stages.copy("committed", tmp_path / "w")
    receipt = world.path / "store/test/versions/000001/applied/rollout.json"
    kill = (*STRACE, "-P", str(receipt), "-e", "inject=link:signal=KILL:when=1")
    assert world.run(1, "apply", "--site", "rollout", before=kill).code in (-9, 137)
    assert world.replica().need().version == 1 and not receipt.exists()
    assert world.dcr(1, "refit", "--site", "rollout", "--catch-up")["replayed"] == []
    assert receipt.exists() and not list(world.replica().work.glob("v*"))


@pytest.mark.faults
def test_catch_up_goes_on_past_journals_that_were_half_removed(far: Quick, tmp_path: Path) -> None:
    """Killed in tidying up after several versions were written."""
    world = far.copy(tmp_path / "w")
    kill = (*STRACE, "-e", "inject=rmdir:signal=KILL:when=1")
    assert world.run(1, "refit", "--site", "behind", "--catch-up", before=kill).code in (-9, 137)
    caught = world.dcr(1, "refit", "--site", "behind", "--catch-up")
    assert (caught["version"], caught["replayed"]) == (6, [])
    assert not list(world.replica("behind").work.glob("v*"))


@pytest.mark.faults
@pytest.mark.parametrize("died", ["before the decision", "after it", "in an apply"])
def test_run_goes_on_where_it_died(pairs: Stages, tmp_path: Path, died: str) -> None:
    if died == "before the decision":
        world = pairs.copy("sealed", tmp_path / "w")
        world.dcr(1, "refit", "--site", "west")
    elif died == "after it":
        world = pairs.copy("committed", tmp_path / "w")
        world.dcr(1, "apply", "--site", "east")
    else:
        world = pairs.copy("committed", tmp_path / "w")
        count = _pwrites(world.copy(tmp_path / "count"), "run", _step(pairs))
        kill = (*STRACE, "-e", f"inject=pwrite64:signal=KILL:when={count}")
        assert world.run(1, "run", _step(pairs), before=kill).code in (-9, 137)
        assert [r["applying"] for r in world.dcr(1, "status")["replicas"].values()] == [None, 1]
    assert world.dcr(1, "run", _step(pairs))["version"] == 1
    for site in world.sites:
        assert world.words(site) == world.full_transfer(1)


def _step(stages: Stages) -> str:
    """The directory that version 1 was made of: a copy of its world is another one."""
    return str(stages["sealed"].path / "model/step-000001")


def _pwrites(world: World, *arguments: str) -> int:
    """The most pwrite64 calls that one thread of an undisturbed act makes: injection counts by thread."""
    log = world.path / "strace.log"
    done = world.run(1, *arguments, before=("strace", "-f", "-qq", "-o", str(log), "-e", "trace=pwrite64"))
    assert done.code == 0, done.error
    pids = [line.split()[0] for line in log.read_text().splitlines() if "pwrite64(" in line]
    return max(pids.count(pid) for pid in set(pids))


def test_abort_before_a_commit_and_not_after(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("prepared", tmp_path / "w")
    before = world.words()
    assert world.dcr(1, "commit", "--abort", "bad batch")["reason"] == "bad batch"
    assert world.dcr(1, "commit", "--abort")["act"] == "aborted", "a second abort is the same"
    refused = world.run(1, "commit")
    assert refused.code == 13 and "found an abort (bad batch), expected a commit" in refused.error
    refused = world.run(1, "refit", "--site", "rollout", "--version", "1")
    assert refused.code == 13 and "aborted (bad batch)" in refused.error
    assert world.dcr(1, "refit", "--site", "rollout")["act"] == "up to date"
    assert world.dcr(1, "apply", "--site", "rollout")["detail"] == {"action": "discard"}
    assert world.words() == before
    assert not list(world.replica().work.glob("v*")), "the aborted version's journals are gone"
    sealed = world.inside().cycle(2)
    assert (sealed["version"], sealed["base"]) == (2, 0)
    assert world.words() == world.full_transfer(2)
    refused = world.run(1, "commit", "--abort")
    assert refused.code == 13 and "found a commit, expected an abort" in refused.error


def test_an_aborted_version_that_nobody_looked_at_again(stages: Stages, tmp_path: Path) -> None:
    """The site goes straight to the next version; the aborted one's journals go with that one's."""
    world = stages.copy("prepared", tmp_path / "w")
    world.dcr(1, "commit", "--abort")
    assert world.inside().cycle(2)["version"] == 2
    assert not list(world.replica().work.glob("v*"))
    assert world.words() == world.full_transfer(2)


def test_commit_without_a_site(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("sealed", tmp_path / "w")
    refused = world.run(1, "commit", "--wait", "0.1")
    assert refused.code == 10 and "prepared receipt of site 'rollout' for version 1: found none" in refused.error
    assert world.dcr(1, "commit", "--without", "rollout")["prepared"] == {}
    assert world.dcr(1, "refit", "--site", "rollout", "--catch-up")["replayed"] == [1]
    assert world.words() == world.full_transfer(1)


def test_commit_that_gives_up(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("sealed", tmp_path / "w")
    done = world.run(1, "commit", "--wait", "0.1", "--set", "commit.on_timeout=abort")
    assert done.code == 13 and "found an abort" in done.error and "none within" in done.error
    assert world.dcr(1, "status")["versions"][-1]["state"].startswith("aborted: prepared receipt of site 'rollout'")


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Quick:
    """Five versions that no site was waited for, and an aborted one between: 1 2 - 4 5 6. One replica, one none."""
    world = Setup(tmp_path_factory.mktemp("far"), LAUNCHERS[KIND], sites=("behind", "late"))
    world.dcr(1, "init", "--checkpoint", str(world.synth(0)))
    world.dcr(1, "init", "--site", "behind")
    assert world.dcr(1, "init", "--site", "late", "--register-only")["act"] == "registered"
    for step in range(1, 7):
        assert world.encode(step)["version"] == step
        world.dcr(1, "commit", *(("--abort",) if step == 3 else ("--without", "behind", "--without", "late")))
    return world


@pytest.mark.mpi
@pytest.mark.parametrize(("site", "ranks"), [("behind", 1), ("late", 3)])
def test_catch_up(far: Quick, tmp_path: Path, site: str, ranks: int) -> None:
    """Through the chain from version 0: with a replica from before, or with one created now from the anchor."""
    world = far.copy(tmp_path / "w")
    if site == "late":
        assert world.dcr(ranks, "init", "--site", site)["version"] == 0
    caught = world.dcr(ranks, "refit", "--site", site, "--catch-up")
    assert (caught["act"], caught["version"], caught["replayed"]) == ("caught up", 6, [1, 2, 4, 5, 6])
    assert world.words(site) == world.full_transfer(6)
    again = world.dcr(1, "refit", "--site", site, "--catch-up")
    assert (again["act"], again["version"], again["replayed"]) == ("caught up", 6, [])
    status = world.dcr(1, "status", "--last", "6")
    assert [row["sites"][site] for row in status["versions"]] == [
        "passed", "passed", "dropped", "passed", "passed", "applied"
    ]  # fmt: skip


@pytest.mark.faults
def test_catch_up_finishes_an_interrupted_apply_first(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("committed", tmp_path / "w")
    kill = (*STRACE, "-e", "inject=pwrite64:signal=KILL:when=4")
    assert world.run(1, "apply", "--site", "rollout", before=kill).code in (-9, 137)
    world.encode(2)
    caught = world.dcr(1, "refit", "--site", "rollout", "--catch-up", "--wait", "5")
    assert caught["replayed"] == [1]
    assert (caught["act"], caught["version"]) == ("prepared", 2), "an undecided version is prepared and left at that"
    world.dcr(1, "commit")
    assert world.dcr(1, "refit", "--site", "rollout", "--catch-up")["replayed"] == [2]
    assert world.words() == world.full_transfer(2)


def test_catch_up_waits_for_a_first_version_only(stages: Stages) -> None:
    world = stages["applied"]
    refused = world.run(1, "refit", "--site", "rollout", "--catch-up", "--wait", "0.2")
    assert refused.code == 10 and "a version after 1: found none after 0.2 s" in refused.error
    assert world.dcr(1, "refit", "--site", "rollout", "--catch-up")["act"] == "caught up"


def test_init_twice_and_with_another_checkpoint(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("applied", tmp_path / "w")
    before = _store(world)
    again = world.dcr(1, "init", "--checkpoint", "model/step-000000")
    assert (again["act"], again["version"]) == ("init", 0)
    assert world.dcr(1, "init", "--site", "rollout")["version"] == 1
    refused = world.run(1, "init", "--checkpoint", "model/step-000001")
    assert refused.code == 13
    assert _store(world).items() >= before.items()
    assert world.encode(2)["base"] == 1, "the baseline is where it was"


def _store(world: World) -> dict[str, bytes]:
    store = world.path / "store"
    return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*") if p.is_file()}


def _replica_is_gone(world: World) -> None:
    shutil.rmtree(world.replica().directory)


def _never_made(world: World) -> None:
    assert not world.replica().directory.exists()


@pytest.mark.parametrize("way", [_never_made, _replica_is_gone], ids=["first replica", "lost replica"])
def test_a_replica_from_a_checkpoint(stages: Stages, tmp_path: Path, way: Callable[[World], None]) -> None:
    """Without an anchor a site fills its replica from shards at hand, which must be the newest committed version."""
    if way is _never_made:
        world, newest, other = Quick(tmp_path, LAUNCHERS[KIND]), "model/step-000000", "model/step-000001"
        done = world.dcr(1, "init", "--checkpoint", str(world.synth(0)), "--no-anchor")
        assert done["detail"]["anchor"] is False
        world.synth(1)
    else:
        world = stages.copy("applied", tmp_path / "w")
        newest, other = "model/step-000001", "model/step-000000"
        shutil.rmtree(world.path / "store/test/anchors")
    way(world)
    refused = world.run(1, "init", "--site", "rollout")
    assert refused.code == 10 and "--from" in refused.error
    refused = world.run(1, "init", "--site", "rollout", "--from", other)
    assert refused.code == 14 and "the source is not that version" in refused.error
    assert not list(world.replica().directory.glob("*.h5")), "what was made is removed"
    made = world.dcr(1, "init", "--site", "rollout", "--from", newest)
    assert world.words() == world.full_transfer(made["version"])
    number = made["version"] + 1
    assert world.inside().cycle(number)["version"] == number
    assert world.words() == world.full_transfer(number)


def test_an_anchor_published_later(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("applied", tmp_path / "w")
    shutil.rmtree(world.path / "store/test/anchors")
    _replica_is_gone(world)
    refused = world.run(1, "init", "--site", "rollout")
    assert "dcr init --checkpoint" in refused.error
    world.dcr(1, "init", "--checkpoint", "model/step-000000")
    assert world.dcr(1, "init", "--site", "rollout")["version"] == 0
    assert world.dcr(1, "refit", "--site", "rollout", "--catch-up")["replayed"] == [1]
    assert world.words() == world.full_transfer(1)


def test_a_site_that_no_version_was_cut_for(stages: Stages, tmp_path: Path) -> None:
    """Registered after the fact: told so, and brought up to date from the newest checkpoint."""
    world = stages.copy("applied", tmp_path / "w")
    new = ("--set", "sites={new: {replica: replica-new, layout: model/layouts/site.json}}")
    listed = ("--set", "trainer.sites=[new]")
    world.dcr(1, "init", "--site", "new", *new)
    refused = world.run(1, "refit", "--site", "new", *new)
    assert refused.code == 15
    assert "cut for sites ['rollout']" in refused.error and "trainer.sites" in refused.error
    assert "dcr init --site new --from" in refused.error
    shutil.rmtree(world.path / "replica-new")
    world.dcr(1, "init", "--site", "new", "--from", "model/step-000001", *new)
    world.dcr(1, "encode", str(world.synth(2)), *listed)
    world.dcr(1, "refit", "--site", "new", *new)
    world.dcr(1, "commit")
    world.dcr(1, "apply", "--site", "new", *new)
    assert world.words("new") == world.full_transfer(2)
