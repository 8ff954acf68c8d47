"""The real relay under mpirun, and the same parts simulated: bytes and transfers of every rank must be the same.

``python -m bench.scaling.real JSON`` is the program of one rank; :func:`compare` starts it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.launcher import Launcher
from dcr_mpi import comm
from dcr_mpi.acts.relay import relay
from dcr_mpi.comm import Comm, Transfer
from dcr_mpi.errors import CorruptInput
from dcr_mpi.jsonable import dumps
from dcr_mpi.model import PartEntry

from .simulate import Model, simulate


class _Counting:
    """The job's ranks, counting what they send."""

    def __init__(self, ranks: Comm) -> None:
        self._ranks, self.sends = ranks, 0

    def send(self, to: int, index: int, data: Any) -> Transfer:
        self.sends += 1
        return self._ranks.send(to, index, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks, name)


def bytes_of(part: int, size: int) -> bytes:
    """A part's bytes, which tell it from every other."""
    return hashlib.shake_128(part.to_bytes(4, "little")).digest(size)


def work(
    ranks: Comm, sizes: Sequence[int], members: Sequence[Sequence[int]], degree: int, window: int
) -> dict[str, int]:
    """One rank: relay all parts, check each that comes, and tell what was moved.

    Raises
    ------
    CorruptInput
        A part came with other bytes, twice, or not at all.
    """
    entries = [PartEntry(k, f"part-{k}", size, "", 1, 1) for k, size in enumerate(sizes)]
    needed, came = [ranks.rank in owners for owners in members], []

    def consume(part: int, data: Any) -> None:
        if bytes(data) != bytes_of(part, sizes[part]):
            raise CorruptInput(f"part {part}", found="other bytes")
        came.append(part)

    counting: Any = _Counting(ranks)
    moved = relay(counting, entries, needed, lambda e: bytes_of(e.index, e.size), consume, degree=degree, window=window)
    if sorted(came) != [k for k, need in enumerate(needed) if need]:
        raise CorruptInput("relay", found=f"parts {sorted(came)}", expected="each that is needed, once")
    return {**moved, "sends": counting.sends}


def main() -> int:
    asked = json.loads(sys.argv[1])
    ranks = comm.start(timeout_s=60.0, chunk_bytes=asked.pop("chunk_bytes"))

    def act() -> int:
        tallies = [json.loads(raw) for raw in ranks.allgather(dumps(work(ranks, **asked)), "tallies")]
        if ranks.rank == 0:
            print(json.dumps(tallies))
        return 0

    return comm.run(ranks, act)


def compare(
    model: Model, launcher: Launcher, chunk_bytes: int = 1 << 16
) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """What every rank of one site moved, simulated and under mpirun.

    Raises
    ------
    SystemExit
        The real relay failed.
    """
    asked = {
        "sizes": list(model.sizes), "members": [list(model.members(k)) for k in range(len(model.sizes))],
        "degree": model.degree, "window": model.window, "chunk_bytes": chunk_bytes,
    }  # fmt: skip
    program = [sys.executable, "-m", "bench.scaling.real", json.dumps(asked)]
    command = [launcher.path, "-n", str(model.site_ranks), *program]
    done = subprocess.run(command, env=launcher.environment(), capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"the real relay ended with {done.returncode}: {done.stderr[-2000:]}")
    real: list[dict[str, int]] = json.loads(done.stdout.strip().splitlines()[-1])
    return [asdict(tally) for tally in simulate(model).tallies[0]], real


if __name__ == "__main__":
    sys.exit(main())
