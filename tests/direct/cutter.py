"""A TCP proxy that ends connections after so many bytes, and counts what went through it."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress


class Cutter:
    """Listens on a port of its own in front of ``host:port``.

    ``after``: of the first connection, the second and so on, how many bytes of the server's come through before it is
    reset; connections beyond them are left alone.
    """

    def __init__(self, host: str, port: int, after: Sequence[int] = ()) -> None:
        self._backend, self._after = (host, port), list(after)
        self.down: list[int] = []  # bytes of the server's that came through, by connection
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def total(self) -> int:
        return sum(self.down)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                number = len(self.down)
                self.down.append(0)
                limit = self._after[number] if number < len(self._after) else None
                try:
                    server = socket.create_connection(self._backend)
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._up, args=(client, server), daemon=True).start()
                threading.Thread(target=self._down, args=(client, server, number, limit), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _down(self, client: socket.socket, server: socket.socket, number: int, limit: int | None) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 14):
                data = data if limit is None else data[: limit - self.down[number]]
                client.sendall(data)
                self.down[number] += len(data)
                if self.down[number] == limit:
                    break
        if limit is not None:  # a reset, as from a router that forgot, of a connection whose bytes so far have arrived
            with suppress(OSError):
                while int.from_bytes(fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)), sys.byteorder):
                    time.sleep(0.001)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for link in (client, server):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
