"""What a network or a store can do to one request, as callables for :class:`tests.store.proxy.Rule`."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPConnection

from .proxy import Answer, Exchange, Fault

TIMEOUT_S = 1.0  # of the tests' clients, for a connection and for silence
LIMIT_S = 60.0  # what never answers lets go at last


def error(status: int, code: str = "", after: bool = False, **headers: object) -> Fault:
    """Refuse in S3's XML (in HTML where there is no code); ``after``: the server has done it all the same."""

    def fault(exchange: Exchange) -> None:
        if after:
            exchange.ask()
        text = f"<Error><Code>{code}</Code><Message>by the proxy</Message></Error>" if code else "<html>no</html>"
        named = [(name.replace("_", "-"), str(value)) for name, value in headers.items()]
        date = [("Date", exchange.date_time_string())]
        kind = [("Content-Type", "application/xml" if code else "text/html")]
        exchange.answer(Answer(status, [*kind, *date, *named], text.encode()))

    return fault


def reset(exchange: Exchange) -> None:
    """Reset before anything was passed on."""
    exchange.reset()


def hang_up(exchange: Exchange) -> None:
    """An orderly end where an answer should be."""
    exchange.hang_up()


def lost_reply(exchange: Exchange) -> None:
    """The server does it; the client sees a reset."""
    exchange.ask()
    exchange.reset()


def stall(exchange: Exchange) -> None:
    """Nothing is passed on, nothing is answered."""
    exchange.stopping.wait(LIMIT_S)
    exchange.hang_up()


def late(exchange: Exchange) -> None:
    """The client has given up and tried again when the server gets to do it."""
    exchange.body()
    exchange.stopping.wait(TIMEOUT_S + 0.5)
    exchange.answer(exchange.ask())


def cut_upload(share: float) -> Fault:
    """The server gets this share of the request's body, then both sides are cut off."""

    def fault(exchange: Exchange) -> None:
        backend = HTTPConnection(*exchange.server.backend, timeout=60)
        exchange.send_head(backend)
        backend.send(exchange.body()[: int(share * exchange.length)])
        exchange.reset()
        time.sleep(0.02)  # let the bytes arrive before the end does
        backend.close()

    return fault


def upload_altered(exchange: Exchange) -> None:
    """A bit of the data flips on its way to the server, which compares checksums."""
    data = exchange.seen.operation in ("PutObject", "UploadPart")
    exchange.answer(exchange.ask(flipped(exchange.body()) if data else None))


def cut(at: Callable[[int], int], then: str = "close") -> Fault:
    """Good headers, ``at(length)`` bytes of the body, and then ``close``, ``reset``, ``stall`` or ``dribble``."""

    def fault(exchange: Exchange) -> None:
        answer = exchange.ask()
        if exchange.command == "HEAD" or not answer.body:  # nothing to cut: cut the connection
            exchange.reset()
            return
        stop = max(0, min(at(len(answer.body)), len(answer.body) - 1))
        exchange.begin(answer, answer.body[:stop])
        if then == "reset":
            exchange.stopping.wait(0.05)  # let the bytes arrive first
            exchange.reset()
        elif then == "dribble":  # a byte now and then: the connection never falls silent
            give_up = time.monotonic() + LIMIT_S
            while stop < len(answer.body) and time.monotonic() < give_up and not exchange.stopping.wait(0.1):
                exchange.wfile.write(answer.body[stop : stop + 1])
                stop += 1
        elif then == "stall":
            exchange.stopping.wait(LIMIT_S)
        exchange.hang_up()

    return fault


def altered(change: Callable[[bytes], bytes], trusted: bool) -> Fault:
    """Other bytes in a good answer, with a length that fits; ``trusted``: without the checksum that tells of it."""

    def fault(exchange: Exchange) -> None:
        answer = exchange.ask()
        if exchange.command == "GET" and answer.status in (200, 206):
            gone = ("x-amz-checksum", "etag") if trusted else ()
            headers = [(n, v) for n, v in answer.headers if not n.lower().startswith(gone)] if gone else answer.headers
            answer = Answer(answer.status, headers, change(answer.body))
        exchange.answer(answer)

    return fault


def flipped(body: bytes) -> bytes:
    """One bit of the middle byte is another."""
    at = len(body) // 2
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] if body else body


def halved(body: bytes) -> bytes:
    """The first half."""
    return body[: len(body) // 2]


hidden = error(404, "NoSuchKey")  # not visible yet


def invisible_for(seconds: float) -> Fault:
    """404 for this long after the first look, the truth from then on: give the rule many ``times``."""
    first: list[float] = []

    def fault(exchange: Exchange) -> None:
        first.append(time.monotonic())
        if time.monotonic() - first[0] < seconds:
            hidden(exchange)
        else:
            exchange.answer(exchange.ask())

    return fault


def then(act: Callable[[], object], fault: Fault) -> Fault:
    """Do something to the world (kill the server), then be this fault."""

    def both(exchange: Exchange) -> None:
        act()
        fault(exchange)

    return both


# One occurrence of these passes, on any request: the command must succeed as if nothing had been.
PASSING: dict[str, Fault] = {
    "slow down": error(503, "SlowDown"), "slow down, with a wish": error(503, "SlowDown", Retry_After="1"),
    "internal": error(500, "InternalError"), "internal, though done": error(500, "InternalError", after=True),
    "gateway": error(502), "gateway time-out, though done": error(504, after=True),
    "throttled": error(429, "TooManyRequests"), "request time-out": error(400, "RequestTimeout"),
    "conflict": error(409, "ConditionalRequestConflict"), "damaged upload": error(400, "BadDigest"),
    "reset": reset, "hang up": hang_up, "lost reply": lost_reply, "stall": stall, "late": late,
    "upload cut": cut_upload(0.5), "upload cut at its end": cut_upload(1.0),
    "upload altered": upload_altered, "body cut at 0": cut(lambda n: 0),
    "body cut in the middle": cut(lambda n: n // 2, "reset"),
    "body cut at the last byte": cut(lambda n: n - 1), "body stalls": cut(lambda n: n // 3, "stall"),
    "bit flipped on the way": altered(flipped, trusted=False),
}  # fmt: skip

LONG = {"stall", "late", "body stalls", "slow down, with a wish"}  # a second each

# These are final, with the exit code of their class; what they leave undone the next run does.
FINAL: dict[str, tuple[Fault, int]] = {
    "expired token": (error(400, "ExpiredToken"), 21), "permission": (error(403, "AccessDenied"), 21),
    "clock": (error(403, "RequestTimeTooSkewed"), 21), "bucket gone": (error(404, "NoSuchBucket"), 21),
    "not implemented": (error(501, "NotImplemented"), 21), "store full": (error(507, "InsufficientStorage"), 30),
}  # fmt: skip
