"""What a directory is on."""

from __future__ import annotations

import os
import re
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
    """The file system that holds a directory: of all that are mounted above it the nearest, of several there the last.

    Lines are of proc(5)'s form; bytes that would be mistaken for its separators are in octal.
    """
    found, nearest, real = Mount("unknown"), b"", os.fsencode(os.path.realpath(folder)) + b"/"
    for line in mounts.read_bytes().split(b"\n"):
        head, _, tail = line.partition(b" - ")
        fields, about = head.split(b" "), tail.split(b" ")
        if len(fields) < 5 or len(about) < 3:
            continue
        point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8) & 0xFF]), fields[4])
        if len(point) >= len(nearest) and real.startswith(point.rstrip(b"/") + b"/"):
            huge = [word[5:] for word in about[-1].split(b",") if word.startswith(b"huge=")]
            kind = os.fsdecode(about[0])
            nearest = point
            found = Mount(kind, os.fsdecode(huge[-1]) if huge and kind == "tmpfs" else "")
    return found
