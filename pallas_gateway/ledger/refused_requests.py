"""Refused requests in the audit log, of each client so many a minute: strangers must not fill the disk."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.ledger.protocol import Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.ledger.protocol import Ledger

MINUTE_SECONDS = 60.0
MOST_OF_CLIENT = 10
"""Lines for the refused requests of one client a minute."""
MOST_OF_ALL = 300
"""The same of all clients together."""


class FewLines:
    """Says which refusals have a line; those above the limits are counted in the next one."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._minute = -1.0
        self._by_client: dict[str, int] = {}
        self._noted = self._left_out = 0

    def take(self, client: str) -> int | None:
        """Return how many refusals before this one have no line; None if this one must not have one either."""
        if (minute := self._clock() // MINUTE_SECONDS) != self._minute:
            self._minute, self._noted = minute, 0
            self._by_client.clear()
        of_client = self._by_client.get(client, 0)
        if of_client >= MOST_OF_CLIENT or self._noted >= MOST_OF_ALL:
            self._left_out += 1
            return None
        self._by_client[client] = of_client + 1
        self._noted += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class RefusedRequests:
    """The refused requests of one process."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = monotonic) -> None:
        self._ledger = ledger
        self._lines = FewLines(clock)

    def note(self, reason: str, caller: Caller, more: Mapping[str, str | None], action: str = "request") -> None:
        """Note the refusal of a request that is no call; `more` are other facts of the audit log."""
        if (left_out := self._lines.take(caller.account)) is not None:
            facts = {"caller": caller.principal, "address": caller.address, **more, "reason": reason}
            self._ledger.note(Decision(action, "refused", {**facts, "left_out": left_out or None}))
