"""The decisions of a process: what was allowed, refused or changed, and by whom. The audit log writes them down."""

from __future__ import annotations

import hashlib
import hmac
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pallas_gateway.calls.call import Call
    from pallas_gateway.identity.caller import Caller

    type Facts = Mapping[str, str | int | float | bool | None]
"""Plain values of `features/audit/chain.py: FIELDS`."""

HASHED_NAMES = b"pallas-gateway audit names"
"""Derives the key of hashed names from a secret."""
HASHED_DIGITS = 32
MINUTE_SECONDS = 60.0
MOST_OF_CLIENT = 10
"""Lines for the refused requests of one client a minute."""
MOST_OF_ALL = 300
"""The same of all clients together."""


def facts_of(call: Call) -> Facts:
    """Return a call in the audit log."""
    caller = call.caller
    return {
        "caller": caller.principal,
        "address": caller.address,
        "agent": call.agent,
        "api": call.api,
        "call_id": call.call_id,
        "parent": call.parent_call_id,
        "grant": caller.grants.deciding("run:agents", call.agent),
    }


def hashed_name(name: str, secret: str) -> str:
    """Return the HMAC of a name, as `HASHED_DIGITS` hexadecimal digits."""
    key = hmac.digest(secret.encode(), HASHED_NAMES, hashlib.sha256)
    return hmac.digest(key, name.encode("utf-8", "surrogatepass"), hashlib.sha256).hex()[:HASHED_DIGITS]


class Trail:
    """Takes the decisions of one process. `write` notes them; without the audit log they are forgotten."""

    def __init__(self) -> None:
        self.write: Callable[[str, str, Facts], object] = lambda _action, _outcome, _facts: None

    def record(self, action: str, outcome: str, facts: Facts) -> None:
        """Note a decision.

        Args:
            action: one word, such as `approve`, `end_call`, `reload`.
            outcome: one word, such as `allowed`, `refused`, `accepted`.
            facts: about it.
        """
        self.write(action, outcome, facts)


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

    def __init__(self, trail: Trail, clock: Callable[[], float] = monotonic) -> None:
        self._trail = trail
        self._lines = FewLines(clock)

    def record(self, reason: str, caller: Caller, more: Mapping[str, str | None], action: str = "request") -> None:
        """Note the refusal of a request that is no call; `more` are other facts of the audit log."""
        if (left_out := self._lines.take(caller.account)) is not None:
            facts = {"caller": caller.principal, "address": caller.address, **more, "reason": reason}
            self._trail.record(action, "refused", {**facts, "left_out": left_out or None})
