"""Anchor, gc, repair and verify --scrub as a user types them, on one rank and on several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Stages
from tests.world import World


def _break(world: World) -> None:
    """Flip a bit at the end of the replica's last shard, in its data."""
    path = world.replica().directory / "engine-1.h5"
    if not path.exists():
        path = sorted(world.replica().directory.glob("*.h5"))[-1]
    with open(path, "r+b") as file:
        file.seek(-9, 2)
        byte = file.read(1)[0]
        file.seek(-9, 2)
        file.write(bytes([byte ^ 1]))


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 3])
def test_scrub_names_what_repair_mends(stages: Stages, tmp_path: Path, ranks: int) -> None:
    world = stages.copy("applied", tmp_path / "w")
    assert world.dcr(ranks, "verify", "--site", "rollout", "--scrub")["act"] == "verified"
    right = world.words()
    _break(world)
    refused = world.run(ranks, "verify", "--site", "rollout", "--scrub")
    assert refused.code == 14
    assert "1 words in 1 ranges" in refused.error and "tensor '" in refused.error
    assert "dcr repair --site rollout" in refused.error
    mended = world.dcr(ranks, "repair", "--site", "rollout")
    assert (mended["act"], mended["ranges"], mended["words"], len(mended["damage"])) == ("repaired", 1, 1, 1)
    assert mended["damage"][0]["tensor"] in refused.error
    assert world.words() == right == world.full_transfer(1)
    assert world.dcr(ranks, "repair", "--site", "rollout")["act"] == "nothing to repair"


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 3])
def test_anchor_and_gc(stages: Stages, tmp_path: Path, ranks: int) -> None:
    world = stages.copy("applied", tmp_path / "w")
    sealed = world.dcr(ranks, "anchor")
    assert (sealed["act"], sealed["version"], sealed["base"]) == ("anchored", 1, None)
    store = world.path / "store/test"
    before = {p for p in store.rglob("*") if p.is_file()}
    dry = world.dcr(1, "gc", "--dry-run", "--set", "retention.anchors=1")
    assert (dry["act"], dry["floor"], dry["anchors"]) == ("would collect", 1, [1])
    assert {p for p in store.rglob("*") if p.is_file()} == before
    done = world.dcr(ranks, "gc", "--set", "retention.anchors=1")
    assert (done["act"], done["keys"], done["bytes"]) == ("collected", dry["keys"], dry["bytes"])
    gone = {str(p.relative_to(store.parent)) for p in before if not p.exists()}
    assert gone == set(done["keys"])
    assert any("anchors/000000/parts" in key for key in gone) and any("versions/000001/parts" in key for key in gone)
    (row,) = world.dcr(1, "status", "--last", "1")["versions"]
    assert (row["version"], row["state"]) == (1, "committed")
    world.inside().cycle(2)
    assert world.words() == world.full_transfer(2)


def test_what_these_say_to_people(stages: Stages, tmp_path: Path) -> None:
    from tests.cli.shell import dcr

    world = stages.copy("applied", tmp_path / "w")
    config = ["--config", str(world.config)]
    said = dcr(world, "gc", "--dry-run", *config).out
    assert "would collect: " in said and "a replica made or repaired lately: rollout at 1" in said
    _break(world)
    said = dcr(world, "repair", "--site", "rollout", *config).out
    assert "repaired: site rollout, version 1" in said and "tensor '" in said and "1 differ" in said
    assert json.loads(dcr(world, "gc", "--json", *config).out)["act"] == "collected"


@pytest.mark.parametrize(
    "arguments",
    [("verify", "--checkpoint", "x", "--scrub"), ("verify", "--site", "rollout", "--scrub", "--version", "0")],
)
def test_scrub_is_for_a_replica_at_its_own_version(stages: Stages, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    refused = stages["applied"].run(1, *arguments)
    assert refused.code == 2 and "--scrub with --site alone" in refused.error
