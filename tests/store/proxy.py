"""An HTTP reverse proxy in front of the real S3 server, which lets requests by until a rule says otherwise.

Requests reach the server as they were sent, Host header included, so that their signatures stay valid (SigV4 signs the
host that the client called; the server computes it from the header). Faults are callables that get the exchange: see
:mod:`.faults`. The proxy keeps a list of all exchanges, so that a test can count what crossed the link.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

Fault = Callable[["Exchange"], None]
READS, WRITES = "Get|Head", "Put|Create|UploadPart|Complete"
_HOP = {"connection", "expect", "keep-alive", "transfer-encoding"}


@dataclass
class Rule:
    """Which requests meet a fault: of the ``times`` after the first ``skip`` that match ``operation`` and ``key``.

    ``operation`` is a pattern for the start of an operation's name in the S3 API (``GetObject``, ``UploadPart``), and
    ``key`` one to be found in the object's path. ``met`` counts the requests that have met the fault.
    """

    fault: Fault
    operation: str = ""
    key: str = ""
    skip: int = 0
    times: int = 1
    matched: int = field(default=0, init=False)

    def meets(self, operation: str, key: str) -> bool:
        """Count this request; does it meet the fault?"""
        if not re.match(self.operation, operation) or not re.search(self.key, key):
            return False
        self.matched += 1
        return self.skip < self.matched <= self.skip + self.times

    @property
    def met(self) -> int:
        return max(0, min(self.matched - self.skip, self.times))


@dataclass
class Seen:
    """One exchange: what was asked, whether it met a fault, and the status and bytes that the client got (0: none)."""

    operation: str
    key: str
    range: str
    if_match: str
    faulty: bool = False
    status: int = 0
    sent: int = 0


@dataclass
class Answer:
    """What the server said: status, headers as they came, body."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Proxy(ThreadingHTTPServer):
    """Listens on a port of its own in front of ``backend`` (``http://host:port``) until :meth:`close`."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, backend: str) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.backend = str(urlsplit(backend).hostname), int(urlsplit(backend).port or 80)
        self.rules: list[Rule] = []
        self.seen: list[Seen] = []
        self.lock, self.stopping = threading.Lock(), threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def script(self, *rules: Rule) -> None:
        """Forget what was seen; from now on the first of ``rules`` that meets a request has its way."""
        with self.lock:
            self.rules, self.seen = list(rules), []

    def count(self, operation: str = "", key: str = "", statuses: Iterable[int] = ()) -> int:
        """Requests seen since the last script, by patterns as in :class:`Rule`, and by status where any are given."""
        with self.lock:
            every = [s for s in self.seen if re.match(operation, s.operation) and re.search(key, s.key)]
        return sum(not statuses or s.status in statuses for s in every)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of the game."""

    def close(self) -> None:
        """Stop serving and let go of stalled requests."""
        self.stopping.set()
        self.shutdown()
        self.server_close()


class Exchange(BaseHTTPRequestHandler):
    """One request at a time on one connection. Faults use ``ask``, ``answer``, ``begin``, ``hang_up`` and ``reset``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Proxy
    seen: Seen
    _backend: HTTPConnection | None = None
    _body: bytes | None = None

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    @property
    def length(self) -> int:
        """Bytes of the request's body."""
        return int(self.headers.get("Content-Length") or 0)

    @property
    def stopping(self) -> threading.Event:
        return self.server.stopping

    def handle_request(self) -> None:
        parts = urlsplit(self.path)
        name = _operation(self.command, parse_qs(parts.query, True))
        self.seen = Seen(name, unquote(parts.path), self.headers.get("Range", ""), self.headers.get("If-Match", ""))
        self._body = None
        with self.server.lock:
            self.server.seen.append(self.seen)
            met = [rule for rule in self.server.rules if rule.meets(name, self.seen.key)]  # each rule counts for itself
            self.seen.faulty = bool(met)
        try:
            met[0].fault(self) if met else self.answer(self.ask())
        except (OSError, HTTPException):  # the server or the client is gone: that is what the other one sees, too
            self.part()
            self.reset()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request

    def part(self) -> None:
        """End the connection to the server."""
        if self._backend is not None:
            self._backend.close()
        self._backend = None

    def finish(self) -> None:
        self.part()
        super().finish()

    def body(self) -> bytes:
        """The request's body, read when it is first needed."""
        if self._body is None:
            self._body = self.rfile.read(self.length)
        return self._body

    def ask(self, body: bytes | None = None) -> Answer:
        """Pass the request on as it was sent (or with another ``body``); the server's whole answer."""
        self._backend = self._backend or HTTPConnection(*self.server.backend, timeout=60)
        self.send_head(self._backend)
        self._backend.send(self.body() if body is None else body)
        answer = self._backend.getresponse()
        return Answer(answer.status, answer.getheaders(), answer.read())

    def send_head(self, backend: HTTPConnection) -> None:
        """Request line and headers, to the server."""
        backend.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP:
                backend.putheader(name, value)
        backend.endheaders()

    def answer(self, answer: Answer) -> None:
        """A whole answer to the client."""
        body = b"" if self.command == "HEAD" else answer.body
        self.begin(answer, body)

    def begin(self, answer: Answer, first: bytes) -> None:
        """Status, headers (which promise all of the body), and ``first`` bytes of the body."""
        self.body()  # a client may not listen before it has sent everything
        self.seen.status, self.seen.sent = answer.status, len(first)
        lines = [f"HTTP/1.1 {answer.status} {self.responses.get(answer.status, ('-',))[0]}"]
        lines += [f"{n}: {v}" for n, v in answer.headers if n.lower() not in _HOP | {"content-length"}]
        promised = next((v for n, v in answer.headers if n.lower() == "content-length"), len(answer.body))
        lines.append(f"Content-Length: {promised if self.command == 'HEAD' else len(answer.body)}")
        self.wfile.write("\r\n".join([*lines, "", ""]).encode() + first)

    def hang_up(self) -> None:
        """An orderly end of the connection, wherever it is."""
        self.close_connection = True

    def reset(self) -> None:
        """Break the connection so that the client sees a reset, not an end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _operation(method: str, query: dict[str, list[str]]) -> str:
    """The S3 API's name of a request."""
    if "uploads" in query:
        return "CreateMultipartUpload" if method == "POST" else "ListMultipartUploads"
    if "uploadId" in query:
        return {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}[method]
    return {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject"}.get(method, method)
