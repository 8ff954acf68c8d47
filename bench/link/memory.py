"""A file system in memory for the files of a bench, as the weights of an engine are in memory."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")


@contextmanager
def files(size: int, where: Path | None = None) -> Iterator[Path]:
    """A directory with room for ``size`` bytes until the block ends: in ``where``, or in memory if that is not said
    and there is room, or where temporary files go.

    A tmpfs of its own, where this machine lets us mount one, has huge pages: a copy then costs half as much.
    """
    room = shutil.disk_usage(_MEMORY).free if _MEMORY.is_dir() else 0
    with tempfile.TemporaryDirectory(prefix="dcr-link-", dir=where or (_MEMORY if room > size else None)) as folder:
        mounted = where is None and room > size and _mount(folder, size)
        try:
            yield Path(folder)
        finally:
            if mounted:
                subprocess.run(["umount", "--lazy", folder], check=False)


def _mount(folder: str, size: int) -> bool:
    options = f"huge=within_size,size={size},mode=700"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "dcr-link", folder], capture_output=True, check=False)
    return done.returncode == 0
