"""The one retry layer of the stores: bounded, with exponential back-off and full jitter.

A request that fails in a way that usually passes raises :class:`Transient`; everything else is final at once. An
:class:`Operation` is one call of the store's contract, however many requests it takes. ``attempts`` bounds the tries
of one request that bring nothing; ``deadline_s`` bounds the operation as a whole (a request in flight at that moment
still ends by its own time-outs). A server's Retry-After is a lower bound of the wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)

from ..errors import DcrError, StoreUnavailable

T = TypeVar("T")
MAX_WAIT_S = 20.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetryPolicy:
    """Bounds of an operation: tries per request, first back-off in seconds, seconds in all."""

    attempts: int = 8
    backoff_s: float = 0.25
    deadline_s: float = 300.0


class Transient(StoreUnavailable):
    """One try failed in a way that usually passes; never leaves the store.

    Parameters
    ----------
    cause : str
        What happened, for the log and for the final message.
    retry_after_s : float
        The server's wish, 0 for none.
    becomes : type of DcrError
        The class of the final error when the tries are used up.
    """

    def __init__(self, cause: str, *, retry_after_s: float = 0.0, becomes: type[DcrError] = StoreUnavailable) -> None:
        super().__init__(cause)
        self.retry_after_s, self.becomes = retry_after_s, becomes


class Operation:
    """One bounded store operation, named ``what`` ("put s3://bucket/key") in every message. Safe for threads."""

    def __init__(self, policy: RetryPolicy, what: str) -> None:
        self.what, self._policy = what, policy
        self._begun = time.monotonic()

    def left_s(self) -> float:
        """Seconds until the deadline, 0 when it has passed."""
        return max(0.0, self._begun + self._policy.deadline_s - time.monotonic())

    def attempt(self, request: Callable[[], T]) -> T:
        """Call ``request`` until it returns; retries :class:`Transient` alone.

        Raises
        ------
        StoreUnavailable (or the class that the last Transient ``becomes``)
            Tries or time are used up; names the operation, the tries and the last cause.
        """
        jitter = wait_random_exponential(multiplier=self._policy.backoff_s, max=MAX_WAIT_S)

        def wait(state: RetryCallState) -> float:
            return max(jitter(state), _cause(state).retry_after_s)

        retrying = Retrying(
            retry=retry_if_exception_type(Transient),
            stop=stop_after_attempt(self._policy.attempts) | stop_before_delay(self.left_s()),
            wait=wait,
            before_sleep=self._tell,
        )
        try:
            return retrying(request)
        except RetryError as error:
            last = error.last_attempt.exception()
            assert isinstance(last, Transient)
            tries, seconds = error.last_attempt.attempt_number, time.monotonic() - self._begun
            raise last.becomes(
                f"{self.what}: gave up after {tries} attempt{'s' if tries > 1 else ''} in {seconds:.1f} s",
                found=last.what,
                remedy="run the same command again when the store is well: what is done is kept",
            ) from last

    def _tell(self, state: RetryCallState) -> None:
        wait_s = state.upcoming_sleep
        log.warning("%s: attempt %d: %s; again in %.1f s", self.what, state.attempt_number, _cause(state).what, wait_s)


def _cause(state: RetryCallState) -> Transient:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, Transient)  # nothing else is retried
    return error
