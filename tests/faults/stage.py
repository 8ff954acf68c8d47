"""A stage for acts that run at the same time: one moves at a time, from one door to the next, and any may die at one.

A *door* is a call that others could notice, or that a dead process would not have made: of the store, of
:mod:`dcr_mpi.durable`, a write to a journal or to a shard, a look at a lease. An actor is an act in a thread that waits
at each door until it is told to go on. Dying is an exception that no act catches, and every later door raises it again,
so that what an act does on its way out leaves as little behind as a killed process does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from dcr_mpi import durable, lease
from dcr_mpi.acts import patch, publish, relay
from dcr_mpi.journal import JournalWriter
from dcr_mpi.lease import Fence, Lease
from dcr_mpi.store.api import Buffer, Entry, Stat, Store

DURABLE = ("write_once", "replace", "rename", "sync", "remove", "make_dirs", "fsync_dir")


class Killed(BaseException):
    """This process is gone."""


class Actor:
    """One act under way. ``error`` is what it raised, None where it ended well or was killed."""

    def __init__(self, pid: int, name: str, act: Callable[[], object]) -> None:
        self.pid, self.name, self._act = pid, name, act
        self.done = self.dead = self.silent = False
        self.error: BaseException | None = None
        self.doors: list[str] = []
        self._free = False  # the next door is one step with the look at the lease before it
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()
        self._wait()

    def _run(self) -> None:
        try:
            self.door("start")
            self._act()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self._back.release()

    def door(self, name: str, torn: Callable[[], object] = lambda: None, *, look: bool = False) -> None:
        """Called by the actor's own thread; ``torn`` is what a death in the middle of the call leaves."""
        if self.dead:
            raise Killed
        if self._free and not look:
            self._free = False
            return
        self.doors.append(name)
        self._back.release()
        self._go.acquire()
        if self._is_dead():
            torn()
            raise Killed
        self._free = look

    def _is_dead(self) -> bool:
        return self.dead

    def step(self, doors: int = 1) -> None:
        """Let it pass some doors, or end."""
        for _ in range(doors):
            if self.done:
                return
            self._go.release()
            self._wait()

    def finish(self) -> None:
        self.step(100_000)

    def kill(self) -> None:
        """At the door where it stands."""
        if not self.done:
            self.dead = True
            self.step()
            assert self.done, f"{self.name} outlived its death"

    def _wait(self) -> None:
        assert self._back.acquire(timeout=60), f"{self.name} stands still after {self.doors[-5:]}"


class Stage:
    """All actors, and the doors that they come to. Other threads pass every door."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actors: list[Actor] = []
        for name in DURABLE:
            monkeypatch.setattr(durable, name, self._before(name, getattr(durable, name)))
        monkeypatch.setattr(patch, "_write", self._before("write to a shard", patch._write))
        monkeypatch.setattr(JournalWriter, "_write", self._torn(JournalWriter._write))
        monkeypatch.setattr(Fence, "check", self._before("look at the lease", Fence.check, look=True))
        monkeypatch.setattr(Lease, "_heartbeat", lambda *_: None)
        monkeypatch.setattr(lease, "_identity", self._identity)
        monkeypatch.setattr(lease, "_alive", lambda _, __, holder: self._alive(holder["pid"]))
        monkeypatch.setattr(lease, "LOOK_S", 0)
        for module in (publish, relay):
            monkeypatch.setattr(module, "ThreadPoolExecutor", Inline)

    def start(self, name: str, act: Callable[[], object]) -> Actor:
        actor = Actor(len(self.actors) + 1, name, act)
        self.actors.append(actor)
        return actor

    @property
    def running(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.done]

    def close(self) -> None:
        for actor in self.running:
            actor.kill()

    def door(self, name: str) -> None:
        if (actor := self._me()) is not None:
            actor.door(name)

    def _me(self) -> Actor | None:
        here = threading.current_thread()
        return next((actor for actor in self.actors if actor.thread is here), None)

    def _before(self, name: str, call: Callable[..., Any], *, look: bool = False) -> Callable[..., Any]:
        def at_door(*args: Any, **kwargs: Any) -> Any:
            if (actor := self._me()) is not None:
                actor.door(name, look=look)
            return call(*args, **kwargs)

        return at_door

    def _torn(self, write: Callable[[JournalWriter, bytes, int], int]) -> Callable[..., int]:
        def at_door(writer: JournalWriter, data: bytes, at: int) -> int:
            if (actor := self._me()) is not None:
                actor.door("write to a journal", lambda: write(writer, data[: len(data) // 2], at))
            return write(writer, data, at)

        return at_door

    def _identity(self) -> dict[str, Any]:
        actor = self._me()
        pid = actor.pid if actor is not None else 0
        return {"host": "here", "boot": "1", "pidns": "1", "pid": pid, "started": "1"}

    def _alive(self, pid: int) -> bool:
        if pid == 0:
            return True
        actor = self.actors[pid - 1]
        return not actor.done and not actor.silent


class DoorStore:
    """A store whose calls are doors."""

    def __init__(self, store: Store, stage: Stage) -> None:
        self._store, self._stage, self.url = store, stage, store.url

    def put_once(self, key: str, data: Buffer) -> bool:
        self._stage.door(f"put {key}")
        return self._store.put_once(key, data)

    def get(self, key: str, start: int = 0, stop: int | None = None, *, limit: int | None = None) -> bytes | None:
        self._stage.door(f"get {key}")
        return self._store.get(key, start, stop, limit=limit)

    def stat(self, key: str) -> Stat | None:
        self._stage.door(f"stat {key}")
        return self._store.stat(key)

    def sweep(self, prefix: str, older_than_s: float) -> int:
        return self._store.sweep(prefix, older_than_s)

    def walk(self, prefix: str) -> Iterator[Entry]:
        return self._store.walk(prefix)

    def ahead_s(self, key: str) -> float:
        return self._store.ahead_s(key)

    def delete(self, key: str) -> None:
        self._stage.door(f"delete {key}")
        self._store.delete(key)


class Inline:
    """An executor that works in the caller's thread: an actor is one thread, so that its doors are in order."""

    def __init__(self, *_: object) -> None: ...

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: object) -> None: ...
