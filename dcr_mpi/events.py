"""What a job says while it works: JSON lines per rank for machines, progress for people, stage times for receipts.

A log is never worth a job: when its disk is full or its directory cannot be made, lines are dropped and counted, one
warning says so, and the work goes on.
"""

from __future__ import annotations

import json
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from .progress import Progress


class Events:
    """One rank's log of one act; safe from several threads.

    Every line has ``ts`` (ISO 8601, UTC), ``act``, ``subject``, ``rank``, ``size`` and ``event``; the others are the
    event's own. Lines go to ``<act>-rank0003.jsonl``, each by one append, so that a run adds to the ones before it.

    Parameters
    ----------
    directory : Path, optional
        Made if missing; None writes no lines. Stages are timed and progress is shown all the same.
    act, subject : str
        What is done, and to whom (a site, or the trainer).
    rank, size : int
        Of this process in its job; rank 0 shows the progress.
    progress_s : float
        Seconds between progress lines; 0 shows and logs none.
    stream : text file, optional
        Where progress and the warning go; None is the process's standard error.
    clock : callable
        Seconds, from any start, never backwards.
    now : callable
        Seconds since the epoch, for ``ts``.
    """

    def __init__(
        self, directory: Path | None, act: str, subject: str, rank: int = 0, size: int = 1, progress_s: float = 5.0, *,
        stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.act, self.subject, self.rank, self.size, self.progress_s = act, subject, rank, size, progress_s
        self.path = Path(directory) / f"{act}-rank{rank:04d}.jsonl" if directory is not None else None
        self.dropped = 0
        self._stream, self._clock, self._now = stream, clock, now
        self._file: int | None = None
        self._clean = True  # the file ends where a line ends
        self._seconds: dict[str, float] = {}
        self._bytes: dict[str, int] = {}
        self._facts: dict[str, Any] = {}
        self._progress: Progress | None = None
        self._lock = threading.Lock()
        self._inner = threading.local()

    def __enter__(self) -> Events:
        self._begun = self._clock()
        self.emit("begin")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.close()
        how = {} if error is None else {"error": type(error).__name__, "message": str(error)[:2000]}
        self.emit(
            "end",
            wall=self._clock() - self._begun,
            seconds=self.seconds(),
            bytes=self.bytes(),
            dropped=self.dropped,
            **{**self._facts, **how},
        )
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def emit(self, event: str, **fields: Any) -> None:
        """Append one line. Never raises for the log's own troubles."""
        if self.path is None:
            return
        with self._lock:  # around the clock too: lines are in the order of their times, whichever thread they come from
            ts = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="microseconds")
            head = {
                "ts": ts,
                "act": self.act,
                "subject": self.subject,
                "rank": self.rank,
                "size": self.size,
                "event": event,
            }
            line = json.dumps({**head, **fields, **head}, default=_plain, separators=(",", ":")).encode() + b"\n"
            try:
                self._append(line)
            except OSError as error:
                self.dropped += 1
                if self.dropped == 1:
                    self._warn(error)

    def note(self, **facts: Any) -> None:
        """Facts for the ``end`` line, such as the ``version`` that the run was about; a later one of a name counts."""
        self._facts.update(facts)

    @contextmanager
    def stage(self, name: str, size: int = 0) -> Iterator[None]:
        """Time what is inside and count its ``size`` bytes, for :meth:`seconds`, :meth:`bytes` and the log.

        A stage inside another (in the same thread) takes its seconds out of the outer one's, so that they add up.
        Stages of several threads overlap. Bytes count only if the inside succeeds.
        """
        outer = getattr(self._inner, "seconds", 0.0)
        self._inner.seconds = 0.0
        begun = self._clock()
        failed: dict[str, str] = {}
        try:
            yield
        except BaseException as error:
            failed, size = {"error": type(error).__name__}, 0
            raise
        finally:
            wall = self._clock() - begun
            own = wall - self._inner.seconds
            self._inner.seconds = outer + wall
            with self._lock:
                self._seconds[name] = self._seconds.get(name, 0.0) + own
                self._bytes[name] = self._bytes.get(name, 0) + size
            self.emit("stage", stage=name, seconds=own, bytes=size, **failed)

    def seconds(self) -> dict[str, float]:
        """Seconds per stage so far, in order of first use."""
        with self._lock:
            return dict(self._seconds)

    def progress(self, total: int, label: str, version: int | None = None) -> Progress:
        """Progress through ``total`` bytes of this rank's work: shown by rank 0, logged by every rank.

        ``version`` is told where one job takes many.
        """
        if self._progress is not None:
            self._progress.close()
        title = label if version is None else f"version {version}, {label}"
        title += f" (rank {self.rank} of {self.size})" if self.size > 1 else ""
        self._progress = Progress(
            total, title, self.progress_s, self._stream or sys.stderr, enabled=self.rank == 0, clock=self._clock,
            report=lambda done: self.emit("progress", label=label, done=done, total=total),
        )  # fmt: skip
        return self._progress

    def _append(self, line: bytes) -> None:
        """One append; a line that was cut short is ended by the next one that gets through, so no other is lost."""
        assert self.path is not None
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            end = os.fstat(self._file).st_size
            self._clean = end == 0 or os.pread(self._file, 1, end - 1) == b"\n"
        data = line if self._clean else b"\n" + line
        written = os.write(self._file, data)
        self._clean = written == len(data)
        if not self._clean:
            raise OSError(f"{written} of {len(data)} bytes written")

    def _warn(self, error: OSError) -> None:
        print(
            f"dcr: log {self.path}: {error}; its lines are dropped, the work goes on",
            file=self._stream or sys.stderr,
            flush=True,
        )

    def bytes(self) -> dict[str, int]:  # last in the class: below it the name would hide the builtin in annotations
        """Bytes per stage so far, without the stages that counted none."""
        with self._lock:
            return {name: size for name, size in self._bytes.items() if size}


def _plain(value: Any) -> Any:
    """Numbers of numpy as numbers, whatever else as text."""
    for convert in (operator.index, float):
        try:
            return convert(value)
        except (TypeError, ValueError):
            continue
    return str(value)
