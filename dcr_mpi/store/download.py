"""One ranged read over HTTP that survives bodies cut short. Knows the answers' shape, not the library behind them."""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..errors import CorruptInput
from .api import check_limit
from .retry import Operation, Transient

_PIECE = 128 << 10  # a cut connection loses at most this much of what had arrived


class Download:
    """A buffer that fills over as many responses as it takes.

    Parameters
    ----------
    ask : callable
        ``ask(*expected_codes, **parameters)``: one GET; its answer has ``Code``, ``Body``, ``ContentLength``, ...
    translated : callable
        A context in which errors of reading a body become :class:`Transient`.
    shut : callable
        Ends the reading of a body from another thread, when the time of ``op`` is up.
    op : Operation
        Bounds and name of the whole read.
    name : dict
        Parameters that name the object.
    start, stop, limit
        As in :meth:`dcr_mpi.store.api.Store.get`.
    """

    def __init__(
        self, ask: Callable[..., dict[str, Any]], translated: Callable[[], AbstractContextManager[None]],
        shut: Callable[[Any], None], op: Operation, name: dict[str, str],
        start: int, stop: int | None, limit: int | None,
    ) -> None:  # fmt: skip
        self._ask, self._translated, self._shut, self._op, self._name = ask, translated, shut, op, name
        self._start, self._stop, self._limit = start, stop, limit
        self._buffer: bytearray | None = None  # sized by the first answer
        self._got, self._etag, self._crc32, self._answers = 0, "", "", 0

    def run(self) -> bytes | None:
        """The range's bytes, None for an absent key; errors as in the store's contract."""
        while (state := self._op.attempt(self._advance)) == "more":
            pass  # that try brought something: the next one has all its attempts again, inside the same deadline
        return None if state == "absent" else bytes(self._buffer or b"")

    def _advance(self) -> str:
        """One request: "done", "absent", or "more" when it brought a part; raises Transient when it brought nothing."""
        before, at = self._got, self._start + self._got
        asked = dict(self._name)
        if at or self._stop is not None:
            asked["Range"] = f"bytes={at}-{'' if self._stop is None else self._stop - 1}"
        if self._etag:
            asked["IfMatch"] = self._etag
        answer = self._ask("NoSuchKey", "InvalidRange", "416", "PreconditionFailed", "412", **asked)
        code = answer["Code"]
        if code == "NoSuchKey":
            if self._buffer is not None:
                raise Transient("no such object any more, when it had begun to arrive")
            return "absent"
        if code in ("InvalidRange", "416") and self._buffer is None:
            return "done"  # the range begins past the end of an object that exists
        if code:
            raise self._corrupt(f"another object than before ({code})", "the same object, which never changes")
        alarm = threading.Timer(self._op.left_s(), self._shut, (answer["Body"],))
        alarm.daemon = True
        alarm.start()
        try:
            with self._translated():
                self._drain(answer["Body"], whole=self._accept(answer, at))
                self._check()
        except Transient:
            if not self._op.left_s():
                raise Transient(f"{self._got} of {len(self._buffer or b'')} bytes when the time was up") from None
            if self._got <= before:
                raise
            return "more"
        finally:
            alarm.cancel()
            answer["Body"].close()
        return "done"

    def _accept(self, answer: dict[str, Any], at: int) -> bool:
        """Check what the response says of itself before a byte is read; True when its end is the range's end."""
        self._answers += 1
        length, place = answer.get("ContentLength"), answer.get("ContentRange", "")
        if length is None:
            raise self._corrupt("an answer without Content-Length", "a length, so that memory can be bounded")
        if place and not place.startswith(f"bytes {at}-"):
            raise self._corrupt(repr(place), f"a range that begins at {at}")
        if not place and at and length:
            raise self._corrupt("the whole object", f"a range that begins at {at}: this store or proxy ignores Range")
        take = length if self._stop is None else min(length, self._stop - at)
        if self._buffer is None:
            check_limit(self._op.what, take, self._limit)
            self._buffer, self._etag = bytearray(take), answer.get("ETag", "")
            if not place and take == length and answer.get("ChecksumType") != "COMPOSITE":
                self._crc32 = answer.get("ChecksumCRC32", "")
        elif take != len(self._buffer) - self._got:
            raise self._corrupt(f"{take} more bytes", f"{len(self._buffer) - self._got}")
        return bool(length == take)

    def _drain(self, body: Any, whole: bool) -> None:
        assert self._buffer is not None
        with memoryview(self._buffer) as view:
            while self._got < len(view):
                piece = body.read(min(_PIECE, len(view) - self._got))
                if not piece:
                    raise Transient(f"a body that ends {len(view) - self._got} bytes early", becomes=CorruptInput)
                view[self._got : self._got + len(piece)] = piece
                self._got += len(piece)
                if not self._op.left_s():
                    raise Transient("the time is up")
        if whole:
            arrived, self._got = self._got, 0
            body.read(1)  # the end of the body is where its checksum is compared: a failure starts over
            self._got = arrived

    def _check(self) -> None:
        """The checksum of an object that came in pieces: the library compares only what came in one."""
        if self._answers == 1 or not self._crc32:
            return
        have = base64.b64encode(zlib.crc32(self._buffer or b"").to_bytes(4, "big")).decode()
        if have != self._crc32:
            self._got = 0  # nobody knows which piece is wrong
            raise Transient(f"checksum of the body ({have}, not {self._crc32})", becomes=CorruptInput)

    def _corrupt(self, found: str, expected: str) -> CorruptInput:
        return CorruptInput(self._op.what, found=found, expected=expected, remedy="look for what rewrites the store")
