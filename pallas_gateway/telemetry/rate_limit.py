"""At most one log line of a kind a minute, with the number of lines left out; and so the log of refused callers."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Literal, override

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pallas_gateway.telemetry.metrics import Metrics


type Reason = Literal["no_token", "invalid_token", "no_grant", "insufficient_scope", "verification_unavailable"]

QUIET_SECONDS = 60.0
_log = logging.getLogger("pallas.identity")


class RateLimit:
    """Decides which log lines are written. It stores every kind, so kinds must be few."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._last: dict[Hashable, float] = {}
        self._left_out: dict[Hashable, int] = {}

    def passes(self, kind: Hashable) -> int | None:
        """The number of lines of this kind left out since the last one, None if this one is left out too."""
        now = self._clock()
        if now - self._last.get(kind, float("-inf")) < QUIET_SECONDS:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        self._last[kind] = now
        return self._left_out.pop(kind, 0)


class OncePerMinute(logging.Filter):
    """Passes one warning of each format per minute, with the number of those left out; all records of other levels.

    For loggers of libraries that warn of each request of a kind.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._limit = RateLimit(clock)

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        if (left_out := self._limit.passes(record.msg)) is None:
            return False
        if left_out:
            record.more_since_last = left_out
        return True


class RefusalLog:
    """The refused callers of one gateway."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = monotonic) -> None:
        self._metrics = metrics
        self._limit = RateLimit(clock)

    def record(self, reason: Reason, why: str, *, client: str, caller: str | None = None) -> None:
        """Count a refusal, and log it unless a like one was logged in the last minute.

        Args:
            reason: the kind of refusal.
            why: a sentence of the gateway, without text from the client.
            client: the client's address.
            caller: the token's holder, if known.
        """
        self._metrics.auth_refused.labels(reason).inc()
        if reason == "no_token":
            return  # not logged: the first step of every client that logs in
        if (left_out := self._limit.passes((reason, why))) is None:
            return
        more = {"more_since_last": left_out} if left_out else {}
        named = {"caller": caller} if caller else {}
        # Each reason once a minute; `client` is its [address](security.md#proxies).
        _log.info("caller refused", extra={"reason": reason, "why": why, "client": client, **named, **more})
