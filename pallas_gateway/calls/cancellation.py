"""Cancelling a call from another request: `notifications/cancelled` of the initialize era.

A running call is known by the session id its client was given, its caller and its request id, all three; so nobody
cancels another's call, and a client that sends no session id cannot cancel this way (closing the stream always works).

Where several processes serve the same port, the other request may reach another one than the call did. So each key it
hears of it hands on to the others.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from pallas_gateway.errors import CallFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pallas_gateway.calls.call import Call
    from pallas_gateway.identity.secret import Secret


@dataclass(frozen=True, slots=True)
class RequestKey:
    """One client request: the endpoint it came to, the client's session, its bearer and its JSON-RPC id.

    `endpoint` is the name of the agent whose endpoint it is. All else are SHA-256 digests, the id's with its type: keys
    leave the process, so they show no token, and are short whatever a client makes up.
    """

    endpoint: str
    session: str
    bearer: str | None
    request_id: str

    @classmethod
    def of(cls, endpoint: str, session: str, bearer: Secret | None, request_id: str | int) -> RequestKey:
        """The key of a request with this bearer."""
        return cls(endpoint, _digest(session), _digest(bearer.reveal()) if bearer else None, _digest(request_id))


class Cancellations:
    """The running calls of this process that their clients can cancel.

    `hand_on` tells other processes of a request that was cancelled here; its call may be theirs.
    """

    def __init__(self, hand_on: Callable[[RequestKey], object] = lambda _: None) -> None:
        self.hand_on = hand_on
        self._listeners: dict[RequestKey, list[tuple[Call, Callable[[], object]]]] = {}

    def __len__(self) -> int:
        """The number of requests that can be cancelled now."""
        return len(self._listeners)

    @contextmanager
    def listening(self, key: RequestKey | None, call: Call, on_cancel: Callable[[], object]) -> Iterator[None]:
        """Call `on_cancel` if the client cancels `call` while the block runs; with no key nothing can."""
        if key is None:
            yield
            return
        listeners = self._listeners.setdefault(key, [])
        listener = (call, on_cancel)
        listeners.append(listener)
        try:
            yield
        finally:
            listeners.remove(listener)
            if not listeners:
                self._listeners.pop(key, None)

    def cancel(self, key: RequestKey) -> tuple[Call, ...]:
        """Cancel one request; the calls that this ends, none if no such request is running."""
        listeners = tuple(self._listeners.get(key, ()))  # a call may end while it is being cancelled
        for _, on_cancel in listeners:
            on_cancel()
        return tuple(call for call, _ in listeners)


def cut_off(*, stopping: bool) -> CallFailedError:
    """Why a call ended without an answer: it was cancelled, or the gateway is `stopping` and could not wait for it."""
    if stopping:
        message = "The gateway is stopping and could not wait for this call any longer. Send it again in a moment."
        return CallFailedError(message, reason="stopped")
    return CallFailedError("The call was cancelled.", reason="cancelled")


def _digest(value: str | int) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()
