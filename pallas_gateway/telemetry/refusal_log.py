"""Counts and logs refused callers, in the log each reason once a minute."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Literal

from pallas_gateway.telemetry.rate_limit import RateLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.telemetry.metrics import Metrics

type Reason = Literal["no_token", "invalid_token", "no_grant", "insufficient_scope", "verification_unavailable"]

_log = logging.getLogger("pallas.identity")


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
        # Each reason once a minute; `client` is its address, as [trusted proxies](security.md#proxies) name it.
        _log.info("caller refused", extra={"reason": reason, "why": why, "client": client, **named, **more})
