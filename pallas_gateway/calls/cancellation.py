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
    """One request of a client: its endpoint, the client's session and bearer, and the JSON-RPC id.

    `endpoint` is the name of the agent whose endpoint it is. All else are SHA-256 digests, the id's with its type: keys
    leave the process, so they show no token, and are short whatever a client makes up.
    """

    endpoint: str
    session: str
    bearer: str | None
    request_id: str

    @classmethod
    def of(cls, endpoint: str, session: str, bearer: Secret | None, request_id: str | int) -> RequestKey:
        """Return the key of a request with this bearer."""
        return cls(endpoint, _digest(session), _digest(bearer.reveal()) if bearer else None, _digest(request_id))


class Cancellations:
    """The running calls of this process that their clients can cancel.

    `hand_on` tells other processes of a request that was cancelled here; its call may be theirs.
    """

    def __init__(self) -> None:
        self.hand_on: Callable[[RequestKey], object] = lambda _: None
        self._listeners: dict[RequestKey, list[tuple[Call, Callable[[], object]]]] = {}

    def __len__(self) -> int:
        return len(self._listeners)

    @contextmanager
    def listening(self, key: RequestKey | None, call: Call, on_cancel: Callable[[], object]) -> Iterator[None]:
        """Call `on_cancel` if the client cancels `call` during the block; without a key it cannot."""
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
        """Cancel a request; return the calls that end, none if no such request runs."""
        listeners = tuple(self._listeners.get(key, ()))  # a listener may remove itself
        for _, on_cancel in listeners:
            on_cancel()
        return tuple(call for call, _ in listeners)


def cut_off(*, stopping: bool) -> CallFailedError:
    """Return the error of a call that was cancelled, or that the gateway has cut off because it is `stopping`."""
    if stopping:
        message = "The gateway is stopping and could not wait for this call any longer. Send it again in a moment."
        return CallFailedError(message, reason="stopped")
    return CallFailedError("The call was cancelled.", reason="cancelled")


def _digest(value: str | int) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()
