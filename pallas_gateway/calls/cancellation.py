"""Cancelling a call from another request: `notifications/cancelled` of the initialize era.

A running call is known by the session id its client was given, its caller and its request id, all three; so nobody
cancels another's call, and a client that sends no session id cannot cancel this way (closing the stream always works).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pallas_gateway.identity.secret import Secret


@dataclass(frozen=True, slots=True)
class RequestKey:
    """One client request: the agent it is for, the client's session, its bearer and its JSON-RPC id."""

    agent: str
    session: str
    bearer: Secret | None
    request_id: str | int


class Cancellations:
    """The running calls of this process that their clients can cancel."""

    def __init__(self) -> None:
        self._listeners: dict[RequestKey, list[Callable[[], object]]] = {}

    def __len__(self) -> int:
        """How many requests can be cancelled now."""
        return len(self._listeners)

    @contextmanager
    def listening(self, key: RequestKey | None, on_cancel: Callable[[], object]) -> Iterator[None]:
        """Call `on_cancel` if the client cancels the request while the block runs; with no key nothing can."""
        if key is None:
            yield
            return
        listeners = self._listeners.setdefault(key, [])
        listeners.append(on_cancel)
        try:
            yield
        finally:
            listeners.remove(on_cancel)
            if not listeners:
                self._listeners.pop(key, None)

    def cancel(self, key: RequestKey) -> bool:
        """Cancel one request; False if no such request is running."""
        listeners = list(self._listeners.get(key, ()))  # a call may end while it is being cancelled
        for on_cancel in listeners:
            on_cancel()
        return bool(listeners)
