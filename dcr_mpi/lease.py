"""One lease per replica: which job may change it now.

A lease is a file ``lease-<epoch>`` created exclusively; taking over a dead holder's lease means creating the next
epoch and removing the older files before anything else, so of any number of takers one wins, and a job that was taken
for dead finds its own file gone. Rank 0 takes the lease; every rank of the job holds its *fence*, which looks for
that file before what only the holder may do. Files that a job writes over time carry the epoch in their names, so
that a late writer meets nobody else's. No lock calls: they are unreliable on shared filesystems. A holder on this
very machine is dead when its process is gone; one elsewhere when its heartbeat (the file's mtime) is older than its
time to live, judged by the filesystem's clock, not by this host's.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import durable
from .errors import Conflict, DcrError

_NAME = re.compile(r"lease-([0-9]{8})")
_GIVEN_BACK: set[str] = set()  # nonces of this process's leases that are over, whether or not that could be written
LOOK_S = 0.05  # a patch takes about as long as a look on a shared file system: not every patch waits for one


@dataclass(frozen=True)
class Grant:
    """What rank 0 tells the other ranks of the lease that it took."""

    epoch: int
    nonce: str


class Fence:
    """A rank's view of its job's lease: whether the job still holds it."""

    def __init__(self, directory: Path, grant: Grant) -> None:
        self.epoch = grant.epoch
        self._directory, self._grant, self._looked = directory, grant, float("-inf")

    def check(self) -> None:
        """Raise Conflict if the job's lease was given back or taken over; call before what only the holder may do.

        It is followed at once by what it guards: a job that is stopped just between the two, for as long as a lease
        takes to run out, is what no lease can fence.
        """
        if (_holder(self._directory, self.epoch) or {}).get("nonce") != self._grant.nonce:
            raise Conflict(
                f"lease on {self._directory.parent}",
                found="another job that took it over",
                expected=f"epoch {self.epoch}, ours",
                remedy="this job was taken for dead, or its rank 0 is; it leaves the replica alone: run it again",
            )
        self._looked = time.monotonic()

    def heed(self) -> None:
        """:meth:`check`, unless that was done in the last 50 ms: for many small writes in a row."""
        if time.monotonic() - self._looked >= LOOK_S:
            self.check()


class Lease(Fence):
    """Held from construction to :meth:`release`; a context manager.

    Raises
    ------
    Conflict
        Somebody alive holds it; the message says who, where and since when its heartbeat is silent.
    """

    def __init__(self, directory: Path, ttl_s: float = 60.0) -> None:
        self._stop = threading.Event()
        durable.make_dirs(directory)
        me = {**_identity(), "nonce": uuid.uuid4().hex, "ttl_s": ttl_s}
        while True:
            epoch = max(_epochs(directory), default=0)
            holder = _holder(directory, epoch) if epoch else None
            if holder is not None and holder["nonce"] not in _GIVEN_BACK and _alive(directory, epoch, holder):
                raise Conflict(
                    f"lease on {directory.parent}",
                    found=f"held by pid {holder['pid']} on {holder['host']}",
                    expected="nobody else at work on this replica",
                    remedy=f"let it finish; if that process is gone for sure, wait {holder['ttl_s']:g} s and run again",
                )
            self._path = _path(directory, epoch + 1)
            if durable.write_once(self._path, json.dumps(me).encode()):
                break
        self.grant = Grant(epoch + 1, me["nonce"])
        super().__init__(directory, self.grant)
        self._me = me
        for old in _epochs(directory):
            if old < self.epoch:
                durable.remove(_path(directory, old))  # from here on the fences of its holder are down
        self._beat = threading.Thread(target=self._heartbeat, args=(ttl_s / 4,), name="lease", daemon=True)
        self._beat.start()

    def release(self) -> None:
        """Give the lease back; the file stays, marked, so that epochs keep rising."""
        self._stop.set()
        self._beat.join()
        _GIVEN_BACK.add(self.grant.nonce)
        # Not worth an error of its own, or in place of the one that ends this act: a dead holder's lease is taken over,
        # and this very process knows that it holds none.
        with suppress(OSError, DcrError):
            if max(_epochs(self._directory), default=0) == self.epoch:
                durable.replace(self._path, json.dumps({**self._me, "released": True}).encode())

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _heartbeat(self, every_s: float) -> None:
        while not self._stop.wait(every_s):
            try:
                os.utime(self._path)
            except OSError:
                return  # gone: somebody took over, and check() will say so


def _path(directory: Path, epoch: int) -> Path:
    return directory / f"lease-{epoch:08d}"


def _epochs(directory: Path) -> list[int]:
    return [int(m[1]) for name in os.listdir(directory) if (m := _NAME.fullmatch(name))]


def _holder(directory: Path, epoch: int) -> dict[str, Any] | None:
    """Who holds an epoch; None where it was given back, or is gone."""
    try:
        holder = json.loads(_path(directory, epoch).read_bytes())
    except (OSError, ValueError):
        return None
    wanted = {"host", "pid", "boot", "pidns", "started", "ttl_s", "nonce"}
    return holder if isinstance(holder, dict) and wanted <= set(holder) and not holder.get("released") else None


def _alive(directory: Path, epoch: int, holder: dict[str, Any]) -> bool:
    mine = _identity()
    if all(holder[k] == mine[k] for k in ("host", "boot", "pidns")):
        return _started(int(holder["pid"])) == holder["started"]
    try:
        beat = _path(directory, epoch).stat().st_mtime
    except OSError:
        return False
    now = directory / f".tmp-clock-{uuid.uuid4().hex}"
    now.touch()
    silent = now.stat().st_mtime - beat
    now.unlink()
    return silent < float(holder["ttl_s"])


def _identity() -> dict[str, Any]:
    """What tells whether a process id means anything to us: host, boot and process namespace."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        "pidns": _link("/proc/self/ns/pid"),
        "pid": pid,
        "started": _started(pid),
    }


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot, None if there is none: tells a reused pid apart."""
    text = _read(f"/proc/{pid}/stat")
    fields = text.rpartition(")")[2].split() if text else []
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
