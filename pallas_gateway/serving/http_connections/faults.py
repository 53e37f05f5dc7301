"""Rate-limited log records of failed connections and requests: a client can cause any number of them."""

from __future__ import annotations

import logging
from typing import Literal

from pallas_gateway.telemetry.rate_limit import RateLimit

_log = logging.getLogger("pallas.server.http")
_EVENTS = {"connection": "connection failed", "stream": "HTTP/2 stream failed", "request": "request failed"}


class Faults:
    """The faults of the connections of one listener; each kind is logged once a minute."""

    def __init__(self) -> None:
        self._limit = RateLimit()

    def log(self, failed: Literal["connection", "stream", "request"], error: Exception) -> None:
        """Log an error that ended a connection, a stream of an HTTP/2 connection, or a request's app."""
        left_out = self._limit.passes((failed, type(error)))
        if left_out is not None:
            _log.error(_EVENTS[failed], extra={"more_since_last": left_out} if left_out else {}, exc_info=error)
