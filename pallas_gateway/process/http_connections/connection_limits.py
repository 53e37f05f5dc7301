"""The time limit of unread answers, and the log of failed connections; all connections of a listener share them.

Limits of requests are in `doors/http/bodies.py`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Literal

from pallas_gateway.telemetry.rate_limit import RateLimit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LEAST_READ_BYTES = 64 * 1024
"""Bytes that a client must read in each period. Systems buffer some for a client that reads nothing."""
_log = logging.getLogger("pallas.server.http")
_EVENTS = {"connection": "connection failed", "request": "request failed"}


class UnreadLimit:
    """Bounds how long answers wait for clients that do not read them; one for all connections of a listener."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: set[asyncio.Timeout] = set()

    async def until_taken(self, taken: Callable[[], Awaitable[object]], left: Callable[[], int]) -> None:
        """Wait for `taken`, as long as there is progress.

        Args:
            taken: waits until the client has taken enough.
            left: the number of bytes that wait for the client.

        Raises:
            TimeoutError: the client took fewer than `LEAST_READ_BYTES` during a whole period.
        """
        before = left()
        while True:
            try:
                async with asyncio.timeout(self._seconds) as period:
                    self._waiting.add(period)
                    try:
                        await taken()
                        return
                    finally:
                        self._waiting.discard(period)
            except TimeoutError:
                before, previous = left(), before
                if previous - before < LEAST_READ_BYTES:
                    raise

    def shorten(self, seconds: float) -> None:
        """Shorten the limit to `seconds`, also for clients that are already waited for."""
        self._seconds = min(self._seconds, seconds)
        latest = asyncio.get_running_loop().time() + self._seconds
        for period in self._waiting:
            if not period.expired():
                period.reschedule(min(latest, period.when() or latest))


class Faults:
    """The faults of the connections of one listener; each kind is logged once a minute."""

    def __init__(self) -> None:
        self._limit = RateLimit()

    def log(self, failed: Literal["connection", "request"], error: Exception) -> None:
        """Log an error that ended a connection or a request's app."""
        left_out = self._limit.passes((failed, type(error)))
        if left_out is not None:
            # A mistake of the gateway's own; each kind once a minute.
            _log.error(_EVENTS[failed], extra={"more_since_last": left_out} if left_out else {}, exc_info=error)
