"""Serving a rank's parts. A thread per connection; the job's own thread only puts parts on the shelf.

Who has not shown the token gets little: ``hello_s`` seconds in all for the handshake and 40 bytes, 32 such connections
at a time, and no answer if the token is another.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError, from_os_error
from ..model import Endpoint, PartEntry
from . import protocol
from .certificate import server_context
from .protocol import Malformed, Request
from .shelf import Shelf
from .wire import CHUNK, cut, read_exactly, tune

_SIOCGIFADDR = 0x8915
_BEAT_S = 1.0
MAX_STRANGERS = 32


@dataclass(frozen=True)
class Serving:
    """How parts are served; configs/README.md has the meaning of each key.

    ``listen``: an address or the name of an interface. ``advertise``: what sites are told, ``{host}`` in it being this
    host's name; None: the address that is listened on or, where that is any, the host's name. ``ports``: first and last
    port to try, None for any. ``store``: when parts are copied to the store: "also", "after" or "never".
    """

    listen: str = "0.0.0.0"
    advertise: str | None = None
    ports: tuple[int, int] | None = None
    store: str = "after"
    hold_bytes: int = 256 << 20
    spool: Path = Path(".")
    idle_s: float = 60.0
    connections: int = 256
    hello_s: float = 10.0


class Outlet:
    """One rank's server, for one version at a time. Made anywhere, opens nothing before :meth:`begin`."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.version: int | None = None
        self.sent = 0
        self._lock = threading.Lock()
        self._links: set[socket.socket] = set()
        self._strangers = 0
        self._listener: socket.socket | None = None
        self._shelf: Shelf | None = None
        self._token = b""

    @property
    def store(self) -> str:
        return self.serving.store

    @property
    def shelf(self) -> Shelf:
        assert self._shelf is not None, "not begun"
        return self._shelf

    def begin(self, version: int, token: bytes, indices: Iterable[int]) -> Endpoint:
        """Listen, for who has ``token``; what another version left is dropped.

        Raises
        ------
        UsageError
            The address is none of this machine, or no port is free.
        """
        self.close()
        self._context, digest = server_context()
        self._listener, host = self._listen()
        self._shelf = Shelf(indices, self.serving.hold_bytes, self.serving.spool)
        self._token, self.version, self.sent = token, version, 0
        threading.Thread(target=self._accept, args=(self._listener,), name="outlet", daemon=True).start()
        return Endpoint(host, self._listener.getsockname()[1], digest)

    def put(self, entry: PartEntry, data: bytes) -> None:
        """Serve a part from here on."""
        self.shelf.put(entry, data)

    def close(self) -> None:
        """Stop serving. Connections end; what is not sent is not."""
        listener, self._listener, self.version = self._listener, None, None
        if listener is not None:
            cut(listener)  # wakes the thread that accepts
            listener.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            cut(link)
        if self._shelf is not None:
            self._shelf.close()

    def _listen(self) -> tuple[socket.socket, str]:
        asked = self.serving.listen
        address = _address_of(asked) or asked
        first, last = self.serving.ports or (0, 0)
        why = "no port to try"
        for port in range(first, last + 1):
            try:
                family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
                listener = socket.create_server(where[:2], family=family, backlog=128)
            except OSError as error:
                why = error.strerror or str(error)
                if error.errno == errno.EADDRINUSE:
                    continue
                break
            anywhere = address in ("", "0.0.0.0", "::")
            host = self.serving.advertise or ("{host}" if anywhere else address)
            return listener, host.replace("{host}", socket.gethostname())
        ports = "any port" if first == 0 else f"ports {first} to {last}"
        raise UsageError(
            f"direct relay on {asked}, {ports}",
            found=why,
            expected="an address or interface of this machine, and a free port for every rank on it",
            remedy="correct direct.listen or direct.ports in the configuration",
        )

    def _accept(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                link, _ = listener.accept()
            except OSError:
                time.sleep(0.05)  # closed; or no handle is free, which passes
                continue
            with self._lock:
                room = self._strangers < MAX_STRANGERS and len(self._links) < self.serving.connections
                self._strangers += room
            if room:
                threading.Thread(target=self._attend, args=(link,), name="served", daemon=True).start()
            else:
                link.close()

    def _attend(self, raw: socket.socket) -> None:
        stranger, link = True, None
        token, shelf = self._token, self.shelf
        try:
            tune(raw)
            raw.settimeout(self.serving.hello_s)
            link = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            with self._lock:
                self._links.add(link)
            begun = time.monotonic()
            link.do_handshake()
            left = self.serving.hello_s - (time.monotonic() - begun)
            shown = protocol.unpack_hello(read_exactly(link, protocol.HELLO_BYTES, left))
            if not hmac.compare_digest(shown, token):
                return
            with self._lock:
                self._strangers, stranger = self._strangers - 1, False
            link.settimeout(self.serving.idle_s)
            link.sendall(protocol.pack_frame(protocol.READY))
            while True:
                raw_request = read_exactly(link, protocol.REQUEST_BYTES, self.serving.idle_s)
                if not self._answer(link, shelf, protocol.unpack_request(raw_request)):
                    return
        except (OSError, Malformed):
            pass  # the client went away, is too slow, or is none: it knows, or is owed nothing
        finally:
            with self._lock:
                self._strangers -= stranger
                self._links.discard(link or raw)
            with suppress(OSError):
                (link or raw).close()

    def _answer(self, link: ssl.SSLSocket, shelf: Shelf, request: Request) -> bool:
        """Send a part, once it is there; False ends the connection."""
        link.settimeout(self.serving.idle_s)
        if not shelf.expects(request.index):
            link.sendall(protocol.refusal(f"part {request.index} is not built here"))
            return False
        while (entry := shelf.get(request.index, _BEAT_S)) is None:
            if self._shelf is not shelf or self._listener is None:
                return False
            link.sendall(protocol.pack_frame(protocol.BEAT))
        same = request.digest.hex() == entry.sha256 and request.offset <= entry.size
        start = request.offset if same else 0
        link.sendall(protocol.pack_part(start, entry))
        for at in range(start, entry.size, CHUNK):
            piece = shelf.read(request.index, at, at + CHUNK)
            with self._lock:
                self.sent += len(piece)  # before it goes: who has a byte finds it counted
            link.sendall(piece)
        return True


def _address_of(interface: str) -> str | None:
    """The IPv4 address of a network interface; None where there is none of that name."""
    if interface not in (name for _, name in socket.if_nameindex()):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            asked = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)[20:24])
        except OSError as error:
            raise UsageError(
                f"direct.listen: interface {interface}",
                found=error.strerror or str(error),
                expected="one with an IPv4 address",
                remedy="name an address instead",
            ) from None


def spool_folder(folder: Path) -> None:
    """Make it where it is missing.

    Raises
    ------
    ResourceError
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, f"directory {folder} (direct.spool)") from None
