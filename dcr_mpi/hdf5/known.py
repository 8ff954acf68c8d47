"""Inventories that were taken already: a job that stays meets most shards again, and listing one takes a while."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from dataclasses import replace

from .inventory import Inventory

_DIRECTORIES = 4  # the baseline, the next checkpoint, the replica; and one to spare
_TICK_NS = 20_000_000  # a kernel's clock for files goes on in steps of up to 10 ms
_ELSEWHERE = ("external", "virtual")


class Inventories:
    """Inventories by path, good as long as nobody wrote to their files: size, mtime and inode are what they were.

    Those of the last few directories are kept. ``asked`` is whatever else they depend on, and is compared.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, dict[str, tuple[object, Inventory]]] = OrderedDict()

    def find(self, path: str, asked: object) -> Inventory | None:
        """The inventory of a file that is still as it was; None where it must be taken."""
        there = self._kept.get(os.path.dirname(path), {})
        before, found = there.get(os.path.basename(path), (None, None))
        if found is None or before != asked or _stamp(path) != found.fingerprint:
            return None
        self._kept.move_to_end(os.path.dirname(path))
        return found

    def keep(self, path: str, asked: object, found: Inventory) -> None:
        """Keep an inventory that was just taken, unless the file could change without showing it: it was written to
        within the last tick of the kernel's clock, or has bytes in other files."""
        young = time.time_ns() - found.fingerprint[1] < _TICK_NS
        if not young and not any(d.storage in _ELSEWHERE for d in found.datasets):
            self._put(path, asked, found)

    def written(self, path: str) -> None:
        """We wrote words into a file, where it keeps them: what it holds is where it was."""
        there = self._kept.get(os.path.dirname(path), {})
        if (kept := there.get(os.path.basename(path))) is not None and (stamp := _stamp(path)) is not None:
            there[os.path.basename(path)] = kept[0], replace(kept[1], fingerprint=stamp)

    def _put(self, path: str, asked: object, found: Inventory) -> None:
        folder, name = os.path.split(path)
        self._kept.setdefault(folder, {})[name] = asked, found
        self._kept.move_to_end(folder)
        while len(self._kept) > _DIRECTORIES:
            self._kept.popitem(last=False)


def stamped(path: str, found: Inventory) -> Inventory | None:
    """An inventory that was taken on another machine, with the file's inode as it is known here: there are file systems
    whose clients number files on their own. None where another file is here, or an older or newer one."""
    stamp = _stamp(path)
    return replace(found, fingerprint=stamp) if stamp is not None and stamp[:2] == found.fingerprint[:2] else None


def _stamp(path: str) -> tuple[int, int, int] | None:
    """As :attr:`Inventory.fingerprint`."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino
