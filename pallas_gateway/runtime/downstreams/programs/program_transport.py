"""The transport of one connection to a stdio server, over a process that was initialised before.

The client of the connection makes its handshake as with a new process; the transport answers it with what the process
has answered already. So the client has the callbacks and the context of its own call.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from anyio.streams.memory import MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp_types import JSONRPCMessage

    from pallas_gateway.runtime.downstreams.programs.program_pool import ProgramPool
    from pallas_gateway.runtime.downstreams.programs.program_process import ProgramAnswer, ProgramProcess

DISCOVER = "server/discover"
INITIALIZE = "initialize"
INITIALIZED = "notifications/initialized"
MOST_UNREAD = 64
"""Messages that the client has not read, before the process has to wait; a shared one does not wait for one client."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first request of a connection: `initialize` or `server/discover`.

    `key` is equal for connections that may take the same process. `initialize` declares what its client supports, so
    that its key has all parameters. `server/discover` declares nothing that lasts.
    """

    method: str
    params: dict[str, Any]
    key: str

    @classmethod
    def of(cls, request: JSONRPCRequest, *, shared: bool) -> Greeting:
        """Return the greeting without marks of the call, and for a shared process without what a caller supports."""
        params = dict(request.params or {})
        if request.method == INITIALIZE:
            params.pop("_meta", None)
            if shared:
                params["capabilities"] = {}
            return cls(request.method, params, json.dumps(params, sort_keys=True))
        return cls(request.method, params, DISCOVER)


@asynccontextmanager
async def connection(
    pool: ProgramPool,
    on_end: Callable[[], object] = lambda: None,
    *,
    greeting: Greeting | None = None,
    is_listing: bool = False,
) -> AsyncIterator[TransportStreams]:
    """Connect to a process of `pool`.

    Args:
        pool: the processes of the program.
        on_end: called when the process has ended by itself.
        greeting: of a client that makes no handshake.
        is_listing: the connection is the gateway's own, so that a call may use the process after it.

    Raises:
        ProgramError: there is no process.
    """
    most = inf if pool.is_shared else MOST_UNREAD
    sender, receiver = anyio.create_memory_object_stream[SessionMessage | Exception](most)
    writer = _Writer(pool, sender, on_end, is_listing=is_listing)
    try:
        if greeting is not None:
            await writer.greet(greeting)
        yield receiver, writer
    finally:
        writer.leave()
        receiver.close()


class _Writer:
    """The stream of the messages that a client sends."""

    def __init__(
        self,
        pool: ProgramPool,
        inbox: MemoryObjectSendStream[SessionMessage | Exception],
        on_end: Callable[[], object],
        *,
        is_listing: bool,
    ) -> None:
        self._pool = pool
        self._inbox = inbox
        self._on_end = on_end
        self._is_listing = is_listing
        self._process: ProgramProcess | None = None

    async def send(self, item: SessionMessage) -> None:
        """Send a message to the process, or answer it here if it belongs to the handshake."""
        match item.message:
            case JSONRPCRequest(method=method, id=number) as request if method in {DISCOVER, INITIALIZE}:
                answer = await self.greet(Greeting.of(request, shared=self._pool.is_shared))
                await self._receive(answer.model_copy(update={"id": number}))
            case JSONRPCNotification(method=method) if method == INITIALIZED:
                pass  # sent in advance
            case message if self._process is not None:
                self._process.send(message, self._receive)

    async def greet(self, greeting: Greeting) -> ProgramAnswer:
        """Take a process if there is none, and return its answer to `greeting`."""
        if self._process is None:
            self._process = process = await self._pool.acquire(greeting, is_listing=self._is_listing)
            if not process.is_usable:
                self._ended()
            process.connections[self._receive] = self._ended
        answer = await self._process.greet(greeting)
        if isinstance(answer, JSONRPCResponse):
            self._pool.note_greeting(greeting)
            if not self._is_listing:
                self._pool.keep_warm(greeting)
        return _without_subscriptions(answer) if greeting.method == DISCOVER else answer

    def leave(self) -> None:
        """End the connection; the process is ended in the background."""
        self._inbox.close()
        if (process := self._process) is not None:
            is_clean = self._is_listing and not process.has_open_requests
            process.disconnect(self._receive)
            self._pool.release(process, is_used=not is_clean)
            self._process = None

    def _ended(self) -> None:
        self._inbox.close()
        self._on_end()

    async def _receive(self, message: JSONRPCMessage) -> None:
        unread = self._inbox.statistics().current_buffer_used
        if self._pool.is_shared and isinstance(message, JSONRPCNotification) and unread >= MOST_UNREAD:
            return  # progress, which may be left out; there are as many responses as the client has sent requests
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client has left
            await self._inbox.send(SessionMessage(message))

    async def aclose(self) -> None:
        """Nothing to do: the transport ends the connection."""

    async def __aenter__(self) -> Self:
        """Nothing to open."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""


def _without_subscriptions(answer: ProgramAnswer) -> ProgramAnswer:
    """Remove the capability to notify of changes: a process that waits for a call must have no open request."""
    if not isinstance(answer, JSONRPCResponse):
        return answer
    features: dict[str, Any] = answer.result.get("capabilities") or {}
    reduced = {
        name: {key: value for key, value in feature.items() if key not in {"listChanged", "subscribe"}}
        if name in {"tools", "prompts", "resources"} and isinstance(feature, dict)
        else feature
        for name, feature in features.items()
    }
    return answer.model_copy(update={"result": {**answer.result, "capabilities": reduced}})
