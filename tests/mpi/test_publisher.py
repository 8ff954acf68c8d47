"""A training program of several ranks publishes its arrays; a site follows, and holds what a full transfer would."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dcr_mpi.synth import TINY, trainer_layout
from tests.world import LAUNCHERS, World, scatter_full

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]
KIND = sorted(LAUNCHERS)[0] if LAUNCHERS else ""


class Training:
    """A world whose trainer is no command."""

    def __init__(self, path: Path, ranks: int, kernels: str = "numpy") -> None:
        self.world, self.ranks = World(path, LAUNCHERS[KIND], kernels=kernels), ranks
        self.steps = [self.world.synth(step, "--shards", str(ranks)) for step in range(4)]
        lines = self.world.config.read_text().replace(", layout: model/layouts/trainer.json", "")
        self.world.config.write_text(lines.replace("commit: {wait_s: 5}", "commit: {wait_s: 60}"))

    def run(self, start: int, *publish: int, **more: Any) -> subprocess.CompletedProcess[str]:
        plan = {
            "config": str(self.world.config),
            "start": str(self.steps[start]),
            "publish": [str(self.steps[step]) for step in publish],
            **more,
        }
        command = self.world.launcher.python(self.ranks, "-m", "tests.training", json.dumps(plan))
        return subprocess.run(
            command, env=self.world.environment(), cwd=self.world.path, text=True, capture_output=True, timeout=120,
            check=False,
        )  # fmt: skip

    def must(self, start: int, *publish: int, **more: Any) -> list[dict[str, Any]]:
        done = self.run(start, *publish, **more)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    def full(self, step: int) -> dict[tuple[int, str], bytes]:
        return scatter_full(self.steps[step], trainer_layout(TINY, self.ranks), self.world.site_layout())

    def follow(self, until: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.world.command(2, "follow", "--site", "rollout", "--until", str(until)),
            env=self.world.environment(), cwd=self.world.path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


@pytest.mark.parametrize(("ranks", "kernels"), [(1, "numpy"), (2, "numba"), (4, "numpy")])
def test_from_arrays_to_a_replica(tmp_path: Path, ranks: int, kernels: str) -> None:
    training = Training(tmp_path, ranks, kernels)
    assert training.must(0) == [{"start": 0}]
    training.world.dcr(1, "init", "--site", "rollout")
    follow = training.follow(3)
    start, *versions = training.must(0, 1, 2, 3)
    assert start == {"start": 0}
    assert [(v["version"], v["committed"], v["step"]) for v in versions] == [(1, True, 0), (2, True, 1), (3, True, 2)]
    assert all(0 < v["payload_bytes"] < v["dense_bytes"] and 0 < v["changed"] < v["elements"] for v in versions)
    out, _ = follow.communicate(timeout=120)
    assert follow.returncode == 0, out
    assert training.world.words() == training.full(3)


def test_straight_from_the_ranks_that_hold_the_arrays(tmp_path: Path) -> None:
    """By the direct relay, and no part is ever in the store: who holds a shard serves what it codes of it."""
    training = Training(tmp_path, 2)
    config = training.world.config
    lines = config.read_text().replace("relay: {", "relay: {transport: direct, ")
    config.write_text(lines + "direct: {listen: 127.0.0.1, advertise: 127.0.0.1, store: never}\n")
    training.must(0)
    training.world.dcr(1, "init", "--site", "rollout")
    follow = training.follow(2)
    training.must(0, 1, 2)
    out, _ = follow.communicate(timeout=120)
    assert follow.returncode == 0, out
    assert training.world.words() == training.full(2)
    assert not list((tmp_path / "store/test/versions").glob("*/parts/*"))


def test_ranks_that_hold_other_bits_of_one_tensor(tmp_path: Path) -> None:
    training = Training(tmp_path, 2)
    training.must(0)
    refused = training.run(0, 1, spoil=1)
    assert refused.returncode == 14, refused.stderr
    assert "model.layers.0.norm.weight" in refused.stderr and "equal copies" in refused.stderr
    assert not (tmp_path / "store/test/versions/000001/manifest.json").exists()


def test_another_checkpoint_than_the_last_version(tmp_path: Path) -> None:
    training = Training(tmp_path, 2)
    training.must(0)
    refused = training.run(1, 2)
    assert refused.returncode == 12, refused.stderr
    assert "keep the baseline" in refused.stderr


def test_killed_with_a_version_under_way_and_started_from_an_older_one(tmp_path: Path) -> None:
    """What is kept is the baseline, whatever the arrays hold after a restart."""
    training, keep = Training(tmp_path, 2), str(tmp_path / "kept")
    training.must(0, keep=keep)
    training.world.dcr(1, "init", "--site", "rollout")
    killed = training.run(0, 1, keep=keep, hold=True)
    assert killed.returncode != 0
    assert (tmp_path / "store/test/versions/000001/manifest.json").exists()
    assert not (tmp_path / "store/test/versions/000001/decision.json").exists()
    follow = training.follow(2)
    start, version = training.must(2, 3, keep=keep)
    assert start == {"start": 0} and (version["version"], version["committed"]) == (2, True)
    out, _ = follow.communicate(timeout=120)
    assert follow.returncode == 0, out
    assert training.world.words() == training.full(3)
    (again,) = training.must(0, keep=keep)
    assert again == {"start": 2}


def test_commands_go_on_from_a_program(tmp_path: Path) -> None:
    """Versions are versions, whoever made them: the command takes the policy over, and is refused the wrong base."""
    training = Training(tmp_path, 2)
    training.must(0)
    training.world.dcr(1, "init", "--site", "rollout")
    folder = tmp_path / "as-shards"
    folder.mkdir()
    for rank, shard in enumerate(trainer_layout(TINY, 2).shards):
        (folder / f"rank-{rank:05d}.h5").symlink_to(training.steps[0] / shard.file)
    new = tmp_path / "new-shards"
    new.mkdir()
    for rank, shard in enumerate(trainer_layout(TINY, 2).shards):
        (new / f"rank-{rank:05d}.h5").symlink_to(training.steps[1] / shard.file)
    assert training.world.run(1, "encode", str(folder), "--base", str(new)).code == 12
    training.world.dcr(1, "encode", str(new), "--base", str(folder))
    training.world.dcr(1, "refit", "--site", "rollout")
    training.world.dcr(1, "commit")
    training.world.dcr(1, "apply", "--site", "rollout")
    assert training.world.words() == training.full(1)
    (again,) = training.must(1)
    assert again == {"start": 1}
