"""Commands in children of a warm process: everything is imported and compiled once, and a fork starts in no time.

A child waits at a pipe until strace holds it, then runs :func:`dcr_mpi.cli.main`. What it prints goes into memory
that it shares with its parent, so that the only system calls that are seen, and disturbed, are the command's own.

Forking is sound here because the parent has one thread, which is checked each time, and holds no file of HDF5.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dcr_mpi.cli import main

_ROOM = 1 << 16
_PATIENCE_S = 60.0
TIMED_OUT = 124


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, or minus the signal's number; what it printed, where it was not killed."""

    code: int
    text: str


def warm(cwd: Path, commands: Sequence[Sequence[str]]) -> None:
    """Run commands that must succeed in this very process, so that all children find everything loaded and compiled."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        for argv in commands:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(cwd):
                code = main(argv)
            assert code == 0, f"dcr {' '.join(argv)}: exit code {code}"
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def run(cwd: Path, argv: Sequence[str], strace: Sequence[str] = ()) -> Ended:
    """Run ``dcr ARGV`` in ``cwd`` in a child, under ``strace`` with these options where there are any.

    One that does not end within a minute is killed, with :data:`TIMED_OUT` as its code.
    """
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"a process with {len(threads)} threads must not fork: {threads}"
    shared = mmap.mmap(-1, _ROOM)
    gate, opener = os.pipe()
    pid = os.fork()
    if not pid:
        _child(cwd, argv, gate, opener, shared)
    os.close(gate)
    tracer = _attach(pid, strace) if strace else None
    os.close(opener)
    try:
        code = _wait(pid)
    finally:
        if tracer is not None:
            tracer.wait(_PATIENCE_S)
    with shared:
        return Ended(code, shared[:].rstrip(b"\0").decode(errors="replace"))


def _child(cwd: Path, argv: Sequence[str], gate: int, opener: int, shared: mmap.mmap) -> None:
    code, out = 1, io.StringIO()
    try:
        os.close(opener)
        os.chdir(cwd)
        os.read(gate, 1)  # ends when the parent closes its side
        os.close(gate)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                code = main(argv)
            except SystemExit as leaving:  # argparse
                code = int(leaving.code or 0)
            except BaseException:
                traceback.print_exc()
        text = out.getvalue().encode()[-_ROOM:]
        shared[: len(text)] = text
    finally:
        os._exit(code)


def _attach(pid: int, options: Sequence[str]) -> subprocess.Popen[bytes]:
    tracer = subprocess.Popen(["strace", "-f", "-qq", "-p", str(pid), *options], stdin=subprocess.DEVNULL)
    status, give_up = Path(f"/proc/{pid}/status"), time.monotonic() + _PATIENCE_S
    while "TracerPid:\t0\n" in status.read_text():
        if tracer.poll() is not None or time.monotonic() > give_up:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise RuntimeError(f"strace could not attach (it ended with {tracer.poll()}): {' '.join(options)}")
        time.sleep(0.001)
    return tracer


def _wait(pid: int) -> int:
    give_up = time.monotonic() + _PATIENCE_S
    pause = 0.001
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > give_up:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return TIMED_OUT
        time.sleep(pause)
        pause = min(2 * pause, 0.01)
