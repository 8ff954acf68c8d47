"""Two sites and a store between them: network namespaces joined to this one by links with a rate.

::

    train  --- rate --->  this machine: the store  <--- rate ---  rollout

What one side sends to the other crosses both links, and this machine only passes it on.

Needs root, ``ip`` and ``tc`` (Debian: iproute2), ``nsenter`` (util-linux).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

SIDES = ("train", "rollout")
_BURST_S = 0.01  # of a token bucket: as short as timers allow, or a small transfer would all be burst


def lacking() -> str:
    """What is missing to make links, "" where nothing is."""
    tools = [tool for tool in ("ip", "tc", "nsenter") if shutil.which(tool) is None]
    if tools:
        return f"no {', '.join(tools)}: apt-get install iproute2 util-linux"
    return "" if os.geteuid() == 0 else "not root: network namespaces are for root"


class Links:
    """Both links, as a context manager; ``rate`` in bytes per second, each way."""

    def __init__(self, rate: float) -> None:
        self.rate, self._tag = rate, f"dcr{os.getpid()}"
        self._net = 64 + os.getpid() % 128  # 10.x: two benches at once hardly ever meet

    @property
    def host(self) -> str:
        """This machine's address that both sides reach."""
        return f"10.{self._net}.0.1"

    def address(self, side: str) -> str:
        """A side's own address, which this machine and the other side reach."""
        return f"10.{self._net}.{SIDES.index(side)}.2"

    def __enter__(self) -> Links:
        try:
            for number, side in enumerate(SIDES):
                self._make(number, side)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the links, and the namespaces, whose own removal is not waited for."""
        for side in SIDES:
            subprocess.run(["ip", "link", "delete", self._end(side)], stderr=subprocess.DEVNULL, check=False)
            subprocess.run(["ip", "netns", "delete", self._space(side)], stderr=subprocess.DEVNULL, check=False)

    def inside(self, side: str) -> list[str]:
        """What goes before a command that is to run at a side."""
        return ["nsenter", f"--net=/run/netns/{self._space(side)}"]

    def crossed(self) -> dict[str, int]:
        """Bytes that crossed each link so far, both ways, headers included, as this machine's ends count them."""
        return {side: sum(self._counter(side, way) for way in ("rx_bytes", "tx_bytes")) for side in SIDES}

    def send(self, side: str, size: int) -> float:
        """Seconds that ``size`` bytes take from a side to this machine by one connection."""
        with socket.create_server((self.host, 0)) as listener:
            sink = threading.Thread(target=_swallow, args=(listener,), daemon=True)
            sink.start()
            where = [self.host, str(listener.getsockname()[1]), str(size)]
            begun = time.monotonic()
            _run(*self.inside(side), sys.executable, "-c", SENDER, *where)
            sink.join()
            return time.monotonic() - begun

    def _counter(self, side: str, way: str) -> int:
        return int(Path(f"/sys/class/net/{self._end(side)}/statistics/{way}").read_text())

    def _space(self, side: str) -> str:
        return f"{self._tag}-{side}"

    def _end(self, side: str) -> str:
        return f"{self._tag}{side[0]}"

    def _make(self, number: int, side: str) -> None:
        space, here, there = self._space(side), self._end(side), "link0"
        gate, address = f"10.{self._net}.{number}.1", self.address(side)
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", space)
        _run("ip", "address", "add", f"{gate}/24", "dev", here)
        _run("ip", "link", "set", here, "up")
        Path(f"/proc/sys/net/ipv4/conf/{here}/forwarding").write_text("1")  # of this interface alone, and gone with it
        for command in (
            ("ip", "address", "add", f"{address}/24", "dev", there),
            ("ip", "link", "set", there, "up"),
            ("ip", "link", "set", "lo", "up"),
            ("ip", "route", "add", "default", "via", gate),
        ):
            _run(*self.inside(side), *command)
        bucket = ["root", "tbf", "rate", f"{8 * self.rate:.0f}bit", "latency", "50ms"]
        bucket += ["burst", str(max(16384, int(self.rate * _BURST_S)))]
        _run("tc", "qdisc", "add", "dev", here, *bucket)
        _run(*self.inside(side), "tc", "qdisc", "add", "dev", there, *bucket)


SENDER = """
import socket, sys
link, left, data = socket.create_connection((sys.argv[1], int(sys.argv[2]))), int(sys.argv[3]), bytes(1 << 20)
while left:
    left -= link.send(data[:left] if left < len(data) else data)
link.shutdown(socket.SHUT_WR)
assert link.recv(1) == b"k", "the other end went away"
"""


def _swallow(listener: socket.socket) -> None:
    link, _ = listener.accept()
    with link:
        while link.recv(1 << 20):
            pass
        link.sendall(b"k")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
