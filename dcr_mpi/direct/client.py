"""Fetching parts from the ranks that build them. Safe from several threads; a connection serves part after part.

A connection that drops is made anew, with a growing pause, and a part goes on at the byte that was reached. What ends
the trying is time without anything heard.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from ..digest import sha256
from ..errors import CorruptInput
from ..model import Endpoint, Offer, PartEntry
from . import protocol
from .certificate import client_context
from .protocol import Malformed, Request
from .wire import CHUNK, Ended, cut, read_exactly, tune

_PAUSES_S = (0.05, 5.0)
_REFUSED_S = 2.0  # nobody listens there any more, and nobody will who has that certificate


class Unreachable(Exception):
    """There is nothing to be had from a publisher; the text says why. Callers look elsewhere, or say so."""


@dataclass(frozen=True)
class Reach:
    """How long a site tries, in seconds: for a connection, of silence on one, of a publisher that does not answer at
    all, and for one part once it has begun to come."""

    connect_s: float = 10.0
    idle_s: float = 60.0
    retry_s: float = 60.0
    deadline_s: float = 600.0


@dataclass
class _Part:
    """What is known of a part so far, and when something was last heard of it."""

    heard: float
    entry: PartEntry | None = None
    data: bytearray = field(default_factory=bytearray)
    have: int = 0
    began: float | None = None
    wrong: int = 0

    def request(self, index: int) -> Request:
        if self.entry is None:
            return Request(index)
        return Request(index, self.have, bytes.fromhex(self.entry.sha256))


class Inlet:
    """One rank's connections to a publisher. Made anywhere, connects when it is first used."""

    def __init__(self, reach: Reach) -> None:
        self.reach = reach
        self.taken = 0  # bytes of whole parts
        self._context = client_context()
        self._idle: dict[tuple[Endpoint, str], list[ssl.SSLSocket]] = {}
        self._busy: set[ssl.SSLSocket] = set()
        self._lock = threading.Lock()
        self._closed = False

    def answers(self, offer: Offer) -> bool:
        """Whether a publisher's first rank is there, and is the one that its offer tells of."""
        try:
            link = self._connect(offer.endpoints[0], offer.token)
        except (OSError, Malformed, Unreachable):
            return False
        self._put_back(link, offer.endpoints[0], offer.token)
        return True

    def fetch(self, offer: Offer, index: int, known: str | None, limit: int, wait_s: float) -> tuple[PartEntry, bytes]:
        """A part and its entry, whose size and SHA-256 the bytes have; waited for while it is being built.

        Parameters
        ----------
        known : str, optional
            The SHA-256 of the part, where that is known.
        limit : int
            Bytes that it can have.
        wait_s : float
            For its first byte.

        Raises
        ------
        Unreachable
            The publisher does not answer, is another now, has no such part (yet), or one of other content.
        CorruptInput
            It is longer than ``limit``, or not what its entry says, the second time too.
        """
        begun = time.monotonic()
        part, pause = _Part(begun), _PAUSES_S[0]
        patience = min(self.reach.retry_s, wait_s) if wait_s else self.reach.retry_s
        endpoint = offer.endpoints[offer.owners[index]]
        while True:
            before = part.heard
            try:
                self._ask(endpoint, offer.token, index, part, known, limit, begun + wait_s)
            except Malformed as error:
                raise Unreachable(f"{_where(endpoint)} does not speak this protocol: {error}") from None
            except OSError as error:
                if part.heard > before:
                    pause = _PAUSES_S[0]
                now = time.monotonic()
                silent = now - part.heard
                if isinstance(error, ConnectionRefusedError):
                    patience = min(patience, _REFUSED_S)
                if self._closed or silent + pause > patience:
                    raise Unreachable(f"{_where(endpoint)}: {_words(error)}, for {silent:.0f} s") from None
                if part.began is not None and now - part.began > self.reach.deadline_s:
                    raise Unreachable(f"{_where(endpoint)}: {_words(error)}, {self._late(part)}") from None
                time.sleep(random.uniform(pause / 2, pause))
                pause = min(2 * pause, _PAUSES_S[1])
                continue
            assert part.entry is not None
            if sha256(part.data) == part.entry.sha256:
                with self._lock:
                    self.taken += len(part.data)
                return part.entry, bytes(part.data)
            part.wrong += 1
            if part.wrong == 2:
                raise CorruptInput(
                    f"part {index} from {_where(endpoint)}",
                    found=f"{len(part.data)} bytes with another SHA-256, the second time too",
                    expected=part.entry.sha256[:16],
                    remedy="look at the memory of that host; run dcr encode again there, and then this",
                )
            part.have = 0

    def close(self) -> None:
        """End all connections; fetches under way end as if nobody answered."""
        with self._lock:
            self._closed = True
            idle = [link for links in self._idle.values() for link in links]
            busy, self._idle = list(self._busy), {}
        for link in idle:
            link.close()
        for link in busy:
            cut(link)

    # -- one connection ---------------------------------------------------------------------------------------

    def _ask(
        self, endpoint: Endpoint, token: str, index: int, part: _Part, known: str | None, limit: int, until: float
    ) -> None:
        """Bring ``part`` further, to its end if all goes well."""
        link, whole = self._take(endpoint, token), False
        try:
            link.settimeout(self.reach.idle_s)
            link.sendall(protocol.pack_request(part.request(index)))
            start, entry = self._until_built(link, endpoint, index, part, until)
            self._check(endpoint, index, entry, known, limit)
            if part.entry is None or entry.sha256 != part.entry.sha256 or start != part.have:
                if start:
                    raise Malformed("a part from where it was not asked for")
                part.entry, part.data, part.have = entry, bytearray(entry.size), 0
            part.began = part.began or time.monotonic()
            room = memoryview(part.data)
            while part.have < entry.size:
                stop = min(part.have + CHUNK, entry.size)
                got = self._some(link, room[part.have : stop])
                part.have, part.heard = part.have + got, time.monotonic()
                if part.heard - part.began > self.reach.deadline_s:
                    raise Unreachable(f"{_where(endpoint)}: {self._late(part)}")
            whole = True
        finally:
            if whole:
                self._put_back(link, endpoint, token)
            else:
                self._drop(link)

    def _some(self, link: ssl.SSLSocket, room: memoryview) -> int:
        link.settimeout(self.reach.idle_s)
        got = link.recv_into(room)
        if not got:
            raise Ended("the connection was closed in the middle of a part")
        return got

    def _until_built(
        self, link: ssl.SSLSocket, endpoint: Endpoint, index: int, part: _Part, until: float
    ) -> tuple[int, PartEntry]:
        while True:
            kind, length = protocol.unpack_head(read_exactly(link, protocol.HEAD_BYTES, self.reach.idle_s))
            payload = read_exactly(link, length, self.reach.idle_s)
            part.heard = time.monotonic()
            if kind == protocol.PART:
                return protocol.unpack_part(payload)
            if kind == protocol.REFUSED:
                raise Unreachable(f"{_where(endpoint)}, which says: {payload.decode('utf-8', 'replace')}")
            if kind != protocol.BEAT:
                raise Malformed(f"a frame of kind {kind}")
            if time.monotonic() > until:
                raise Unreachable(f"{_where(endpoint)}, where part {index} is not built yet")

    @staticmethod
    def _check(endpoint: Endpoint, index: int, entry: PartEntry, known: str | None, limit: int) -> None:
        if entry.index != index or entry.size < 1 or len(entry.sha256) != 64:
            raise Malformed("the entry of another part")
        if known is not None and entry.sha256 != known:
            raise Unreachable(f"{_where(endpoint)} serves other content than was sealed")
        if entry.size > limit:
            raise CorruptInput(
                f"part {index} from {_where(endpoint)}",
                found=f"{entry.size} bytes",
                expected=f"at most {limit}",
                remedy="it was not taken: run dcr refit again, and look at who may write to the store",
            )

    def _late(self, part: _Part) -> str:
        return f"{part.have} of {len(part.data)} bytes after {self.reach.deadline_s:g} s"

    def _take(self, endpoint: Endpoint, token: str) -> ssl.SSLSocket:
        with self._lock:
            idle = self._idle.get((endpoint, token))
            if idle:
                self._busy.add(idle[-1])
                return idle.pop()
        return self._connect(endpoint, token)

    def _put_back(self, link: ssl.SSLSocket, endpoint: Endpoint, token: str) -> None:
        with self._lock:
            self._busy.discard(link)
            if not self._closed:
                stale = [key for key in self._idle if key[1] != token]  # of another version, or an earlier try
                gone = [old for key in stale for old in self._idle.pop(key)]
                self._idle.setdefault((endpoint, token), []).append(link)
            else:
                gone = [link]
        for old in gone:
            old.close()

    def _drop(self, link: ssl.SSLSocket) -> None:
        with self._lock:
            self._busy.discard(link)
        with suppress(OSError):
            link.close()

    def _connect(self, endpoint: Endpoint, token: str) -> ssl.SSLSocket:
        """A connection to the very process that holds the certificate's key, and no other; the token is shown to none
        but that."""
        raw = socket.create_connection((endpoint.host, endpoint.port), timeout=self.reach.connect_s)
        try:
            tune(raw)
            link = self._context.wrap_socket(raw, do_handshake_on_connect=False)
        except BaseException:
            raw.close()
            raise
        with self._lock:
            self._busy.add(link)
            closed = self._closed
        try:
            if closed:
                raise Unreachable("closed")
            link.do_handshake()
            shown = hashlib.sha256(link.getpeercert(binary_form=True) or b"").hexdigest()
            if not hmac.compare_digest(shown, endpoint.certificate):
                raise Unreachable(f"{_where(endpoint)} is another now: it has another certificate")
            link.sendall(protocol.pack_hello(bytes.fromhex(token)))
            if protocol.unpack_head(read_exactly(link, protocol.HEAD_BYTES, self.reach.connect_s)) != (
                protocol.READY,
                0,
            ):
                raise Malformed("no welcome")
        except BaseException:
            self._drop(link)
            raise
        return link


def _where(endpoint: Endpoint) -> str:
    return f"{endpoint.host}:{endpoint.port}"


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
