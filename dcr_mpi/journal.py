"""The journal of one shard and one version: absolute new words, durable before the first weight byte changes.

A journal is a header that binds it to a version and to the shard's geometry, then one frame per part, then an end
frame. Each frame carries its own digest, so a torn tail is recognised. A journal is written by one job only; the next
one takes its whole frames over into a journal of its own, and need not fetch those parts again. A frame holds what
the part adds to the state digest and its *patches*: words at positions of a block, as gaps (see the codec) or whole,
with the digest that the block must have afterwards. A patch says where its block lies in the file by itself, so
replaying needs no layout, and replaying it any number of times, from any state between base and target, gives the
target.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import durable
from .digest import BLOCK_DIGEST_BYTES, Lanes, block_digest
from .errors import CorruptInput, ResourceError, from_os_error
from .jsonable import dumps, loads, to_plain
from .region import Region

MAGIC = b"DCRJRNL\n"
_START = struct.Struct("<8sII")
_FRAME = struct.Struct("<IIQ")
_HEAD = struct.Struct("<32sI")
_LANES = struct.Struct("<IQQ")
_FORMAT = 2
_PATCH = struct.Struct("<IBBBBQQQIII16s")
_PART, _END = 1, 2
_SPARSE, _DENSE = 0, 1
_MAX_FRAME = 4 << 30


@dataclass(frozen=True)
class Binding:
    """What a journal is for; a journal with any other binding is not used."""

    versions_sha256: str  # of a version's announcement, or of all manifests of a fold
    shard: str
    geometry_sha256: str  # of the shard's datasets: paths, offsets, shapes, dtypes


@dataclass(frozen=True)
class Patch:
    """New words of one block.

    ``offset`` is the dataset's first byte in the file; the block is words ``start`` to ``start + size`` of
    ``region`` in that dataset. ``words`` go to the positions that ``gaps`` and ``escapes`` give, or fill the whole
    block where ``gaps`` is None. ``target`` is the block's digest afterwards, ``dataset`` its index in the shard.
    """

    dataset: int
    offset: int
    region: Region
    start: int
    size: int
    target: bytes
    words: np.ndarray
    gaps: np.ndarray | None = None
    escapes: np.ndarray | None = None


@dataclass(frozen=True)
class Frame:
    """One part's share of a shard: lanes by tensor index, and patches; ``source``: the part's SHA-256 in hex."""

    lanes: dict[int, Lanes]
    patches: Sequence[Patch]
    source: str = "0" * 64


class JournalWriter:
    """Begins a journal with what ``earlier`` ones hold. ``done`` are the parts that it has.

    Whole frames of the earlier journals are copied, and durable before this returns; of those, ones of a part whose
    digest is not among the ``sources`` (None: any) are left out. A journal with another binding (an earlier try at
    another version, a rewritten shard) or with a damaged frame gives nothing, or what precedes that.
    """

    def __init__(
        self,
        path: Path,
        binding: Binding,
        earlier: Sequence[Path] = (),
        sources: Mapping[int, str] | None = None,
    ) -> None:
        self.path = path
        self.done: set[int] = set()
        self.frames: list[tuple[int, str, dict[int, Lanes]]] = []  # part, source, lanes
        self.bytes = 0
        durable.make_dirs(path.parent)
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise from_os_error(error, f"journal {path}") from error
        try:
            text = dumps(binding)
            header = _START.pack(MAGIC, _FORMAT, len(text)) + text
            self._end = self._write(header + block_digest(header), 0)
            for other in earlier:
                self._adopt(other, binding, sources)
            if self.done:
                self._sync()
        except BaseException:
            self.close()
            raise

    def _adopt(self, other: Path, binding: Binding, sources: Mapping[int, str] | None) -> None:
        try:
            fd = os.open(other, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # that job never came as far as this shard
        try:
            for kind, part, payload, _ in _frames(fd, _check_header(fd, binding, str(other)), str(other)):
                if kind != _PART or part in self.done:
                    continue
                source, lanes, _ = _unpack_head(payload, str(other))
                if sources is None or sources.get(part) == source:
                    self._add(part, payload, source, lanes)
        except CorruptInput:
            pass  # a torn tail, or a journal of something else: what was whole so far stands
        finally:
            os.close(fd)

    def append(self, part: int, frame: Frame) -> None:
        """Add one part's frame."""
        payload = b"".join([_pack_head(frame), *map(_pack_patch, frame.patches)])
        if len(payload) > _MAX_FRAME:
            raise ResourceError(
                f"journal {self.path}",
                found=f"{len(payload)} bytes for part {part}",
                expected=f"at most {_MAX_FRAME}",
                remedy="encode with a smaller codec.part_mib",
            )
        self._add(part, payload, frame.source, frame.lanes)

    def finish(self) -> None:
        """Write the end frame, make everything durable, close."""
        self._frame(_END, len(self.done), b"")
        self._sync()
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _add(self, part: int, payload: bytes, source: str, lanes: dict[int, Lanes]) -> None:
        self._frame(_PART, part, payload)
        self.done.add(part)
        self.frames.append((part, source, lanes))

    def _sync(self) -> None:
        try:
            durable.sync(self._fd)
        except OSError as error:
            raise from_os_error(error, f"fsync of journal {self.path}") from error
        durable.fsync_dir(self.path.parent)

    def _frame(self, kind: int, part: int, payload: bytes) -> None:
        body = _FRAME.pack(kind, part, len(payload)) + payload
        self._end = self._write(body + block_digest(body), self._end)
        self.bytes += len(body)

    def _write(self, data: bytes, at: int) -> int:
        view = memoryview(data)
        try:
            while view:
                done = os.pwrite(self._fd, view, at)
                view, at = view[done:], at + done
        except OSError as error:
            raise from_os_error(error, f"writing journal {self.path}") from error
        return at


def read_journal(path: Path, binding: Binding) -> Iterator[tuple[int, Patch]]:
    """All (part, patch) of a finished journal.

    Raises
    ------
    CorruptInput
        No such journal, another binding, a bad frame, no end frame or not as many parts as it says.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CorruptInput(
            f"journal {path}",
            found=str(error),
            expected="a finished journal",
            remedy="run dcr refit again: it makes it anew",
        ) from None
    try:
        start = _check_header(fd, binding, str(path))
        for parts, (kind, part, payload, _) in enumerate(_frames(fd, start, str(path))):
            if kind == _END:
                if part != parts:
                    raise _bad(str(path), f"{parts} parts", f"{part}")
                return
            at = _unpack_head(payload, str(path))[2]
            while at < len(payload):
                patch, at = _unpack_patch(payload, at, str(path))
                yield part, patch
        raise _bad(str(path), "no end frame", "a finished journal")
    finally:
        os.close(fd)


def check_journal(path: Path, binding: Binding) -> None:
    """Read a finished journal through, so that nothing is begun with a damaged one; raises as :func:`read_journal`."""
    for _ in read_journal(path, binding):
        pass


def describe(path: Path) -> dict[str, object]:
    """What a journal says of itself, for people: its binding, its whole frames, whether it is finished."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(fd, _START.size, 0)
        if len(head) < _START.size:
            raise _bad(str(path), f"{len(head)} bytes", "a header")
        raw = os.pread(fd, min(_START.unpack(head)[2], 1 << 16), _START.size)
        binding = loads(Binding, raw, str(path))
        parts, finished, torn = [], False, False
        try:
            for kind, part, payload, _ in _frames(fd, _check_header(fd, binding, str(path)), str(path)):
                finished = kind == _END
                parts += [] if finished else [{"part": part, "bytes": len(payload)}]
        except CorruptInput:
            torn = True
        return {"binding": to_plain(binding), "parts": parts, "finished": finished, "torn": torn}
    finally:
        os.close(fd)


def _check_header(fd: int, binding: Binding, what: str) -> int:
    head = os.pread(fd, _START.size, 0)
    if len(head) < _START.size:
        raise _bad(what, f"{len(head)} bytes", "a header")
    magic, version, length = _START.unpack(head)
    if magic != MAGIC or version != _FORMAT or length > 1 << 16:
        raise _bad(what, f"magic {magic!r}, format {version}", f"a journal of format {_FORMAT}")
    end = _START.size + length
    raw = os.pread(fd, end + BLOCK_DIGEST_BYTES, 0)
    if block_digest(raw[:end]) != raw[end:] or loads(Binding, raw[_START.size : end], what) != binding:
        raise _bad(what, "another binding", f"shard {binding.shard}, versions {binding.versions_sha256[:16]}")
    return end + BLOCK_DIGEST_BYTES


def _frames(fd: int, at: int, what: str) -> Iterator[tuple[int, int, bytes, int]]:
    """(kind, part, payload, end) of each whole frame; raises CorruptInput at a torn one."""
    while True:
        head = os.pread(fd, _FRAME.size, at)
        if not head:
            return
        kind, part, length = _FRAME.unpack(head) if len(head) == _FRAME.size else (0, 0, 0)
        if kind not in (_PART, _END) or length > _MAX_FRAME:
            raise _bad(what, "a torn frame", "whole frames")
        body = head + _pread(fd, length, at + _FRAME.size)
        end = at + len(body) + BLOCK_DIGEST_BYTES
        if len(body) != _FRAME.size + length or os.pread(fd, BLOCK_DIGEST_BYTES, at + len(body)) != block_digest(body):
            raise _bad(what, f"a torn frame of part {part}", "whole frames")
        yield kind, part, body[_FRAME.size :], end
        at = end


def _pread(fd: int, length: int, at: int) -> bytes:
    """``length`` bytes, or what there is; a single read may return less than asked for."""
    chunks = []
    while length and (chunk := os.pread(fd, min(length, 1 << 30), at)):
        chunks.append(chunk)
        at, length = at + len(chunk), length - len(chunk)
    return b"".join(chunks)


def _pack_head(frame: Frame) -> bytes:
    head = _HEAD.pack(bytes.fromhex(frame.source), len(frame.lanes))
    return head + b"".join(_LANES.pack(t, *frame.lanes[t]) for t in sorted(frame.lanes))


def _unpack_head(payload: bytes, what: str) -> tuple[str, dict[int, Lanes], int]:
    """Source, lanes and the length of both."""
    source, count = _HEAD.unpack_from(payload) if len(payload) >= _HEAD.size else (b"", 0)
    end = _HEAD.size + _LANES.size * count
    if not source or end > len(payload):
        raise _bad(what, f"{count} lanes", "lanes inside the frame")
    return source.hex(), {t: (a, b) for t, a, b in _LANES.iter_unpack(payload[_HEAD.size : end])}, end


def _pack_patch(p: Patch) -> bytes:
    sparse = p.gaps is not None and p.escapes is not None
    dims = len(p.region.shape)
    head = _PATCH.pack(
        p.dataset,
        p.words.itemsize,
        dims,
        _SPARSE if sparse else _DENSE,
        0,
        p.offset,
        p.region.base,
        p.start,
        p.size,
        len(p.words),
        len(p.escapes) if p.escapes is not None else 0,
        p.target,
    )
    geometry = struct.pack(f"<{2 * dims}Q", *p.region.shape, *p.region.strides)
    streams = [p.gaps.tobytes(), p.escapes.tobytes()] if p.gaps is not None and p.escapes is not None else []
    return b"".join([head, geometry, *streams, p.words.tobytes()])


def _unpack_patch(payload: bytes, at: int, what: str) -> tuple[Patch, int]:
    try:
        dataset, width, dims, kind, _, offset, base, start, size, count, escapes, target = _PATCH.unpack_from(
            payload, at
        )
        at += _PATCH.size
        geometry = struct.unpack_from(f"<{2 * dims}Q", payload, at)
        at += 16 * dims
        region = Region(base, geometry[:dims], geometry[dims:])
        gaps = far = None
        if kind == _SPARSE:
            gaps = np.frombuffer(payload, np.uint8, count, at)
            far = np.frombuffer(payload, "<u4", escapes, at + count)
            at += count + 4 * escapes
        words = np.frombuffer(payload, f"<u{width}", count, at)
    except (struct.error, ValueError, TypeError) as error:
        raise _bad(what, f"a malformed patch ({error})", "patches inside the frame") from None
    return Patch(dataset, offset, region, start, size, target, words, gaps, far), at + words.nbytes


def _bad(what: str, found: str, expected: str) -> CorruptInput:
    return CorruptInput(
        f"journal {what}", found=found, expected=expected, remedy="run dcr refit again: it makes it anew"
    )
