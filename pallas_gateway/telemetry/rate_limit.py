"""At most one log line of a kind per `QUIET_SECONDS`, with the number of lines left out."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, override

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

QUIET_SECONDS = 60.0


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
