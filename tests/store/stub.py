"""A small S3 look-alike that misbehaves on request, for answers that a healthy server does not give.

Each entry of ``faults`` meets one request, in order: ``None`` lets it through, a callable gets the handler and
answers (or breaks off) itself; returning True lets the request through after all. It checks no signatures.
"""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

Fault = Callable[["Handler"], object]


class Stub(ThreadingHTTPServer):
    """``objects`` by path, ``uploads`` by id, and every request as (method, path?query, headers) in ``seen``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.faults: list[Fault | None] = []
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.lock, self.stopping = threading.Lock(), threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of the game."""

    def close(self) -> None:
        """Stop serving and let go of stalled requests."""
        self.stopping.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub
    body = b""

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def answer(self, status: int, body: bytes = b"", **headers: object) -> None:
        """A whole response; ``Content_Range=...`` becomes the header Content-Range."""
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, **headers: object) -> None:
        """An error in S3's XML."""
        self.answer(status, f"<Error><Code>{code}</Code><Message>stub</Message></Error>".encode(), **headers)

    def reset(self) -> None:
        """Break the connection so that the client sees a reset, not an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def handle_one(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.lock:
            self.server.seen.append((self.command, self.path, dict(self.headers.items())))
            fault = self.server.faults.pop(0) if self.server.faults else None
        if fault is None or fault(self):
            self.serve()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

    def serve(self) -> None:
        """What a healthy server does."""
        parts = urlsplit(self.path)
        path, query, objects, uploads = (
            parts.path,
            parse_qs(parts.query, True),
            self.server.objects,
            self.server.uploads,
        )
        upload = query.get("uploadId", [""])[0]
        if "uploads" in query:
            name = f"upload-{len(self.server.seen)}"
            uploads[name] = {}
            self.answer(200, f"<R><UploadId>{name}</UploadId></R>".encode())
        elif upload and upload not in uploads:
            self.refuse(404, "NoSuchUpload")
        elif upload and self.command == "PUT":
            uploads[upload][int(query["partNumber"][0])] = self.body
            self.answer(200, ETag='"part"')
        elif upload and self.command == "DELETE":
            del uploads[upload]
            self.answer(204)
        elif self.command in ("PUT", "POST"):
            assert self.headers["If-None-Match"] == "*"
            with self.server.lock:
                if path in objects:
                    self.refuse(412, "PreconditionFailed")
                    return
                objects[path] = b"".join(v for _, v in sorted(uploads.pop(upload).items())) if upload else self.body
            self.answer(200, b"<R><ETag>x</ETag></R>" if upload else b"", ETag='"x"')
        elif path not in objects:
            self.refuse(404, "NoSuchKey")
        else:
            status, body, headers = self.look_up(objects[path])
            self.answer(status, body, **headers) if status != 416 else self.refuse(416, "InvalidRange")

    def look_up(self, data: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of a GET or HEAD of ``data`` under the request's Range and If-Match."""
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        if self.headers.get("If-Match", etag) != etag:
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            return 200, data, {"ETag": etag}
        start, stop = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        if start >= len(data):
            return 416, b"", {}
        return 206, data[start:stop], {"ETag": etag, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}


def error(status: int, code: str, **headers: object) -> Fault:
    """Answer with an error."""
    return lambda handler: handler.refuse(status, code, **headers)


def reset(handler: Handler) -> None:
    """Reset before any answer."""
    handler.reset()


def lost_reply(handler: Handler) -> None:
    """Do what was asked, and reset instead of answering."""
    handler.answer = lambda *a, **k: handler.reset()  # type: ignore[method-assign]
    handler.serve()


def cut(count: int, then: str = "close") -> Fault:
    """A good header, ``count`` bytes of the body, and then ``close``, ``reset`` or ``stall``."""

    def fault(handler: Handler) -> None:
        status, body, headers = handler.look_up(handler.server.objects[urlsplit(handler.path).path])
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body[:count])
        handler.wfile.flush()
        handler.close_connection = True
        if then == "reset":
            handler.server.stopping.wait(0.05)  # let the bytes arrive first
            handler.reset()
        elif then == "stall":
            handler.server.stopping.wait(30)

    return fault


def stall(handler: Handler) -> None:
    """Never answer."""
    handler.server.stopping.wait(30)
    handler.close_connection = True
