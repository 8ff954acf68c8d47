"""Killed by SIGKILL in the middle of a system call, or failed by the medium; then run again: the same bits.

strace's injection stops the process at the n-th call without any help from the code under test. This is the fast
subset: a few points of each kind, spread evenly over all calls of the act.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import LAUNCHERS, World

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]
KIND = sorted(LAUNCHERS)[0]
CALLS = ["pwrite64", "fsync", "link", *(pytest.param(c, marks=pytest.mark.slow) for c in ("rename", "unlink"))]
POINTS = 3


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Version 1 is sealed; the replica is at version 0."""
    world = World(tmp_path_factory.mktemp("sealed"), LAUNCHERS[KIND])
    world.begin()
    world.encode(1)
    return world


@pytest.fixture(scope="module")
def committed(sealed: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Version 1 is prepared and committed, not applied."""
    world = _copy(sealed, tmp_path_factory.mktemp("committed") / "w")
    world.dcr(1, "refit", "--site", "rollout")
    world.dcr(1, "commit")
    return world


def _copy(world: World, path: Path) -> World:
    shutil.copytree(world.path, path)
    return World(path, world.launcher)


def _count(world: World, call: str, *arguments: str) -> int:
    """The most calls that one thread of an undisturbed act makes: injection counts by thread."""
    log = world.path / "strace.log"
    done = world.run(1, *arguments, before=("strace", "-f", "-qq", "-o", str(log), "-e", f"trace={call}"))
    assert done.code == 0, done.error
    threads = Counter(line.split()[0] for line in log.read_text().splitlines() if f" {call}(" in line)
    return max(threads.values(), default=0)


def _points(count: int) -> Iterator[int]:
    """The first call, the last, and some between."""
    yield from sorted({1 + k * (count - 1) // (POINTS - 1) for k in range(POINTS)}) if count else ()


def _disturb(world: World, call: str, what: str, *arguments: str) -> int:
    inject = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:{what}")
    return world.run(1, *arguments, before=inject).code


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("act", ["refit", "apply"])
def test_killed_and_run_again(tmp_path: Path, sealed: World, committed: World, act: str, call: str) -> None:
    origin = sealed if act == "refit" else committed
    arguments = (act, "--site", "rollout")
    count = _count(_copy(origin, tmp_path / "count"), call, *arguments)
    if not count:
        pytest.skip(f"{act} makes no {call} call")
    for n in _points(count):
        world = _copy(origin, tmp_path / f"at-{n}")
        code = _disturb(world, call, f"signal=KILL:when={n}", *arguments)
        assert code in (-9, 137), f"call {n} of {count}: the process ended with {code} instead of being killed"
        _finish(world, act)


@pytest.mark.parametrize("error", ["ENOSPC", *(pytest.param(e, marks=pytest.mark.slow) for e in ("EIO", "EROFS"))])
@pytest.mark.parametrize("act", ["refit", "apply"])
def test_the_medium_fails(tmp_path: Path, sealed: World, committed: World, act: str, error: str) -> None:
    origin = sealed if act == "refit" else committed
    arguments = (act, "--site", "rollout")
    count = _count(_copy(origin, tmp_path / "count"), "pwrite64", *arguments)
    for n in _points(count):
        world = _copy(origin, tmp_path / f"at-{n}")
        assert _disturb(world, "pwrite64", f"error={error}:when={n}", *arguments) == 30
        _finish(world, act)


def _finish(world: World, act: str) -> None:
    """Run everything again, undisturbed: the replica is what a full transfer would have left."""
    if act == "refit":
        world.dcr(1, "refit", "--site", "rollout")
        world.dcr(1, "commit")
    world.dcr(1, "apply", "--site", "rollout")
    assert world.words() == world.full_transfer(1)
    assert not list(world.replica().work.glob("v*")), "journals are gone once a version is applied"


def test_a_rank_is_killed_in_refit(tmp_path: Path, sealed: World) -> None:
    """One of three ranks dies at its first journal write: the job ends, and the next one fetches what is missing."""
    world = _copy(sealed, tmp_path / "w")
    command = world.command(3, "refit", "--site", "rollout")
    at = command.index("-n")
    rank = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=pwrite64",
        "-e",
        "inject=pwrite64:signal=KILL:when=2",
    ]
    program = command[at + 2 :]
    split = [*command[:at], "-n", "1", *rank, *program, ":", "-n", "2", *program]  # rank 0 owns a shard
    done = subprocess.run(split, env=world.environment(), cwd=world.path, capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    _finish(world, "refit")
