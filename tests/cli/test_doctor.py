"""dcr doctor on one rank: every check on a healthy machine, and each made to fail by what really is wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dcr_mpi.cli.doctor import node, places, remote
from dcr_mpi.cli.doctor.finding import Finding, fail, merged, ok, warn
from dcr_mpi.config import load
from dcr_mpi.errors import NotReady, UsageError
from dcr_mpi.mounts import mount_of
from tests.cli.conftest import Quick, Stages
from tests.cli.shell import everything
from tests.store.test_directory import can_unshare
from tests.world import ROOT, Done, here


def finding(done: Done, check: str, level: str) -> dict[str, Any]:
    """The one line of a check that is of this level."""
    found = [f for f in done.json["findings"] if (f["check"], f["level"]) == (check, level)]
    assert len(found) == 1, done.json["findings"]
    assert level == "ok" or (found[0]["expected"] and found[0]["remedy"]), "what is wrong has a remedy"
    return found[0]


def failed(done: Done, check: str, code: int) -> str:
    """What a check found that failed; it alone, and its code is the command's."""
    assert [f["check"] for f in done.json["findings"] if f["level"] == "fail"] == [check], done.json["findings"]
    assert (done.code, done.json["code"], finding(done, check, "fail")["code"]) == (code, code, code)
    return str(finding(done, check, "fail")["found"])


@pytest.fixture
def world(stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quick:
    """A world after one version, on a machine without any launcher."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return stages.copy("applied", tmp_path / "w")


def test_a_healthy_machine_is_left_as_it_was(world: Quick) -> None:
    before = everything(world)
    done = world.here("doctor", "--checkpoint", str(world.path / "model/step-000001"))
    assert done.code == 0, done.out
    assert everything(world) == before
    good = {f["check"] for f in done.json["findings"] if f["level"] == "ok"}
    assert good >= {
        "configuration", "packages", "mpi library", "cores", "memory", "kernel cache", "hdf5", "gpu", "store", "clock",
        "keys", "sites.rollout.replica", "trainer.state", "events.dir", "shards",
    }  # fmt: skip
    assert [f["check"] for f in done.json["findings"] if f["level"] != "ok"] == ["launcher"], "there is none here"
    page = (ROOT / "docs/installing.md").read_text().replace("NAME", "rollout")
    assert {check for check in good if f"`{check}`" not in page.split("## dcr doctor")[1]} == set(), "told on the page"
    shards = [f["found"].split(" /")[0] for f in done.json["findings"] if f["check"] == "shards"]
    assert shards == ["baseline", "sealed version", "replica of rollout", "checkpoint"]
    text = here(world, "doctor", "--receipt", "told.json").out
    assert "warn  launcher" in text and "next: " in text and text.endswith("1 warn, 0 fail; 1 rank\n")
    assert (world.path / "told.json").exists()


def test_without_a_configuration_the_machine_is_looked_at(
    tmp_path: Path, stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    (tmp_path / "w").mkdir()
    nowhere = Quick(tmp_path / "w", stages["begun"].launcher)
    nowhere.config.unlink()
    done = here(nowhere, "doctor", "--json")
    assert done.code == 0 and "dcr.yaml" in finding(done, "configuration", "warn")["found"]
    named = here(nowhere, "doctor", "--json", "--config", "other.yaml")
    assert "no such file" in failed(named, "configuration", 2)
    assert finding(named, "mpi library", "ok")
    nowhere.config.write_text("policy: [")
    failed(here(nowhere, "doctor", "--json"), "configuration", 2)


# -- directories ------------------------------------------------------------------------------------------------------


def test_a_directory_that_is_a_file(world: Quick) -> None:
    shutil.rmtree(world.path / "events")
    (world.path / "events").write_text("")
    assert "no directory" in failed(world.here("doctor"), "events.dir", 2)
    told = finding(world.here("doctor", "--set", "events.dir=a/b/c"), "events.dir", "ok")["found"]
    assert "(to be made)" in told and not (world.path / "a").exists()


MOUNTED = 'mount -t tmpfs -o size=$0 none "$1" && shift && exec "$@"'
LOCKED = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


@pytest.mark.skipif(not can_unshare(), reason="no mount namespaces for this user")
@pytest.mark.parametrize(
    ("script", "size", "where", "code", "said"),
    [
        (MOUNTED, "40k", "replica-rollout", 30, "free on tmpfs"),
        (LOCKED, "", "replica-rollout", 30, "EROFS"),
        (LOCKED, "", "state", 30, "EROFS"),
        (MOUNTED, "1m", "state", 0, "tmpfs"),
    ],
)
def test_file_systems_that_will_not_do(
    world: Quick, monkeypatch: pytest.MonkeyPatch, script: str, size: str, where: str, code: int, said: str
) -> None:
    """Too small, read-only, gone at the next boot."""
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    before = ("unshare", "-rm", "sh", "-c", script, size, str(world.path / where), "env", "PATH=")
    done = world.run(1, "doctor", before=before)
    check = {"replica-rollout": "sites.rollout.replica", "state": "trainer.state"}[where]
    told = failed(done, check, code) if code else finding(done, check, "warn")["found"]
    assert said in told


def test_a_file_system_of_one_host_for_ranks_on_two(tmp_path: Path) -> None:
    if mount_of(tmp_path).kind not in ("ext4", "xfs", "overlay", "btrfs"):
        pytest.skip(f"the temporary directory is on {mount_of(tmp_path).kind}")
    (found,) = places.place(places.Place("trainer.state", tmp_path), hosts=2)
    assert found.level == "warn" and "2 hosts" in found.found
    (found,) = places.place(places.Place("trainer.state", tmp_path), hosts=1)
    assert found.level == "ok" and list(tmp_path.iterdir()) == []
    assert mount_of(Path("/proc/self")).kind == "proc"


# -- the direct relay ---------------------------------------------------------------------------------------------


def test_a_trainer_that_serves_parts(world: Quick) -> None:
    direct = ["--set", "relay.transport=direct", "--set"]
    before = everything(world)
    assert (
        "127.0.0.1, port "
        in finding(world.here("doctor", *direct, "direct.listen=127.0.0.1"), "direct relay", "ok")["found"]
    )
    assert (
        "direct.listen"
        in finding(world.here("doctor", *direct, "direct.listen=192.0.2.1"), "direct relay", "fail")["remedy"]
    )
    nowhere = world.here("doctor", *direct, "direct.advertise=nowhere.invalid")
    assert "nowhere.invalid" in finding(nowhere, "direct relay", "warn")["found"]
    assert everything(world) == before
    assert not [f for f in world.here("doctor").json["findings"] if f["check"] == "direct relay"]


# -- shards -----------------------------------------------------------------------------------------------------------


def test_shards_that_are_gone_or_cut(world: Quick) -> None:
    """Those that are named, and those on record: a replica."""
    shard = next((world.path / "model/step-000001").glob("*.h5"))
    shard.write_bytes(shard.read_bytes()[:-9])
    assert "shard incomplete" in failed(world.here("doctor", "--checkpoint", str(shard.parent)), "shards", 11)
    failed(world.here("doctor", "--checkpoint", str(world.path / "nowhere")), "shards", 10)
    for shard in (world.path / "replica-rollout").glob("*.h5"):
        shard.unlink()
    failed(world.here("doctor"), "shards", 10)


def test_a_filter_that_is_not_installed(world: Quick) -> None:
    """The shard is written with a filter that only hdf5plugin has, and read where that cannot be imported."""
    make = (
        "import h5py, hdf5plugin\n"
        "h5py.File('f/a.h5', 'w').create_dataset('w', data=[1, 2], chunks=(2,), **hdf5plugin.Zstd())"
    )
    (world.path / "f").mkdir()
    subprocess.run([sys.executable, "-c", make], cwd=world.path, check=True)
    assert "zstd" in world.here("doctor", "--checkpoint", str(world.path / "f")).out
    without = (
        "import sys; sys.modules['hdf5plugin'] = None; from dcr_mpi.cli import main; "
        "sys.exit(main(['doctor', '--json', '--checkpoint', 'f']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", without],
        cwd=world.path,
        env=world.environment(),
        text=True,
        capture_output=True,
        check=False,
    )
    told = Done(done.returncode, done.stdout, done.stderr)
    assert "32015 (zstd)" in failed(told, "shards", 15) and "no hdf5plugin" in finding(told, "hdf5", "ok")["found"]


# -- keys -------------------------------------------------------------------------------------------------------------


def test_keys_that_others_can_read(world: Quick) -> None:
    world.here("keygen", "--shared", str(world.path / "key"))
    config = ("--set", "keys.file=key", "--set", "policy=signed")
    assert "from " in finding(world.here("doctor", *config), "keys", "ok")["found"]
    (world.path / "key").chmod(0o644)
    assert "mode 644" in failed(world.here("doctor", *config), "keys", 2)
    (world.path / "key").unlink()
    failed(world.here("doctor", *config), "keys", 2)


# -- this machine -----------------------------------------------------------------------------------------------------


def test_no_gpu_where_one_is_asked_for(world: Quick, tmp_path: Path) -> None:
    done = world.here("doctor", "--set", "kernels=numba", "--set", "device=cuda")
    if done.code == 0:
        pytest.skip("there is a GPU")
    failed(done, "gpu", 2)
    auto = world.here("doctor", "--set", "kernels=numba", "--set", "device=auto")
    assert auto.code == 0 and "the host's kernels" in finding(auto, "gpu", "ok")["found"]
    (tmp_path / "nvidiactl").write_text("")
    (found,) = node.gpu(load(world.config, {"kernels": "numba"}), dev=tmp_path)
    assert found.level == "warn" and "NVIDIA driver" in found.found


def test_too_little_memory(world: Quick) -> None:
    (found,) = node.memory(load(world.config), ranks_here=1 << 20)
    assert found.level == "warn" and "1048576 ranks" in found.expected
    (found,) = node.memory(load(world.config), ranks_here=1)
    assert found.level == "ok"


@pytest.mark.skipif(not can_unshare(), reason="no mount namespaces for this user")
def test_no_place_for_compiled_kernels(world: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home, who may not write into the package."""
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    locked = ("unshare", "-rm", "sh", "-c", LOCKED, "", str(ROOT / "dcr_mpi/kernels"))
    done = world.run(1, "doctor", before=(*locked, "env", "PATH=", "HOME=/proc", "XDG_CACHE_HOME=/proc"))
    assert done.code == 0, done.error
    assert "NUMBA_CACHE_DIR" in finding(done, "kernel cache", "warn")["remedy"]
    done = world.run(1, "doctor", before=(*locked, "env", "PATH=", f"NUMBA_CACHE_DIR={world.path / 'kernels'}"))
    assert str(world.path / "kernels") in finding(done, "kernel cache", "ok")["found"]


# -- several ranks' findings as one list ------------------------------------------------------------------------------


def test_findings_of_several_ranks() -> None:
    lost = fail("store", NotReady("s", found="nothing", expected="it", remedy="wait"))
    lists: list[list[Finding]] = [
        [ok("cores", "2 of 2"), ok("store", "good, 0.1 s"), ok("shards", "a"), ok("shards", "b")],
        [ok("store", "good, 0.2 s")],
        [ok("cores", "4 of 4"), lost, ok("shards", "a"), ok("shards", "b")],
        [lost],
    ]
    found = merged(lists, ["n1", "n1", "n2", "n2"])
    assert [(f.check, f.level, f.where) for f in found] == [
        ("cores", "ok", ""), ("store", "ok", "ranks 0, 1 on n1"), ("store", "fail", "ranks 2, 3 on n2"),
        ("shards", "ok", ""), ("shards", "ok", ""),
    ]  # fmt: skip
    assert [f.where for f in merged([[lost], [lost]], ["n1", "n2"])] == [""]
    assert [f.found for f in merged([[warn("x", "a", "b", "c")], [warn("x", "b", "b", "c")]], ["n", "m"])] == ["a", "b"]


@pytest.mark.parametrize(
    ("ahead", "level"), [(0.4, "ok"), (-4.9, "ok"), (6, "warn"), (-59, "warn"), (60, "fail"), (-3600, "fail")]
)
def test_how_far_clocks_may_be_apart(ahead: float, level: str) -> None:
    (found,) = remote.clock(ahead)
    assert found.level == level and found.code == (21 if level == "fail" else 0)
    assert level == "ok" or ("ahead" in found.found) == (ahead > 0)


def test_an_error_without_words_of_its_own_still_has_a_next_step() -> None:
    found = fail("x", UsageError("what"))
    assert (found.found, found.code) == ("what", 2) and found.expected and found.remedy
