"""What a job that stays tells those who watch it: Prometheus metrics, in a file and over HTTP, and how it is."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import durable
from .errors import DcrError, UsageError

if TYPE_CHECKING:
    import http.server

_TYPES = {"_total": "counter"}
_HELP = {
    "version": "Version that the replica holds, or that was decided on last.",
    "applied_total": "Versions applied since the start.",
    "published_total": "Versions committed since the start.",
    "pause_seconds": "From before the first hook to after the second, last time.",
    "payload_bytes": "Bytes of the last version's parts.",
    "dense_bytes": "Bytes of a whole checkpoint.",
    "changed_words": "Words that the last version changed.",
    "last_timestamp_seconds": "When a version was done last, in Unix time.",
    "start_time_seconds": "When the job began, in Unix time.",
}


class Health:
    """Values and the present state of one job, from any thread.

    Parameters
    ----------
    subject : str
        A site's name, or "trainer": the label of every metric.
    path : Path or None
        Text file for a collector of such files (node_exporter), replaced whole whenever values are given.
    listen : (host, port) or None
        Serves ``GET /metrics`` (Prometheus text) and ``GET /healthz``: a JSON object with ``state``, ``state_s``
        (seconds in it), ``subject`` and the values; status 200, as long as the job runs. Port 0 takes any.

    Raises
    ------
    UsageError
        The address is not to be had.
    """

    def __init__(self, subject: str, path: Path | None, listen: tuple[str, int] | None) -> None:
        self._subject, self._path = subject, path
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}
        self._state, self._since, self._begun = "starting", time.monotonic(), time.time()
        self._server = _serve(listen, self._answer) if listen is not None else None

    @property
    def port(self) -> int | None:
        """The port that is listened on."""
        return self._server.server_address[1] if self._server is not None else None

    def doing(self, state: str) -> None:
        """Say what the job does from now on."""
        with self._lock:
            if state != self._state:
                self._state, self._since = state, time.monotonic()

    def tell(self, values: Mapping[str, float]) -> None:
        """Give values, which add to those before; the file has them when this returns, if it can be written: a full
        disk of the collector's stops no refit."""
        with self._lock:
            self._values |= values
        if self._path is not None:
            with suppress(DcrError):
                durable.replace(self._path, self._text().encode())

    def done(self, values: Mapping[str, float]) -> None:
        """The same, of a version that was done just now."""
        self.tell({"last_timestamp_seconds": time.time(), **values})

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _text(self) -> str:
        """The values in the text format of Prometheus, version 0.0.4."""
        with self._lock:
            values = {**self._values, "start_time_seconds": self._begun}
        lines = []
        for name, value in sorted(values.items()):
            kind = next((kind for end, kind in _TYPES.items() if name.endswith(end)), "gauge")
            lines += [f"# HELP dcr_{name} {_HELP[name]}"]
            lines += [f"# TYPE dcr_{name} {kind}", f'dcr_{name}{{subject="{self._subject}"}} {value!r}']
        return "\n".join(lines) + "\n"

    def _answer(self, path: str) -> tuple[str, bytes] | None:
        """Content type and content of a page; None where there is none."""
        if path == "/metrics":
            return "text/plain; version=0.0.4; charset=utf-8", self._text().encode()
        if path == "/healthz":
            with self._lock:
                told: dict[str, Any] = {"subject": self._subject, "state": self._state, **self._values}
                told["state_s"] = round(time.monotonic() - self._since, 3)
            return "application/json", json.dumps(told).encode()
        return None


def _serve(
    listen: tuple[str, int], answer: Callable[[str], tuple[str, bytes] | None]
) -> http.server.ThreadingHTTPServer:
    import http.server  # here: every command imports this module, and few listen

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10.0  # of a client that says nothing

        def do_GET(self) -> None:
            found = answer(self.path.partition("?")[0])
            if found is None:
                self.send_error(404)
                return
            kind, content = found
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing: the job's own output is for its progress."""

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET

        def handle_error(self, *_: object) -> None:
            """Nothing: a client that went away is no news of the job's."""

    try:
        server = Server(listen, Handler)
    except OSError as error:
        raise UsageError(
            f"--listen {listen[0]}:{listen[1]}",
            found=error.strerror or str(error),
            expected="an address of this machine and a free port",
            remedy="choose another; rank 0 alone listens",
        ) from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
