"""status, inspect and verify: what is there, at every stage, whole or damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import pytest

from dcr_mpi.acts.replica import journal
from tests.cli.conftest import Stages
from tests.cli.shell import dcr, everything, flip
from tests.world import ROOT, World, here

STRACE = ("strace", "-f", "-qq", "-o", "/dev/null")


def _journal(world: World) -> Path:
    journals = world.replica().sealed(1)
    assert journals is not None
    return journal(journals, 0)


def _newest(world: World) -> tuple[dict[str, Any], str]:
    """The newest version's row, and the text for people; looking changes nothing."""
    before = everything(world)
    found, text = world.dcr(1, "status"), dcr(world, "status").out
    assert everything(world) == before
    assert found["policy"] == "test" and f"policy test: {found['tensors']} tensors" in text
    return found, text


@pytest.mark.parametrize(
    ("stage", "state", "site", "committed"),
    [
        ("sealed", "sealed, undecided", "waiting", 0),
        ("prepared", "sealed, undecided", "prepared", 0),
        ("committed", "committed", "prepared", 1),
        ("applied", "committed", "applied", 1),
    ],
)
def test_status_of_each_stage(stages: Stages, stage: str, state: str, site: str, committed: int) -> None:
    found, text = _newest(stages[stage])
    row = found["versions"][-1]
    assert (row["version"], row["state"], row["sites"]) == (1, state, {"rollout": site})
    assert (found["newest"], found["committed"]) == (1, committed)
    assert 0 < row["changed"] < row["elements"] and 0 < row["payload_bytes"] < row["dense_bytes"]
    assert found["replicas"]["rollout"]["version"] == (1 if stage == "applied" else 0)
    assert f"version      1  {state}; " in text and f"rollout {site}" in text


def test_what_looks_at_no_weights_asks_for_no_gpu(stages: Stages, tmp_path: Path) -> None:
    """On a login node, under the configuration of nodes that have one."""
    world = stages.copy("prepared", tmp_path / "w")
    for command in (("status",), ("commit",), ("gc",), ("report", "--out", str(tmp_path / "report"))):
        done = world.here(*command, "--set", "kernels=numba", "--set", "device=cuda")
        assert done.code == 0, done.error


def test_a_command_starts_no_threads_of_blas() -> None:
    """And says nothing of that to the hooks and launchers that it starts."""
    code = "import os; before = dict(os.environ); import dcr_mpi.cli; assert dict(os.environ) == before; "
    code += "print(len(os.listdir('/proc/self/task')))"
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.faults
def test_status_of_a_version_whose_publisher_died_and_the_publisher_again(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("begun", tmp_path / "w")
    new = str(world.synth(1))
    killed = world.run(1, "encode", new, before=(*STRACE, "-e", "inject=link:signal=KILL:when=3"))
    assert killed.code in (-9, 137)
    found, text = _newest(world)
    assert found["versions"][-1] == {"version": 1, "state": "open"}
    assert "version      1  open\n" in text
    refused = world.run(1, "refit", "--site", "rollout")
    assert refused.code == 10 and "manifest of version 1" in refused.error
    assert world.dcr(1, "refit", "--site", "rollout", "--catch-up")["act"] == "caught up", "it is none to catch up with"
    sealed = world.dcr(1, "encode", new)
    assert sealed["version"] == 1
    assert world.dcr(1, "status")["versions"][-1]["state"] == "sealed, undecided"


def test_status_of_an_aborted_version(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("prepared", tmp_path / "w")
    world.dcr(1, "commit", "--abort", "loss is not a number")
    found, text = _newest(world)
    assert found["versions"][-1]["state"] == "aborted: loss is not a number"
    assert "aborted: loss is not a number" in text
    assert (found["newest"], found["committed"]) == (1, 0)


@pytest.mark.faults
def test_an_interrupted_apply_shows_and_is_not_verified(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("committed", tmp_path / "w")
    apply = ("apply", "--site", "rollout")
    assert world.run(1, *apply, before=(*STRACE, "-e", "inject=pwrite64:signal=KILL:when=3")).code in (-9, 137)
    found, text = _newest(world)
    assert (found["replicas"]["rollout"]["version"], found["replicas"]["rollout"]["applying"]) == (0, 1)
    assert "version 0, applying 1 was interrupted: run dcr apply" in text
    for act in (("verify", "--site", "rollout"), ("refit", "--site", "rollout")):
        refused = world.run(1, *act)
        assert refused.code == 10 and "an interrupted apply of version 1" in refused.error
    world.dcr(1, *apply)
    assert world.words() == world.full_transfer(1)


def test_status_shows_the_last_few(stages: Stages) -> None:
    assert [row["version"] for row in stages["applied"].dcr(1, "status", "--last", "1")["versions"]] == [1]
    assert [row["version"] for row in stages["applied"].dcr(1, "status")["versions"]] == [0, 1]


# -- inspect ---------------------------------------------------------------------------------------------------


def _inspect(path: Path, world: World) -> dict[str, Any]:
    return world.dcr(1, "inspect", str(path))


def test_inspect_a_shard(stages: Stages) -> None:
    world = stages["applied"]
    found = _inspect(world.replica().directory / "engine-00000.h5", world)
    assert found["kind"] == "shard"
    rows = {row["path"]: row for row in found["datasets"]}
    with h5py.File(world.replica().directory / "engine-00000.h5") as file:
        assert rows["0/qkv"]["offset"] == file["0/qkv"].id.get_offset()
        assert tuple(rows["0/qkv"]["shape"]) == file["0/qkv"].shape
    assert rows["0/qkv"]["dtype"] == "bf16"


def test_inspect_a_part_and_an_anchors_part(stages: Stages) -> None:
    store = stages["applied"].path / "store/test"
    manifest = json.loads((store / "versions/000001/manifest.json").read_bytes())
    entry = manifest["parts"][0]
    found = _inspect(store.parent / entry["key"], stages["applied"])
    assert (found["kind"], found["version"], found["base"], found["index"]) == ("part", 1, 0, 0)
    assert found["bytes"] == entry["size"]
    assert sum(row["words"] for row in found["buckets"]) == entry["elements"]
    assert found["policy"] == manifest["policy_sha256"][:32]
    anchor = min((store / "anchors/000000/parts").iterdir())
    found = _inspect(anchor, stages["applied"])
    assert (found["kind"], found["version"], found["base"]) == ("part", 0, None)
    assert all(row["dense_blocks"] == row["blocks"] for row in found["buckets"])


def test_inspect_a_journal_and_objects_of_the_store(stages: Stages) -> None:
    world = stages["prepared"]
    store = world.path / "store/test"
    found = _inspect(_journal(world), world)
    assert (found["kind"], found["finished"], found["torn"]) == ("journal", True, False)
    assert found["binding"]["shard"] == "engine-00000.h5" and found["parts"]
    found = _inspect(store / "versions/000001/manifest.json", world)
    assert found == {
        "kind": "object",
        "content": json.loads((store / "versions/000001/manifest.json").read_bytes()),
    }
    (tiling,) = [p for p in (store / "tilings").iterdir() if found["content"]["tiling"] in p.name]
    assert _inspect(tiling, world)["content"]["layouts"].keys() == {"rollout"}


def test_inspect_for_people(stages: Stages) -> None:
    done = dcr(stages["sealed"], "inspect", "store/test/versions/000001/open.json")
    assert json.loads(done.out)["content"]["version"] == 1 and done.out.count("\n") > 5


GARBAGE = {
    "empty": b"",
    "text": b"hello",
    "zeros": bytes(4096),
    "deep": b"[" * 100_000,
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(range(40)),
    "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(90),
    "part": b"DCRPART\n" + bytes(40),
    "journal": b"DCRJRNL\n" + bytes(40),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_inspect_garbage(stages: Stages, tmp_path: Path, case: str) -> None:
    file = tmp_path / "garbage"
    file.write_bytes(GARBAGE[case])
    done = here(stages["begun"], "inspect", str(file))
    assert (done.code, done.out) == (11, ""), done.error
    assert str(file) in done.error and "found" in done.error and "Traceback" not in done.error


def test_inspect_a_directory_names_a_file(stages: Stages, tmp_path: Path) -> None:
    (tmp_path / "one.h5").write_bytes(b"")
    done = here(stages["begun"], "inspect", str(tmp_path))
    assert done.code == 2 and f"as in {tmp_path}/one.h5" in done.error


def test_inspect_what_was_cut(stages: Stages, tmp_path: Path) -> None:
    world = stages["prepared"]
    part = min((world.path / "store/test/versions/000001/parts").iterdir())
    cut = tmp_path / "cut"
    cut.write_bytes(part.read_bytes()[:-1])
    assert world.run(1, "inspect", str(cut)).code == 11
    cut.write_bytes(_journal(world).read_bytes()[:-1])
    assert _inspect(cut, world)["torn"], "a journal's whole frames are still shown"
    assert world.run(1, "inspect", str(tmp_path / "none")).code == 10


# -- verify ----------------------------------------------------------------------------------------------------


def test_verify_a_replica_and_a_checkpoint(stages: Stages) -> None:
    world = stages["applied"]
    state = world.dcr(1, "status")["state"]
    replica = world.dcr(1, "verify", "--site", "rollout")
    checkpoint = world.dcr(1, "verify", "--checkpoint", "model/step-000001")
    assert replica["state"] == checkpoint["state"] == state
    assert (replica["act"], replica["version"], replica["tensors"]) == ("verified", 1, checkpoint["tensors"])
    older = world.dcr(1, "verify", "--checkpoint", "model/step-000000", "--version", "0")
    assert older["version"] == 0 and older["state"] != state


def test_verify_another_step(stages: Stages) -> None:
    done = stages["applied"].run(1, "verify", "--checkpoint", "model/step-000000")
    assert done.code == 14
    assert "checkpoint model/step-000000" in done.error and "expected the bits of version 1" in done.error


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 3])
def test_verify_names_the_damaged_tensor(stages: Stages, tmp_path: Path, ranks: int) -> None:
    world = stages.copy("applied", tmp_path / "w")
    shard = world.replica().directory / "engine-00001.h5"
    with h5py.File(shard) as file:
        at = file["0/o"].id.get_offset()
    flip(shard, at + 5)
    done = world.run(ranks, "verify", "--site", "rollout")
    assert done.code == 14
    assert "1 tensors with other bits: ['model.layers.0.o']" in done.error
    assert ". Next: " in done.error and "dcr init --site" in done.error and "--catch-up" in done.error


def test_verify_without_a_replica(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("begun", tmp_path / "w")
    shutil.rmtree(world.replica().directory)
    done = world.run(1, "verify", "--site", "rollout")
    assert done.code == 10 and "dcr init --site rollout" in done.error
    assert world.dcr(1, "status")["replicas"]["rollout"]["version"] is None
    assert "no replica here" in dcr(world, "status").out
