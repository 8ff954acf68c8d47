"""The whole cycle under several numbers of ranks: the same bytes in the store, the same bits at the site."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.world import LAUNCHERS, World

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]
KINDS = sorted(LAUNCHERS)


def _parts(world: World) -> dict[str, bytes]:
    folder = Path(world.store or world.path / "store") / "test/versions"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("*/parts/*")} | {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("*/manifest.json")
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Parts and manifests of two versions made by one rank, with the compiled kernels."""
    world = World(tmp_path_factory.mktemp("alone"), LAUNCHERS[KINDS[0]], kernels="numba")
    world.begin()
    for step in (1, 2):
        world.cycle(step)
        assert world.words() == world.full_transfer(step)
    return _parts(world)


# All numbers of ranks under the first MPI, one pair under each other: what differs there is the library.
RUNS = [
    *((KINDS[0], train, site) for train, site in ((2, 3), (3, 2), (5, 5))),
    *(pytest.param(kind, 3, 2, marks=pytest.mark.slow) for kind in KINDS[1:]),
]


@pytest.mark.parametrize(("kind", "train", "site"), RUNS)
def test_every_number_of_ranks_makes_the_same_bytes_and_bits(
    tmp_path: Path, kind: str, train: int, site: int, alone: dict[str, bytes]
) -> None:
    world = World(tmp_path, LAUNCHERS[kind])
    world.begin(site)
    for step in (1, 2):
        world.cycle(step, train, site)
        assert world.words() == world.full_transfer(step)
    assert _parts(world) == alone


def test_all_acts_are_started_at_once(tmp_path: Path) -> None:
    """Two sites and the decider begin before the trainer does, and follow: nobody waits for a job to end."""
    world = World(tmp_path, LAUNCHERS[KINDS[0]], sites=("east", "west"))
    world.begin()
    step = world.synth(1)
    with ThreadPoolExecutor(6) as pool:
        acts = [pool.submit(world.dcr, 3, "refit", "--site", site, "--wait", "200") for site in world.sites]
        time.sleep(1)  # they find nothing yet
        encoded = pool.submit(world.dcr, 2, "encode", str(step))
        for prepared in acts:
            assert prepared.result()["version"] == 1
        decided = pool.submit(world.dcr, 1, "commit", "--wait", "200")
        applied = [pool.submit(world.dcr, 2, "apply", "--site", site, "--wait", "200") for site in world.sites]
        assert decided.result()["commit"]
        for act in applied:
            assert act.result()["manifest_sha256"] == encoded.result()["manifest_sha256"]
    for site in world.sites:
        assert world.words(site) == world.full_transfer(1)
        assert _fetched(world, site) == encoded.result()["bytes"]["payload"]


def test_two_sites_and_a_wan_crossing_per_part(tmp_path: Path) -> None:
    world = World(tmp_path, LAUNCHERS[KINDS[0]], sites=("east", "west"))
    world.begin()
    sealed = world.encode(1, 2)
    fetched = [world.dcr(3, "refit", "--site", site) for site in world.sites]
    assert {r["state"] for r in fetched} == {sealed["state"]}
    world.dcr(1, "commit")
    for site in world.sites:
        world.dcr(2, "apply", "--site", site)
        assert world.words(site) == world.full_transfer(1)
        assert _fetched(world, site) == sealed["bytes"]["payload"]


def _fetched(world: World, site: str) -> int:
    """Bytes of parts that all ranks of a site's refit fetched from the store, by their event logs."""
    import json

    lines = [line for p in (world.path / "events").glob("refit-*.jsonl") for line in p.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    return sum(e["fetched"] for e in events if e["event"] == "relayed" and e["subject"] == site)
