"""A model of a POSIX file system that forgets: which state may be there after the power was lost.

POSIX promises one thing only: what was fsynced. So a file holds what it held at its last fsync and *any* of the
writes since, each whole, in part or not at all; a directory holds its entries at its last fsync and *any* of the
creations, links, renames and unlinks since, each atomic (a rename inside one directory is one step, so is the entry
and the file that it shows). A file that was synced keeps its bytes, but needs an entry to be found by.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from tests.campaign.power.recording import Call

# Whether a volatile change survives: asked once for each, by its kind and the path of what it changed.
Kind = Literal["name", "bytes"]
Keep = Callable[[Kind, str], bool]


@dataclass(frozen=True)
class Write:
    """Bytes at an offset; ``size`` is the file's length afterwards for a truncation, None for a write."""

    at: int
    data: bytes = b""
    size: int | None = None


@dataclass
class File:
    """Durable bytes and what came after."""

    durable: bytes = b""
    pending: list[Write] = field(default_factory=list)

    @property
    def length(self) -> int:
        size = len(self.durable)
        for write in self.pending:
            size = max(size, write.at + len(write.data)) if write.size is None else write.size
        return size

    def sync(self) -> None:
        self.durable = self.content(lambda write: write)
        self.pending = []

    def content(self, survives: Callable[[Write], Write | None]) -> bytes:
        out = bytearray(self.durable)
        for write in self.pending:
            kept = survives(write)
            if kept is None:
                continue
            if kept.size is not None:
                out = out[: kept.size] + bytes(max(0, kept.size - len(out)))
                continue
            out += bytes(max(0, kept.at - len(out)))
            out[kept.at : kept.at + len(kept.data)] = kept.data
        return bytes(out)


@dataclass
class Folder:
    """Entries now, durable ones, and the steps between: each sets some names and drops others, at once."""

    now: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def step(self, changes: dict[str, File | Folder | None]) -> None:
        _change(self.now, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.durable, self.pending = dict(self.now), []


class Disk:
    """The world below ``root`` as it was found (all of it durable), moved on by calls."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self._top = _load(root)
        self._open: dict[int, tuple[File | Folder | None, int]] = {}  # by descriptor: what it is, its position
        self.synced: list[str] = []  # paths of fsyncs, in order

    def apply(self, call: Call) -> None:
        """One call; those on what lies elsewhere change nothing here."""
        if call.name in ("write", "pwrite", "fsync", "truncate", "allocate", "seek"):
            self._on_descriptor(call)
        elif call.name == "open":
            self._opened(call)
        else:
            self._on_names(call)

    def volatile(self) -> int:
        """How many changes are not durable."""
        return sum(len(thing.pending) for _, thing in self._walk(self._top, ""))

    def build(self, target: Path, keep: Keep, tear: Callable[[Write], Write]) -> None:
        """Write out a state that may be there: ``keep`` says which volatile changes survive, ``tear`` how much of a
        surviving write. What has no entry left is not there."""
        self._build(self._top, target, "", keep, tear, {})

    def _build(
        self,
        folder: Folder,
        target: Path,
        path: str,
        keep: Keep,
        tear: Callable[[Write], Write],
        held: dict[int, bytes],
    ) -> None:
        target.mkdir()
        entries = dict(folder.durable)
        for changes in folder.pending:
            if keep("name", f"{path}/{next(iter(changes))}"):
                _change(entries, changes)
        for name, thing in entries.items():
            where = f"{path}/{name}"
            if isinstance(thing, Folder):
                self._build(thing, target / name, where, keep, tear, held)
                continue
            if id(thing) not in held:  # a file with two names has one content
                held[id(thing)] = thing.content(partial(_survivor, keep, tear, where))
            (target / name).write_bytes(held[id(thing)])

    def _opened(self, call: Call) -> None:
        folder, name = self._parent(call.paths[0])
        if folder is None:
            self._open.pop(call.fd, None)
            if call.paths[0] == self.root:
                self._open[call.fd] = (self._top, 0)
            return
        thing = folder.now.get(name)
        if thing is None:
            thing = File()
            folder.step({name: thing})
        elif "O_TRUNC" in call.flags and isinstance(thing, File):
            thing.pending.append(Write(0, size=0))
        end = thing.length if isinstance(thing, File) and "O_APPEND" in call.flags else 0
        self._open[call.fd] = (thing, end)

    def _on_descriptor(self, call: Call) -> None:
        if call.paths[0] != self.root and not call.paths[0].startswith(self.root + "/"):
            return
        if call.name == "seek" and call.fd not in self._open:
            return  # a copy of a descriptor, by which a directory is listed
        thing, position = self._open[call.fd]
        if call.name == "fsync":
            assert thing is not None
            if not call.lied:
                thing.sync()
                self.synced.append(call.paths[0])
            return
        if call.name == "seek":
            self._open[call.fd] = (thing, call.at)
            return
        assert isinstance(thing, File), f"{call.name} on {call.paths[0]}"
        if call.name == "truncate":
            thing.pending.append(Write(0, size=call.at))
        elif call.name == "allocate":
            if call.at > thing.length:
                thing.pending.append(Write(0, size=call.at))
        elif call.name == "pwrite":
            thing.pending.append(Write(call.at, call.data))
        else:
            thing.pending.append(Write(position, call.data))
            self._open[call.fd] = (thing, position + len(call.data))

    def _on_names(self, call: Call) -> None:
        places = [self._parent(path) for path in call.paths]
        if any(folder is None for folder, _ in places):
            return
        (folder, name), *others = places
        assert folder is not None
        if call.name == "mkdir":
            folder.step({name: Folder()})
        elif call.name == "unlink":
            folder.step({name: None})
        else:
            ((other, new),) = others
            assert other is not None
            thing = folder.now[name]
            if call.name == "link":
                other.step({new: thing})
            elif other is folder:
                folder.step({new: thing, name: None})
            else:
                raise ValueError(f"a rename from one directory to another is not modelled: {call.paths}")

    def _parent(self, path: str) -> tuple[Folder | None, str]:
        """The directory that holds a path, and its name there; None where that is outside."""
        clean = os.path.normpath(path)
        if not clean.startswith(self.root + "/"):
            return None, ""
        *way, name = clean[len(self.root) + 1 :].split("/")
        at = self._top
        for part in way:
            below = at.now[part]
            assert isinstance(below, Folder), path
            at = below
        return at, name

    def _walk(self, folder: Folder, path: str) -> list[tuple[str, File | Folder]]:
        out: list[tuple[str, File | Folder]] = [(path, folder)]
        for name, thing in folder.now.items():
            out += self._walk(thing, f"{path}/{name}") if isinstance(thing, Folder) else [(f"{path}/{name}", thing)]
        return out


def _survivor(keep: Keep, tear: Callable[[Write], Write], path: str, write: Write) -> Write | None:
    return tear(write) if keep("bytes", path) else None


def _change(entries: dict[str, File | Folder], changes: dict[str, File | Folder | None]) -> None:
    for name, thing in changes.items():
        if thing is None:
            entries.pop(name, None)
        else:
            entries[name] = thing


def _load(path: Path) -> Folder:
    entries: dict[str, File | Folder] = {
        e.name: _load(Path(e.path)) if e.is_dir() else File(Path(e.path).read_bytes()) for e in os.scandir(path)
    }
    return Folder(entries, dict(entries))
