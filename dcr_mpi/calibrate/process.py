"""What a process of its own takes of a core, from its start to its end."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from ..errors import ResourceError
from ..jsonable import dumps
from ..store import S3Options

_OPEN = """
import sys
from dcr_mpi.jsonable import loads
from dcr_mpi.store import S3Options, open_store
open_store(sys.argv[1], loads(S3Options, sys.argv[2].encode(), "options")).stat("calibration/nothing")
"""


def process_s(what: str, *arguments: str) -> float:
    """Core-seconds of this Python with such arguments.

    Raises
    ------
    ResourceError
        It failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=_alone(), check=False)
    if done.returncode:
        raise ResourceError(what, found=done.stderr.strip()[-1000:], expected="its result")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def opening_s(url: str, options: S3Options, directory: Path) -> float:
    """What a process takes more for having a store than for having one in ``directory``: its client is loaded, and has
    its first answer."""
    told = dumps(options).decode()
    with_it, without = (process_s("looking into the store", "-c", _OPEN, u, told) for u in (url, str(directory)))
    return max(0.0, with_it - without)


def _alone() -> dict[str, str]:
    """This environment, less what would make the process one rank of a job, with this very package first."""
    ours = str(Path(__file__).parents[2])
    jobs = ("OMPI_", "PMI_", "PMIX_", "HYDI_", "SLURM_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(jobs)}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [ours, kept.get("PYTHONPATH", "")]))}
