"""Stores as a user meets them: shared by two policies, read-only, absent, a real S3 server, refused credentials."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Setup, Stages
from tests.cli.shell import dcr, everything
from tests.world import World, here


def _can_unshare() -> bool:
    tool = shutil.which("unshare")
    return tool is not None and subprocess.run([tool, "-rm", "true"], check=False, capture_output=True).returncode == 0


def _below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_two_policies_in_one_store_do_not_touch_each_other(stages: Stages, tmp_path: Path) -> None:
    """Same store, same site name, other numbers: each sees its own versions only."""
    first = stages.copy("applied", tmp_path / "first")
    before = _below(first.path / "store")
    (tmp_path / "second").mkdir()
    second = Setup(tmp_path / "second", first.launcher)
    text = second.config.read_text().replace("policy: test", "policy: critic")
    second.config.write_text(text.replace(str(second.path / "store"), str(first.path / "store")))
    second.begin()
    assert second.dcr(1, "status")["newest"] == 0
    second.cycle(3)
    assert second.words() == second.full_transfer(3)
    after = _below(first.path / "store")
    assert before.items() <= after.items()
    assert {name.split("/")[0] for name in after.keys() - before.keys()} == {"critic"}
    assert first.inside().cycle(2)["version"] == 2
    assert first.words() == first.full_transfer(2)
    assert second.dcr(1, "status")["newest"] == 1
    crossed = first.run(1, "refit", "--site", "rollout", "--set", "policy=critic")
    assert crossed.code == 12 and "it belongs to another policy" in crossed.error


@pytest.mark.skipif(not _can_unshare(), reason="no mount namespaces for this user")
def test_a_store_that_is_mounted_read_only(stages: Stages, tmp_path: Path) -> None:
    """Looking works, publishing and preparing say what is wrong; mounted properly, the same command goes on."""
    world = stages.copy("sealed", tmp_path / "w")
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    locked = ("unshare", "-rm", "sh", "-c", script, str(world.path / "store"))
    before = _below(world.path / "store")
    assert world.run(1, "status", before=locked).json["newest"] == 1
    refused = world.run(1, "refit", "--site", "rollout", before=locked)
    assert (refused.code, refused.out) == (30, "")
    assert "EROFS" in refused.error and "run the same command again" in refused.error
    assert _below(world.path / "store") == before
    world.dcr(1, "refit", "--site", "rollout")
    refused = world.run(1, "commit", before=locked)
    assert refused.code == 30 and "EROFS" in refused.error
    world.dcr(1, "commit")
    world.dcr(1, "apply", "--site", "rollout")
    assert world.words() == world.full_transfer(1)


@pytest.mark.parametrize("act", ["status", "encode", "refit", "commit", "apply", "verify", "init"])
def test_no_store(stages: Stages, tmp_path: Path, act: str) -> None:
    """A mistyped place is told by every command, and made by none."""
    world = stages["sealed"]
    more = {"encode": ("model/step-000001",), "status": (), "commit": ()}.get(act, ("--site", "rollout"))
    before = everything(world)
    done = here(world, act, *more, "--set", f"store.url={tmp_path / 'nowhere'}")
    assert (done.code, done.out) == (10, ""), done.error
    assert str(tmp_path / "nowhere") in done.error
    moved = act in ("refit", "apply")  # there is a replica: so the policy was there, and is not to be made again
    assert ("do not run dcr init" if moved else "run dcr init at the trainer first") in done.error
    assert not (tmp_path / "nowhere").exists()
    assert everything(world) == before


def test_a_store_that_is_a_file(stages: Stages) -> None:
    world = stages["sealed"]
    before = everything(world)
    done = dcr(world, "init", "--checkpoint", "model/step-000000", "--set", f"store.url={world.config}")
    assert done.code in (2, 30) and str(world.config) in done.error and "Traceback" not in done.error
    assert everything(world) == before


@pytest.mark.s3
@pytest.mark.mpi
@pytest.mark.timeout(240)
def test_the_whole_cycle_through_s3(s3_world: World) -> None:
    """Two trainer ranks and three site ranks; then all of it in one command of two ranks."""
    s3_world.begin()
    s3_world.cycle(1, 2, 3)
    assert s3_world.words() == s3_world.full_transfer(1)
    assert s3_world.dcr(2, "run", str(s3_world.synth(2)))["version"] == 2
    assert s3_world.words() == s3_world.full_transfer(2)
    s3_world.dcr(2, "anchor")
    dry = s3_world.dcr(1, "gc", "--dry-run", "--set", "retention.anchors=1")
    done = s3_world.dcr(2, "gc", "--set", "retention.anchors=1")
    assert dry["keys"] == done["keys"] != []
    assert s3_world.dcr(1, "gc", "--set", "retention.anchors=1")["keys"] == []
    assert s3_world.dcr(2, "run", str(s3_world.synth(3)))["version"] == 3
    assert s3_world.words() == s3_world.full_transfer(3)
    assert not (s3_world.path / "store").exists()


@pytest.mark.s3
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "not-the-secret"}, "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "InvalidAccessKeyId"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "credentials"),
    ],
    ids=["secret", "key", "none"],
)
def test_credentials_that_s3_refuses(s3_world: World, change: dict[str, str], words: str) -> None:
    s3_world.env |= {**change, "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    done = s3_world.run(1, "status")
    assert (done.code, done.out) == (21, ""), done.error
    assert words in done.error and ". Next: " in done.error and "not-the-secret" not in done.error


@pytest.mark.s3
def test_a_bucket_that_is_not_there_and_a_server_that_is_not(s3_world: World) -> None:
    done = s3_world.run(1, "status", "--set", "store.url=s3://no-such-bucket/x")
    assert done.code == 21 and "no-such-bucket" in done.error
    quick = ("--set", "store.s3.attempts=2", "--set", "store.s3.backoff_s=0.01")
    done = s3_world.run(1, "status", "--set", "store.s3.endpoint=http://127.0.0.1:9", *quick)
    assert done.code == 20 and "127.0.0.1:9" in done.error
