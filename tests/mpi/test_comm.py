"""The ranks' room by itself: collectives and transfers of every size, and no rank that hangs when another fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.world import LAUNCHERS, ROOT

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
KINDS = sorted(LAUNCHERS)
PROGRAM = Path(__file__).parent / "comm_program.py"


def _run(kind: str, ranks: int, mode: str, **env: str) -> tuple[int, str, float]:
    launcher = LAUNCHERS[kind]
    begun = time.monotonic()
    command = [launcher.path, "-n", str(ranks), sys.executable, str(PROGRAM), mode]
    done = subprocess.run(
        command,
        env={**launcher.environment(), "PYTHONPATH": str(ROOT), **env},
        text=True,
        capture_output=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, time.monotonic() - begun


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_collectives_and_transfers(kind: str, ranks: int) -> None:
    code, output, _ = _run(kind, ranks, "ok")
    assert code == 0, output
    assert f"fine {ranks}" in output


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("mode", "code", "text"),
    [
        ("raise", 12, "rank 2 is wrong"),
        ("bug", 1, "ValueError"),
        ("kill", None, ""),
        ("exit", None, ""),
        ("silent", 40, "no progress"),
        ("length", 40, "9999"),
    ],
)
def test_a_rank_that_fails_ends_the_job_soon(kind: str, mode: str, code: int | None, text: str) -> None:
    got, output, seconds = _run(kind, 3, mode)
    assert got != 0
    assert code is None or got == code, output
    assert text in output
    assert seconds < 10 + (5 if mode == "silent" else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["preempt", "swallow", "both"])
def test_ranks_that_are_told_to_stop_leave_together(kind: str, mode: str) -> None:
    """Whichever of them got the signal, and whatever took it for its own error; MPICH's mpirun is told by an abort."""
    code, output, seconds = _run(kind, 3, mode)
    assert code == 75, output
    assert "/3 " in output and ("SIGTERM" if mode == "swallow" else "SIGUSR1") in output
    assert kind == "mpich" or ("mpi_abort" not in output.lower() and "signal 9" not in output.lower()), output
    assert seconds < 8


def test_a_rank_that_does_not_look_is_not_waited_for_long() -> None:
    code, output, seconds = _run(KINDS[0], 3, "absent")
    assert code == 75, output
    assert 9 < seconds < 25


def test_a_launcher_of_another_mpi_is_refused() -> None:
    """What a wrong mpirun does to a process: the environment of rank 0 of 4, and MPI that sees one rank."""
    env = {**os.environ, "PMI_SIZE": "4", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "ok"], env=env, text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 41
    assert "found 1 ranks by MPI, expected 4" in done.stderr


def test_the_expected_size_is_checked() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "EXPECTED": "3"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "ok"], env=env, text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 41
