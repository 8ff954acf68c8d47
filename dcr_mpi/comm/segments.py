"""MPICH's shared memory, which outlives ranks that leave by an abort.

Its name follows from the job's and the step's number. A job that Slurm starts again has the same ones, and its ranks
would meet what the last ones left: they hang in MPI_Init, or die there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_FOLDER = Path("/dev/shm")
_NAME = "mpich_shm_*"
_MAPPED = re.compile(r"(/dev/shm/mpich_shm_\S+)$", re.MULTILINE)


def drop_own(maps: str = "/proc/self/maps") -> None:
    """Take the names of what this process has mapped away: who has mapped it keeps it, nobody finds it again."""
    with suppress(OSError):
        for path in set(_MAPPED.findall(Path(maps).read_text())):
            with suppress(OSError):
                os.unlink(path)


def drop_stale(env: Mapping[str, str], folder: Path = _FOLDER) -> None:
    """Before MPI_Init, in a job that was started again: remove this user's segments from before its start that no
    process has mapped. Ranks killed outright leave them.
    """
    began = env.get("SLURM_JOB_START_TIME", "")
    if env.get("SLURM_RESTART_COUNT", "0") == "0" or not began.isdecimal():
        return
    for path in folder.glob(_NAME):
        with suppress(OSError):
            stat = path.stat()
            if stat.st_uid == os.getuid() and stat.st_mtime < int(began) and not _is_mapped(path):
                path.unlink()


def _is_mapped(path: Path) -> bool:
    """Whether any process whose maps may be read has it; those of another user have none of this user's."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if str(path) in maps.read_text():
                return True
    return False
