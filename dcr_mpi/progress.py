"""Progress for people: now and then a line with percent, rate and time left; a bar where a terminal can redraw one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TextIO

from .units import bytes_text, seconds_text

_BAR, _REDRAW_S, _STEP, _STEP_S = 24, 0.1, 0.05, 1.0


class Progress:
    """Progress through ``total`` bytes; safe from several threads.

    A line every ``every_s`` seconds, or sooner after another 5 % (but not within a second), and one at the end.
    Without a terminal there are no colours and no carriage returns, so that logs stay readable.

    Parameters
    ----------
    total : int
        Bytes to do; nothing is shown for 0.
    label : str
        What is done.
    every_s : float
        Seconds between lines; 0 shows nothing.
    stream : text file
        Where to.
    enabled : bool
        False shows nothing; ``report`` is called all the same.
    clock : callable
        Seconds, from any start, never backwards.
    report : callable, optional
        Called with the bytes done whenever a line is due.
    """

    def __init__(
        self, total: int, label: str, every_s: float, stream: TextIO, enabled: bool = True, *,
        clock: Callable[[], float] = time.monotonic, report: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        self.total, self.label, self.every_s = total, label, every_s
        self._stream, self._clock, self._report = stream, clock, report
        self._shown = enabled and total > 0 and every_s > 0
        self._terminal = self._shown and stream.isatty()
        self._begun = self._last_s = self._drawn_s = clock()
        self._done = self._last = 0
        self._open = True
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """``size`` more bytes are done."""
        with self._lock:
            self._done += size
            now = self._clock()
            since = now - self._last_s
            step = self._done - self._last >= _STEP * self.total and since >= _STEP_S
            if self.every_s > 0 and (step or since >= self.every_s) and self._done < self.total:
                self._last, self._last_s = self._done, now
                if self._report is not None:
                    self._report(self._done)
                if self._shown and not self._terminal:
                    self._print(self._line(now) + "\n")
            if self._terminal and now - self._drawn_s >= _REDRAW_S:
                self._drawn_s = now
                self._print(self._bar(now))

    def done(self) -> None:
        """All is done: the last line, with the mean rate."""
        with self._lock:
            if self._open and self._shown:
                took = self._clock() - self._begun
                text = f"{self.label}: {bytes_text(self._done)} in {seconds_text(took)}{self._rate(took)}"
                self._print(f"\r{text}\x1b[K\n" if self._terminal else text + "\n")
            self._open = False

    def close(self) -> None:
        """End a bar that was left in the middle, so that the next message has a line of its own."""
        with self._lock:
            if self._open and self._terminal:
                self._print("\n")
            self._open = False

    def _rate(self, took: float) -> str:
        return f", {bytes_text(self._done / took)}/s" if took > 0 and self._done else ""

    def _line(self, now: float) -> str:
        took = now - self._begun
        rest = max(self.total - self._done, 0)
        left = f", {seconds_text(took * rest / self._done)} left" if self._done and took > 0 else ""
        part = f"{bytes_text(self._done)} of {bytes_text(self.total)}"
        return f"{self.label}: {min(self._done / self.total, 1):.0%}, {part}{self._rate(took)}{left}"

    def _bar(self, now: float) -> str:
        full = int(_BAR * min(self._done / self.total, 1))
        return f"\r[{'#' * full}{'.' * (_BAR - full)}] {self._line(now)}\x1b[K"

    def _print(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe, a full disk behind a redirection: not worth the job
            self._shown = self._terminal = False
