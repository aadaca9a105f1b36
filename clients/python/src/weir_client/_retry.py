"""Decides whether and when a failed request is sent again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ._errors import ApiError, TransportError, WeirError

# Errors without `retry-after` after which a repeatable request may succeed.
_TRANSIENT_CODES = frozenset({"node-lost", "worker-lost"})
# Statuses of proxies in front of a node, which have no code of Weir.
_PROXY_STATUSES = frozenset({502, 503, 504})


def is_idempotent(method: str) -> bool:
    """Whether requests of a method may be repeated by RFC 9110."""
    return method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")


@dataclass(frozen=True)
class RetryPolicy:
    """Retries of requests.

    A request is sent again after a response 429 or 503 of the node with `retry-after`, because the
    node then did not execute it, and after a refused connection. A request that may be repeated is
    also sent again after a lost connection and after the loss of the node or process that executed
    it. A timeout is never followed by a retry.
    """

    retries_max: int = 2
    """Retries after the first attempt. 0 disables them."""
    wait_min_s: float = 0.1
    """Longest wait before the first retry; it doubles with each retry."""
    wait_max_s: float = 30.0
    """Longest wait. A request whose `retry-after` is longer fails at once."""

    def wait_s(self, error: WeirError, attempt: int, is_repeatable: bool) -> float | None:
        """Seconds before the next attempt, after `attempt` attempts; `None` if there is none."""
        if attempt > self.retries_max or not _may_succeed(error, is_repeatable):
            return None
        # The random part keeps clients apart that failed at the same time.
        wait = random.uniform(0.5, 1.0) * min(self.wait_min_s * 2 ** (attempt - 1), self.wait_max_s)
        if isinstance(error, ApiError) and error.retry_after is not None:
            wait += error.retry_after
        return wait if wait <= self.wait_max_s else None


def _may_succeed(error: WeirError, is_repeatable: bool) -> bool:
    if isinstance(error, TransportError):
        return not error.is_timeout and (is_repeatable or not error.is_sent)
    if not isinstance(error, ApiError):
        return False
    if error.status in (429, 503) and error.code and error.retry_after is not None:
        return True
    is_transient = error.code in _TRANSIENT_CODES or (not error.code and error.status in _PROXY_STATUSES)
    return is_repeatable and is_transient
