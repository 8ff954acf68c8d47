"""One lease per replica: who may change it now.

A lease is a file ``lease-<epoch>`` created exclusively; taking over a dead holder's lease means creating the next
epoch, so of any number of takers one wins, and a holder that was taken for dead finds the higher epoch (fencing)
before it goes on. No lock calls: they are unreliable on shared filesystems. A holder on this very machine is dead
when its process is gone; one elsewhere when its heartbeat (the file's mtime) is older than its time to live, judged
by the filesystem's clock, not by this host's.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import durable
from .errors import Conflict, DcrError

_NAME = re.compile(r"lease-([0-9]{8})")


class Lease:
    """Held from construction to :meth:`release`; a context manager.

    Raises
    ------
    Conflict
        Somebody alive holds it; the message says who, where and since when its heartbeat is silent.
    """

    def __init__(self, directory: Path, ttl_s: float = 60.0) -> None:
        self._directory = directory
        self._stop = threading.Event()
        durable.make_dirs(directory)
        me = {**_identity(), "nonce": uuid.uuid4().hex, "ttl_s": ttl_s}
        while True:
            epoch = max(self._epochs(), default=0)
            if epoch and (holder := self._holder(epoch)) is not None and self._alive(epoch, holder):
                raise Conflict(
                    f"lease on {directory.parent}",
                    found=f"held by pid {holder['pid']} on {holder['host']}",
                    expected="nobody else at work on this replica",
                    remedy=f"let it finish; if that process is gone for sure, wait {holder['ttl_s']:g} s and run again",
                )
            self._path = self._directory / f"lease-{epoch + 1:08d}"
            if durable.write_once(self._path, json.dumps(me).encode()):
                break
        self.epoch = epoch + 1
        self._me = me
        for old in self._epochs():
            if old < self.epoch:
                durable.remove(self._directory / f"lease-{old:08d}")
        self._beat = threading.Thread(target=self._heartbeat, args=(ttl_s / 4,), name="lease", daemon=True)
        self._beat.start()

    def check(self) -> None:
        """Raise Conflict if this lease was taken over meanwhile; call before what only the holder may do."""
        if (
            max(self._epochs(), default=0) != self.epoch
            or (self._holder(self.epoch) or {}).get("nonce") != self._me["nonce"]
        ):
            raise Conflict(
                f"lease on {self._directory.parent}",
                found="a newer holder",
                expected=f"epoch {self.epoch}, ours",
                remedy="this job was silent for longer than its lease; run it again",
            )

    def release(self) -> None:
        """Give the lease back; the file stays, marked, so that epochs keep rising."""
        self._stop.set()
        self._beat.join()
        # Not worth an error of its own, or in place of the one that ends this act: a dead holder's lease is taken over.
        with suppress(OSError, DcrError):
            if max(self._epochs(), default=0) == self.epoch:
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

    def _epochs(self) -> list[int]:
        return [int(m[1]) for name in os.listdir(self._directory) if (m := _NAME.fullmatch(name))]

    def _holder(self, epoch: int) -> dict[str, Any] | None:
        try:
            holder = json.loads((self._directory / f"lease-{epoch:08d}").read_bytes())
        except (OSError, ValueError):
            return None
        wanted = {"host", "pid", "boot", "pidns", "started", "ttl_s", "nonce"}
        return holder if isinstance(holder, dict) and wanted <= set(holder) and not holder.get("released") else None

    def _alive(self, epoch: int, holder: dict[str, Any]) -> bool:
        mine = _identity()
        if all(holder[k] == mine[k] for k in ("host", "boot", "pidns")):
            return _started(int(holder["pid"])) == holder["started"]
        try:
            beat = (self._directory / f"lease-{epoch:08d}").stat().st_mtime
        except OSError:
            return False
        now = self._directory / f".tmp-clock-{uuid.uuid4().hex}"
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
