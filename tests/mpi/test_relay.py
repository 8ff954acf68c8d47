"""The relay inside a site: pruned, bounded, each part fetched once, and an error on one rank is everybody's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcr_mpi.acts.relay import relay
from dcr_mpi.comm import Solo
from dcr_mpi.errors import CorruptInput
from dcr_mpi.model import PartEntry
from dcr_mpi.tree import depth, route
from tests.world import LAUNCHERS, World

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]
KINDS = sorted(LAUNCHERS)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("relay"), LAUNCHERS[KINDS[0]])
    world.begin()
    world.encode(1)
    return world


def _copy(world: World, path: Path, kind: str = KINDS[0]) -> World:
    shutil.copytree(world.path, path)
    return World(path, LAUNCHERS[kind])


def _relayed(world: World) -> list[dict[str, Any]]:
    """The relay's tallies of the last refit, one per rank."""
    tallies = []
    for log in sorted((world.path / "events").glob("refit-*.jsonl")):
        events = [json.loads(line) for line in log.read_text().splitlines()]
        tallies.append([e for e in events if e["event"] == "relayed"][-1])
    return tallies


@pytest.mark.parametrize(("degree", "window"), [(1, 1), (2, 4), (10, 2)])
def test_any_tree_and_window(tmp_path: Path, sealed: World, degree: int, window: int) -> None:
    world = _copy(sealed, tmp_path / "w")
    world.dcr(5, "refit", "--site", "rollout", "--set", f"relay.degree={degree}", "--set", f"relay.window={window}")
    world.dcr(1, "commit")
    world.dcr(3, "apply", "--site", "rollout")
    assert world.words() == world.full_transfer(1)
    payload = sum(p.stat().st_size for p in (world.path / "store/test/versions/000001/parts").iterdir())
    tallies = _relayed(world)
    assert sum(t["fetched"] for t in tallies) == payload, "each part is fetched once, whatever the number of ranks"
    # Two shards, so ranks 2, 3 and 4 own nothing: they fetch and pass on, and nobody sends them anything.
    assert [t["received"] for t in tallies[2:]] == [0, 0, 0]
    assert sum(t["sent"] for t in tallies) == sum(t["received"] for t in tallies)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["changed", "missing"])
def test_a_bad_part_ends_every_rank_soon(tmp_path: Path, sealed: World, kind: str, fault: str) -> None:
    world = _copy(sealed, tmp_path / "w", kind)
    before = world.words()
    parts = sorted((world.path / "store/test/versions/000001/parts").iterdir())
    # The last that rank 0 is the root of: with a window of one it has journaled what it needs of those before.
    part = parts[(len(parts) - 1) // 3 * 3]
    good = part.read_bytes()
    part.chmod(0o644)
    if fault == "missing":
        part.unlink()
    else:
        part.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    begun = time.monotonic()
    done = world.run(3, "refit", "--site", "rollout", "--set", "relay.window=1")
    assert time.monotonic() - begun < 15  # the start of three interpreters on a busy machine included
    assert done.code == (10 if fault == "missing" else 11), done.error
    assert f"part {int(part.name[:6])}" in done.error
    assert world.words() == before
    part.write_bytes(good)
    world.dcr(3, "refit", "--site", "rollout")
    assert sum(t["fetched"] for t in _relayed(world)) < sum(
        p.stat().st_size for p in (world.path / "store/test/versions/000001/parts").iterdir()
    ), "what the first try journaled is not fetched again"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_silent_rank_is_named_within_the_time_out(tmp_path: Path, sealed: World) -> None:
    """Rank 1 is stopped (SIGSTOP) at its first journal write: the others give up after relay.timeout_s."""
    world = _copy(sealed, tmp_path / "w")
    command = world.command(
        2, "refit", "--site", "rollout", "--set", "relay.timeout_s=4", "--set", "relay.patience_s=4"
    )
    at = command.index("-n")
    stop = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=pwrite64",
        "-e",
        "inject=pwrite64:signal=STOP:when=1",
    ]
    program = command[at + 2 :]
    split = [*command[:at], "-n", "1", *program, ":", "-n", "1", *stop, *program]
    started = subprocess.Popen(
        split, env=world.environment(), cwd=world.path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        _, error = started.communicate(timeout=60)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode != 0
    assert "no progress for 4 s" in error


def test_errors_of_fetch_and_consume_name_the_part() -> None:
    entries = [PartEntry(k, f"k{k}", 1, "", 1, 1) for k in range(5)]

    def refuse(index: int, data: Any) -> None:
        if index == 3:
            raise CorruptInput("a tile")

    with pytest.raises(CorruptInput, match=r"part 3: a tile"):
        relay(Solo(), entries, [True] * 5, lambda e: b"x", refuse, degree=2, window=2)


def test_the_window_bounds_what_is_in_hand() -> None:
    """Never more parts fetched and not consumed than the window, whoever is slow."""
    entries = [PartEntry(k, f"k{k}", 1, "", 1, 1) for k in range(40)]
    in_hand: list[int] = []
    most = [0]

    def fetch(entry: PartEntry) -> bytes:
        in_hand.append(entry.index)
        most[0] = max(most[0], len(in_hand))
        return b"x"

    def consume(index: int, data: Any) -> None:
        time.sleep(0.002)
        in_hand.remove(index)

    tally = relay(Solo(), entries, [k % 3 > 0 for k in range(40)], fetch, consume, degree=2, window=3)
    assert tally == {"fetched": 26, "received": 0, "sent": 0}
    assert most[0] <= 3


@pytest.mark.parametrize("degree", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 64])
def test_trees(degree: int, size: int) -> None:
    """Every member has one way from the root, nobody else is in it, and its depth is logarithmic."""
    draw = np.random.default_rng(size * 10 + degree)
    for turn in range(6):
        members = sorted(draw.choice(size, draw.integers(1, size + 1), replace=False).tolist())
        root = int(draw.integers(0, size))
        places = {rank: route(rank, root, members, degree, turn) for rank in range(size)}
        inside = {rank: place for rank, place in places.items() if place is not None}
        assert set(inside) == {root, *members}
        for rank, place in inside.items():
            assert len(place.children) <= degree
            for child in place.children:
                assert inside[child].parent == rank
            hops, at = 0, rank
            while (up := inside[at].parent) is not None:
                at, hops = up, hops + 1
            assert at == root
            assert hops <= depth(len(inside) - 1, degree)
