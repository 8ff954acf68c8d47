"""Whole messages on a TLS connection, each within a deadline however slowly its bytes come."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress

CHUNK = 1 << 18


class Ended(OSError):
    """The other side closed the connection where more should follow."""


def read_exactly(link: ssl.SSLSocket, size: int, within_s: float) -> bytes:
    """``size`` bytes.

    Raises
    ------
    OSError
        They did not come within ``within_s`` seconds (TimeoutError), or the connection ended (Ended).
    """
    out = bytearray(size)
    read_into(link, memoryview(out), within_s)
    return bytes(out)


def read_into(link: ssl.SSLSocket, room: memoryview, within_s: float) -> None:
    """Fill ``room``; as :func:`read_exactly`."""
    end = time.monotonic() + within_s
    while room:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{len(room)} bytes still missing after {within_s:g} s")
        link.settimeout(left)
        got = link.recv_into(room)
        if not got:
            raise Ended("the connection was closed")
        room = room[got:]


def tune(link: socket.socket) -> None:
    """Send small messages at once, and notice a peer whose machine is gone."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def cut(link: socket.socket) -> None:
    """End a connection that another thread may be using: its call returns with an error."""
    with suppress(OSError):
        socket.socket.shutdown(link, socket.SHUT_RDWR)  # not that of ssl, which takes its state away from that thread
