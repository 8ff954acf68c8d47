"""Inventories that were taken already: a job that stays meets most shards again, and listing one takes a while."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from dataclasses import replace

from .access import look
from .inventory import Inventory, Stamp, stamp_of

_DIRECTORIES = 2  # the baseline and the next checkpoint; a site has but its replica
_TICK_NS = 20_000_000  # a kernel's clock for files goes on in steps of up to 10 ms
_COARSE_NS = 2_000_000_000  # and some file systems keep whole seconds, or even ones
_ELSEWHERE = ("external", "virtual")


class Inventories:
    """Inventories by path, good as long as nobody wrote to their files: size, mtime, ctime, inode are what they were.

    Those of the last few directories are kept. ``asked`` is whatever else they depend on, and is compared.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, dict[str, tuple[object, Inventory]]] = OrderedDict()

    def has(self, path: str, asked: object) -> bool:
        """Whether there is one, good or not."""
        folder, name = os.path.split(path)
        before, found = self._kept.get(folder, {}).get(name, (None, None))
        return found is not None and before == asked

    def find(self, path: str, asked: object) -> Inventory | None:
        """The inventory of a file that is still as it was; None where it must be taken.

        The file is opened, and held against the signs of one that is being written, or was left half written: only the
        way through its datasets is saved.

        Raises
        ------
        CorruptInput, NotReady, UsageError, ResourceError
            As :func:`.inventory.inventory`.
        """
        folder, name = os.path.split(path)
        if not self.has(path, asked):
            return None
        _, found = self._kept[folder][name]
        if stamp_of(look(path)) != found.fingerprint:
            return None
        self._kept.move_to_end(folder)
        return found

    def keep(self, path: str, asked: object, found: Inventory) -> None:
        """Keep an inventory that was just taken, in place of any before it; none where the file could change without
        showing it: it was written to within the last tick of its clock, or has bytes in other files."""
        folder, name = os.path.split(path)
        there = self._kept.setdefault(folder, {})
        self._kept.move_to_end(folder)
        there.pop(name, None)
        if not _is_young(found.fingerprint) and not any(d.storage in _ELSEWHERE for d in found.datasets):
            there[name] = asked, found
        while len(self._kept) > _DIRECTORIES:
            self._kept.popitem(last=False)

    def written(self, path: str, found: Inventory, after: Stamp) -> None:
        """We wrote words where ``found`` says that they lie, and saw the file so just after: what it holds is where it
        was."""
        folder, name = os.path.split(path)
        asked, kept = self._kept.get(folder, {}).get(name, (None, None))
        if kept is found and (after.size, after.inode) == (found.size, found.fingerprint.inode):
            self._kept[folder][name] = asked, replace(found, fingerprint=after)


def stamped(path: str, found: Inventory) -> Inventory | None:
    """An inventory that was taken on another machine, with the file's inode and ctime as they are known here: there are
    file systems whose clients number files on their own. None where another file is here, or an older or newer one."""
    try:
        mine = stamp_of(os.stat(path))
    except OSError:
        return None
    same = (mine.size, mine.mtime_ns) == (found.size, found.fingerprint.mtime_ns)
    return replace(found, fingerprint=mine) if same else None


def _is_young(stamp: Stamp) -> bool:
    last = max(stamp.mtime_ns, stamp.ctime_ns)
    return time.time_ns() - last < (_TICK_NS if last % 1_000_000_000 else _COARSE_NS)
