"""What a directory is on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

IN_MEMORY = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True)
class Mount:
    """``kind`` as the kernel names the file system, "unknown" where it does not say; ``huge``: how a tmpfs takes huge
    pages, "" where it takes none."""

    kind: str
    huge: str = ""

    @property
    def in_memory(self) -> bool:
        return self.kind in IN_MEMORY


def mount_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> Mount:
    """The file system that holds a directory."""
    best, found = "", Mount("unknown")
    real = os.path.realpath(folder)
    for line in mounts.read_text().splitlines():
        head, _, tail = line.partition(" - ")
        point = head.split()[4].replace("\\040", " ")
        if len(point) >= len(best) and (real + "/").startswith(point.rstrip("/") + "/"):
            kind, *_, options = tail.split()
            huge = [word.partition("=")[2] for word in options.split(",") if word.startswith("huge=")]
            best, found = point, Mount(kind, *huge)
    return found
