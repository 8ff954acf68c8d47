"""Reading back what acts logged: one run for every ``end`` line that says which version it was about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import from_os_error

_HEAD = ("ts", "act", "subject", "rank", "size", "event", "wall", "seconds", "bytes", "dropped", "version")


@dataclass(frozen=True)
class Run:
    """One rank's run of an act that ended well. ``began`` in seconds since the epoch; ``facts`` are the act's own."""

    act: str
    subject: str
    version: int
    rank: int
    size: int
    began: float
    wall: float
    seconds: dict[str, float]
    bytes: dict[str, int]
    facts: dict[str, Any]

    @property
    def ended(self) -> float:
        return self.began + self.wall


def read_runs(directories: Iterable[Path]) -> tuple[list[Run], int]:
    """All runs in the logs of some directories, and how many lines could not be read.

    Raises
    ------
    NotReady, UsageError, ResourceError
        A directory is not there, or a log may not be read.
    """
    runs, strange = [], 0
    for directory in directories:
        try:
            for path in sorted(p for p in directory.iterdir() if p.suffix == ".jsonl"):
                for run in _runs(path):
                    if run is None:
                        strange += 1
                    else:
                        runs.append(run)
        except OSError as error:
            raise from_os_error(error, f"reading logs in {directory}") from error
    return runs, strange


def _runs(path: Path) -> Iterator[Run | None]:
    """Runs of one log; None for a line that is cut or is none of ours."""
    with path.open("rb") as file:
        for line in file:
            if b'"event":"end"' in line:  # the few lines that matter, without reading all others as JSON
                try:
                    found = json.loads(line)
                    if "error" not in found and "version" in found:
                        yield _run(found)
                except (ValueError, KeyError, TypeError, AttributeError):
                    yield None


def _run(line: dict[str, Any]) -> Run:
    wall = float(line["wall"])
    return Run(
        str(line["act"]),
        str(line["subject"]),
        int(line["version"]),
        int(line["rank"]),
        int(line["size"]),
        datetime.fromisoformat(line["ts"]).timestamp() - wall,
        wall,
        {str(k): float(v) for k, v in line["seconds"].items()},
        {str(k): int(v) for k, v in line["bytes"].items()},
        {k: v for k, v in line.items() if k not in _HEAD},
    )


def job_of(runs: Iterable[Run], act: str, subject: str, version: int, since: float) -> list[Run]:
    """The runs, by rank, of the job that did an act on a version; empty where no log tells of it.

    The longest one counts: who came after it found the work done. What began before ``since`` was of an earlier
    version of that number.
    """
    mine = [r for r in runs if (r.act, r.subject, r.version) == (act, subject, version) and r.began >= since]
    if not mine:
        return []
    lead = max((r for r in mine if r.rank == min(r.rank for r in mine)), key=lambda r: r.wall)
    job = {
        r.rank: r
        for r in sorted(mine, key=lambda r: r.wall)
        if r.size == lead.size and r.began < lead.ended and r.ended > lead.began
    }
    return [job[rank] for rank in sorted(job)]
