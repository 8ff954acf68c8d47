"""The scheduler wants the node back: SIGTERM or SIGUSR1 in mid-act is exit code 75, and the next run ends the same.

strace slows the act down from outside, so that the signal surely meets it at work.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Quick, Stages
from tests.cli.shell import finish
from tests.world import Done, World

pytestmark = pytest.mark.faults
SITE = ("--site", "rollout")
# What each act does again and again: parts and objects are linked to their names, journals and weights written.
CALL = {"encode": "link", "refit": "pwrite64", "apply": "pwrite64"}
STAGE = {"encode": "begun", "refit": "sealed", "apply": "committed"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("act", list(CALL))
def test_stopped_in_the_middle_and_run_again(stages: Stages, tmp_path: Path, act: str, number: int) -> None:
    world = stages.copy(STAGE[act], tmp_path / "w")
    arguments = (act, str(world.synth(1))) if act == "encode" else (act, *SITE)
    done = _stop(world, tmp_path / "calls", CALL[act], number, *arguments)
    assert done.code == 75, done.error
    assert f"{signal.Signals(number).name}: found the scheduler's signal to stop" in done.error
    assert "run the same command again" in done.error and "Traceback" not in done.error
    assert done.out == "", "no result"
    world.dcr(1, *arguments)
    for left in list(CALL)[list(CALL).index(act) + 1 :]:
        if left == "apply":
            world.dcr(1, "commit")
        world.dcr(1, left, *SITE)
    assert world.words() == world.full_transfer(1)


def _from_a_terminal() -> None:
    """A shell starts what it puts into the background deaf to SIGINT, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _stop(world: World, log: Path, call: str, number: int, *arguments: str) -> Done:
    """Start an act whose ``call``s take 0.3 s each, and signal its process after the first of them."""
    slow = ("strace", "-f", "-qq", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:delay_enter=300000")
    process = subprocess.Popen(
        [*slow, *world.command(1, *arguments)],
        env=world.environment(),
        cwd=world.path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_from_a_terminal,
    )
    try:
        _until(lambda: log.exists() and f"{call}(" in log.read_text())
        assert process.poll() is None
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), number)
        if number != signal.SIGINT:
            os.kill(int(child), number)  # a launcher passes on what the scheduler has sent already
        return finish(process)
    finally:
        process.kill()


def _until(ready, timeout_s: float = 30.0) -> None:  # type: ignore[no-untyped-def]
    give_up = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.mark.mpi
def test_one_rank_is_stopped(stages: Stages, tmp_path: Path) -> None:
    """The others do not wait for it; a lease that it left is no obstacle."""
    world = stages.copy("sealed", tmp_path / "w")
    command = world.command(3, "refit", *SITE)
    at, log = command.index("-n"), tmp_path / "calls"
    slow = ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=pwrite64", "-e", "inject=pwrite64:delay_enter=300000"]
    program = command[at + 2 :]
    split = [*command[:at], "-n", "1", *slow, *program, ":", "-n", "2", *program]  # rank 0 owns a shard
    job = subprocess.Popen(
        split, env=world.environment(), cwd=world.path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        _until(lambda: log.exists() and "pwrite64(" in log.read_text())
        os.kill(_pid_of(log), signal.SIGTERM)
        done = finish(job)
    finally:
        job.kill()
    assert done.code == 75, done.error
    assert "[0/3 " in done.error and "error (Preempted, exit code 75)" in done.error
    _finish(world)


def _pid_of(log: Path) -> int:
    """The process whose threads strace writes about."""
    thread = int(log.read_text().split()[0])
    status = Path(f"/proc/{thread}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Tgid:")).split()[1])


def _finish(world: Quick) -> None:
    world.dcr(3, "refit", *SITE)
    world.dcr(1, "commit")
    world.dcr(3, "apply", *SITE)
    assert world.words() == world.full_transfer(1)


def test_an_interrupt_from_the_keyboard(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("committed", tmp_path / "w")
    done = _stop(world, tmp_path / "calls", "pwrite64", signal.SIGINT, "apply", *SITE)
    assert done.code == 130 and "interrupted" in done.error
    world.dcr(1, "apply", *SITE)
    assert world.words() == world.full_transfer(1)
