"""One disturbed call: the command is stopped there, looked at, run again, and must end as if nothing had been."""

from __future__ import annotations

import json
import os
import pickle
import re
import select
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import RawIOBase
from typing import TypeVar

from tests.campaign.arena import SITE, Arena, Place, Scene
from tests.campaign.child import Ended
from tests.campaign.compare import difference

# Everything that changes a file system, or leaves this machine; by family, of which libraries choose one.
CALLS = {
    "write": "write,writev",
    "pwrite": "pwrite64,pwritev,pwritev2",
    "fsync": "fsync,fdatasync",
    "rename": "rename,renameat,renameat2",
    "link": "link,linkat",
    "unlink": "unlink,unlinkat,rmdir",
    "mkdir": "mkdir,mkdirat",
    "truncate": "ftruncate,truncate",
    "allocate": "fallocate",
    "send": "sendto,sendmsg",
}
_FAMILY = {call: family for family, calls in CALLS.items() for call in calls.split(",")}
_NOT_READY, _THEN_EVERY = 10, 8

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Point:
    """The ``number``-th call of a name in any thread of a scene's command."""

    scene: str
    call: str
    number: int

    def __str__(self) -> str:
        return f"{self.scene}, {self.call} {self.number}"


@dataclass(frozen=True)
class Undisturbed:
    """How a scene goes by itself: calls by name (the most that one thread makes), and the worlds that it leaves."""

    calls: Mapping[str, int]
    after: Mapping[str, str]
    final: Mapping[str, str]  # once the user went on
    states: frozenset[str]  # digests that the replica may have


class Bench:
    """Scenes of an arena by name, each with how it goes undisturbed."""

    def __init__(self, arena: Arena, workers: int, names: Collection[str] | None = None) -> None:
        self.arena, self.workers = arena, workers
        self.scenes = {s.name: s for s in arena.scenes() if names is None or s.name in names}
        self.undisturbed = cache(self._undisturbed)

    def _undisturbed(self, name: str) -> Undisturbed:
        scene = self.scenes[name]
        log = self.arena.root / f"calls-{name}-{os.getpid()}"
        with self.arena.copy(scene.stage) as place:
            states = {state_of(place.run(("verify", *SITE)))}
            done = place.run(scene.argv, ("-o", str(log), "-e", "trace=" + ",".join(CALLS.values())))
            assert done.code == 0, f"{scene.name}: exit code {done.code}\n{done.text}"
            after = place.contents()
            states.add(state_of(place.run(("verify", *SITE))))
            for manifest in place.path.glob("store/test/versions/*/manifest.json"):
                states.add(json.loads(manifest.read_bytes())["state"])
            for argv in scene.then:
                place.must(argv)
            final = place.contents()
        found = re.findall(r"^(\d+) +(\w+)\(", log.read_text(), re.MULTILINE)
        log.unlink()
        calls: dict[str, int] = {}
        for (_, call), number in Counter(found).items():
            calls[call] = max(calls.get(call, 0), number)
        return Undisturbed(calls, after, final, frozenset(states - {""}))

    def points(self, name: str) -> Iterator[Point]:
        """Every call of a scene that can be disturbed."""
        for call, number in sorted(self.undisturbed(name).calls.items()):
            yield from (Point(name, call, n + 1) for n in range(number))

    def check_stopped(self, place: Place, scene: str) -> str:
        """Whether a replica that was left in the middle is a version, or says that it is none; what is wrong."""
        seen = place.run(("verify", *SITE))
        if seen.code == _NOT_READY or (seen.code == 0 and state_of(seen) in self.undisturbed(scene).states):
            return ""
        return f"dcr verify ended with {seen.code} before the command was run again: {seen.text.strip()[-400:]}"

    def check_again(self, place: Place, scene: Scene, thorough: bool) -> str:
        """Run the command again, and what a user goes on with; what is wrong afterwards."""
        want = self.undisturbed(scene.name)
        done = place.run(scene.argv)
        if done.code:
            return f"run again: exit code {done.code}: {done.text.strip()[-400:]}"
        if wrong := difference(_left(place, scene, want.after), want.after):
            return f"run again: {wrong}"
        if thorough:
            return self.check_onwards(place, scene)
        return ""

    def check_onwards(self, place: Place, scene: Scene) -> str:
        """Go on as a user would; what is wrong at the end."""
        for argv in scene.then:
            done = place.run(argv)
            if done.code:
                return f"then dcr {argv[0]}: exit code {done.code}: {done.text.strip()[-400:]}"
        final = self.undisturbed(scene.name).final
        wrong = difference(_left(place, scene, final), final)
        return f"at the end: {wrong}" if wrong else ""


def _left(place: Place, scene: Scene, want: Mapping[str, str]) -> dict[str, str]:
    """What is there, but for what the next job sweeps where this one may have found nothing to do."""
    have = place.contents()
    if scene.idle:
        have = {path: "one" if path.endswith("/lease") else what for path, what in have.items()}
        spare = {path for path in have if path.startswith("replica/.dcr/v") and path not in want}
        empty = {
            path for path in spare if have[path] == "directory" and not any(p.startswith(f"{path}/") for p in have)
        }
        have = {path: what for path, what in have.items() if path not in empty}
    return have


def thorough(index: int) -> bool:
    """Whether a point's world is followed to the end of its version: every eighth is."""
    return index % _THEN_EVERY == 0


def state_of(done: Ended) -> str:
    """The state digest that a verify printed, "" where it did not succeed."""
    return str(json.loads(done.text.strip().splitlines()[-1])["state"]) if done.code == 0 else ""


def spread(points: Sequence[T], budget: int | None) -> list[T]:
    """All of them, or about as many as the budget allows, evenly spread, the first and the last among them."""
    if budget is None or budget >= len(points):
        return list(points)
    chosen = {k * (len(points) - 1) // max(budget - 1, 1) for k in range(budget)}
    return [points[k] for k in sorted(chosen)]


def on_all_cores(work: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """``work`` of every item, in any order, in processes forked from this warm one: no pool, whose threads would stay.

    Raises
    ------
    RuntimeError
        Work that raised; the message holds its traceback.
    """
    readers: dict[int, int] = {}
    try:
        for k in range(min(workers, len(items))):
            reader, writer = os.pipe()
            pid = os.fork()
            if not pid:
                _worker(work, items[k::workers], writer)
            os.close(writer)
            readers[reader] = pid
        files = {reader: open(reader, "rb", buffering=0) for reader in readers}  # noqa: SIM115
        while files:
            for reader in select.select(list(files), [], [])[0]:
                head = _exactly(files[reader], 8)
                if not head:
                    files.pop(reader).close()
                    os.waitpid(readers.pop(reader), 0)
                    continue
                error, result = pickle.loads(_exactly(files[reader], int.from_bytes(head)))  # noqa: S301 (our own child wrote it)
                if error:
                    raise RuntimeError(error)
                yield result
    finally:
        for pid in readers.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _worker(work: Callable[[T], R], items: Sequence[T], writer: int) -> None:
    try:
        with open(writer, "wb", buffering=0) as out:
            for item in items:
                try:
                    answer: tuple[str, R | None] = ("", work(item))
                except BaseException:
                    answer = (f"{item}: {traceback.format_exc()}", None)
                raw = pickle.dumps(answer)
                out.write(len(raw).to_bytes(8) + raw)
    finally:
        os._exit(0)


def _exactly(file: RawIOBase, size: int) -> bytes:
    """So many bytes, or none at the end."""
    out = b""
    while len(out) < size and (more := file.read(size - len(out))):
        out += more
    return out
