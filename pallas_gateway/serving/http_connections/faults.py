"""Log lines for connections and requests that broke, rate-limited: a client can break as many as it likes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pallas_gateway.telemetry.rate_limit import RateLimit

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("pallas.server.http")


class Faults:
    """The faults of the connections of one listener; each kind is logged once a minute."""

    def __init__(self) -> None:
        self._limit = RateLimit()

    def of_connection(self, error: Exception) -> None:
        """Log an error that ended a connection."""
        if (fields := self._fields("connection", error)) is not None:
            _log.error("connection failed", extra=fields, exc_info=error)

    def of_stream(self, error: Exception) -> None:
        """Log an error that ended one stream of an HTTP/2 connection."""
        if (fields := self._fields("stream", error)) is not None:
            _log.error("HTTP/2 stream failed", extra=fields, exc_info=error)

    def of_request(self, error: Exception) -> None:
        """Log an error that the app raised."""
        if (fields := self._fields("request", error)) is not None:
            _log.error("request failed", extra=fields, exc_info=error)

    def _fields(self, what: str, error: Exception) -> Mapping[str, Any] | None:
        left_out = self._limit.passes((what, type(error)))
        if left_out is None:
            return None
        return {"more_since_last": left_out} if left_out else {}
