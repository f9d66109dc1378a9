"""When to try again: what the server says first, a doubling delay where it says nothing."""
from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Optional

import grpc

from ebb.errors import Error


@dataclass(frozen=True)
class Retry:
    """How often, and after which delays where the server's RetryInfo names none. Delays are in seconds.

    attempts  in all, at least 1; 1: a call is never repeated
    patience  seconds during which a server that has answered before and is away (`Error.is_away`), as while it is restarted, is tried
              again, however often; these tries are none of the attempts
    """

    attempts: int = 4
    first: float = 0.1
    most: float = 5.0
    patience: float = 60.0

    def delay(self, attempt: int, error: Error, away: float = 0.0) -> Optional[float]:
        """Seconds to wait before attempt 2, 3, ...; None when the call should not be repeated: only UNAVAILABLE, and ABORTED or
        RESOURCE_EXHAUSTED that carry a RetryInfo, are worth it. RetryInfo is honoured as it is. Of a server that has been away for so
        many seconds `attempt` counts the tries since."""
        if error.is_away:
            delay = self._backoff(attempt) if error.retry_delay is None else error.retry_delay
            return delay if self.attempts > 1 and away + delay <= self.patience else None
        if attempt > self.attempts:
            return None
        if error.code in (grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED):
            return error.retry_delay
        if error.code != grpc.StatusCode.UNAVAILABLE:
            return None
        return self._backoff(attempt) if error.retry_delay is None else error.retry_delay

    def backoff(self, attempt: int) -> Optional[float]:
        """The doubling delay before attempt 2, 3, ...; None after the last."""
        return self._backoff(attempt) if attempt <= self.attempts else None

    def _backoff(self, attempt: int) -> float:
        return min(self.first * 2 ** min(attempt - 2, 60), self.most)


class Tries:
    """Those of one call, so far."""

    def __init__(self) -> None:
        self.attempt = 1  # that the server answered
        self._away = 1  # since it has been away
        self._since = 0.0

    def delay(self, retry: Retry, error: Error) -> Optional[float]:
        """How long to wait after this one; None: it was the last. Those who wait for one server do not come back at once."""
        if not error.is_away:
            self.attempt, self._away = self.attempt + 1, 1
            return retry.delay(self.attempt, error)
        now = time.monotonic()
        if self._away == 1:
            self._since = now
        self._away += 1
        delay = retry.delay(self._away, error, now - self._since)
        return delay and delay * (1 + random.random() / 4)
