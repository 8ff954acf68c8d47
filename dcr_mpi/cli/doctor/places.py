"""Directories that an act writes to: what they are on, how much room they have, and whether they keep their word."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ... import durable
from ...errors import ResourceError, UsageError
from ...mounts import IN_MEMORY, mount_of
from ...units import bytes_text as size
from .finding import Finding, ok, warn

_LEAST = 256 << 20
_LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "vfat", "f2fs", *IN_MEMORY}


@dataclass(frozen=True)
class Place:
    """A configured directory, by the key that names it; ``need`` in bytes of free space, None where nobody knows."""

    key: str
    path: Path
    need: int | None = None


def place(where: Place, hosts: int) -> Iterator[Finding]:
    """One directory. Raises UsageError where it may not be written, ResourceError where it is full or has no links.

    One that is not there yet is not made: the directory that it will be made in is looked at.
    """
    folder = where.path
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise UsageError(f"{where.key} {where.path}", found=f"{folder}, which is no directory", expected="a directory",
                         remedy=f"correct {where.key} in the configuration")  # fmt: skip
    _probe(where, folder)
    kind = mount_of(folder).kind
    free = shutil.disk_usage(folder).free
    if where.need is not None and free < where.need:
        raise ResourceError(f"{where.key} {where.path}", found=f"{size(free)} free on {kind}",
                            expected=f"about {size(where.need)}",
                            remedy="make room, or put it elsewhere")  # fmt: skip
    told = f"{where.path}{'' if folder == where.path else ' (to be made)'}: {kind}, {size(free)} free"
    if kind in IN_MEMORY:
        yield warn(where.key, told, "a file system that outlives a reboot",
                   "it is gone at the next boot: put it on a disk")  # fmt: skip
    elif hosts > 1 and kind in _LOCAL:
        yield warn(where.key, f"{told}, with ranks on {hosts} hosts", "a file system that all of them share",
                   "put it on NFS, Lustre or the like, or run on one host")  # fmt: skip
    elif where.need is None and free < _LEAST:
        yield warn(where.key, told, f"some room, {size(_LEAST)} at least", "make room, or put it elsewhere")
    else:
        yield ok(where.key, told)


def _probe(where: Place, folder: Path) -> None:
    """Create exclusively, sync, rename over, remove: by the door that all acts use."""
    name = folder / f"{durable.TEMP_PREFIX}doctor-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        if not durable.write_once(name, b"1") or durable.write_once(name, b"2"):
            raise ResourceError(f"{where.key} {where.path}", found="a file that is created twice",
                                expected="a file system on which one of two creators wins",
                                remedy="put it on another file system")  # fmt: skip
        durable.replace(name, b"3")
        if name.read_bytes() != b"3":
            raise ResourceError(f"{where.key} {where.path}", found="other bytes than were written",
                                expected="what was written", remedy="put it on another file system")  # fmt: skip
    finally:
        with suppress(OSError):
            name.unlink()
