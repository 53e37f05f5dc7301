"""What a worker and its parent tell each other: one JSON object a line, on a socket that nobody else has."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pallas_gateway.calls.cancellation import RequestKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

LONGEST_LINE = 1 << 20
"""Bytes; the announcement has a line for each agent."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: every agent was tried; what `serve` is to print."""

    announcement: str


@dataclass(frozen=True, slots=True)
class Alive:
    """From a worker, every few seconds: its event loop turns; how it is, in one line."""

    summary: str


@dataclass(frozen=True, slots=True)
class Failed:
    """From a worker: it cannot serve, and ends; why."""

    why: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """From the worker that heard it, and on to the others: a client has cancelled a request."""

    agent: str
    session: str
    bearer: str | None
    request_id: str | int

    @classmethod
    def of(cls, key: RequestKey) -> Cancelled:
        """The message for a key."""
        return cls(key.agent, key.session, key.bearer, key.request_id)

    @property
    def key(self) -> RequestKey:
        """The request it is about."""
        return RequestKey(self.agent, self.session, self.bearer, self.request_id)


@dataclass(frozen=True, slots=True)
class Stopped:
    """From a worker: all its calls have ended and its agents are left; it refuses calls until it may close."""


@dataclass(frozen=True, slots=True)
class Close:
    """To a worker that has stopped: accept nothing more, and end."""


@dataclass(frozen=True, slots=True)
class Closed:
    """From a worker: it accepts nothing more."""


type Message = Ready | Alive | Failed | Cancelled | Stopped | Close | Closed
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Ready, Alive, Failed, Cancelled, Stopped, Close, Closed)
}


def line_of(message: Message) -> bytes:
    """The message as one line."""
    return json.dumps({"is": type(message).__name__, **asdict(message)}).encode() + b"\n"


def message_of(line: bytes) -> Message:
    """The message on a line."""
    document = json.loads(line)
    message: Message = _KINDS[document.pop("is")](**document)
    return message


async def messages_on(reader: Any) -> AsyncIterator[Message]:
    """Every message until the other side is gone; a line that it could not finish is none."""
    while True:
        try:
            line = await reader.readline()
        except ConnectionResetError:
            return
        if not line.endswith(b"\n"):
            return
        yield message_of(line)
