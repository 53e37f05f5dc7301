"""Nested calls: which running call of this gateway made this request.

A running call gets one unguessable token; the gateway's own connections to its own agents carry it. The token dies
with the call, so a copied one is worth nothing afterwards.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pallas_gateway.calls.cancellation import Cancellations
from pallas_gateway.identity.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pallas_gateway.calls.call import Call


class RunningCalls:
    """The running calls of this process by their nested-call token; `draining` says that they are the last ones.

    `cancellations` are those that their clients can cancel from another request.
    """

    def __init__(self) -> None:
        self.cancellations = Cancellations()
        self._by_token: dict[str, Call] = {}
        self.draining = False

    def __len__(self) -> int:
        """How many calls hold a token now."""
        return len(self._by_token)

    @contextmanager
    def token_for(self, call: Call) -> Iterator[Secret]:
        """A token that names `call` for as long as the block runs."""
        token = secrets.token_urlsafe(32)
        self._by_token[token] = call
        try:
            yield Secret(token)
        finally:
            del self._by_token[token]

    def parent_of(self, token: str | None) -> Call | None:
        """The running call that presented `token`; None for no token, a made-up one, or one whose call has ended."""
        return self._by_token.get(token) if token else None
