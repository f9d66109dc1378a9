"""When to try again: what the server says first, a doubling delay where it says nothing."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import grpc

from ebb.errors import Error


@dataclass(frozen=True)
class Retry:
    """How often, and after which delays where the server's RetryInfo names none. Delays are in seconds."""

    attempts: int = 4  # in all, at least 1
    first: float = 0.1
    most: float = 5.0

    def delay(self, attempt: int, error: Error) -> Optional[float]:
        """Seconds to wait before attempt 2, 3, ...; None when the call should not be repeated: only UNAVAILABLE, and ABORTED or
        RESOURCE_EXHAUSTED that carry a RetryInfo, are worth it. RetryInfo is honoured as it is."""
        if attempt > self.attempts:
            return None
        if error.code in (grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED):
            return error.retry_delay
        if error.code != grpc.StatusCode.UNAVAILABLE:
            return None
        return self.backoff(attempt) if error.retry_delay is None else error.retry_delay

    def backoff(self, attempt: int) -> Optional[float]:
        """The doubling delay before attempt 2, 3, ...; None after the last."""
        return min(self.first * 2 ** (attempt - 2), self.most) if attempt <= self.attempts else None
