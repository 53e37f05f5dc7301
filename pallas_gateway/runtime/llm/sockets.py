"""The sockets of kept LLM clients; no data of one turn stays for the next. Imported when an LLM is used."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

from pallas_gateway.runtime import fast_paths

if TYPE_CHECKING:
    import ssl

    from pallas_gateway.runtime.compat.requirements import ReliedOn

RELIED_ON: ReliedOn = (
    (aiohttp.TCPConnector, "_get", ("self", "key", "traces")),
    (aiohttp.TCPConnector, "_create_connection", ("self", "req", "traces", "timeout")),
    (aiohttp.TCPConnector, "_release", ("self", "key", "protocol", "should_close")),
    (Connection, "protocol", ()),
    (ResponseHandler, "should_close", ()),
    ("httpx2:AsyncClient", "_transport", ()),
    ("httpx2:AsyncClient", "_mounts", ()),
    (aiohttp.ClientResponse, "start", ("self", "connection")),
)
_EVENTS = "text/event-stream"


def session(ssl_context: ssl.SSLContext, keep_alive_seconds: float) -> aiohttp.ClientSession:
    """Make the session of one client: it keeps no cookies and does not limit the number of sockets."""
    connector = _Connector(limit=0, keepalive_timeout=keep_alive_seconds, ssl=ssl_context)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), response_class=_Response)


class _Response(aiohttp.ClientResponse):
    """A response whose stream of events is read with less work."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        started = await super().start(connection)
        if self.headers.get("Content-Type", "").lower().startswith(_EVENTS):
            self.content = fast_paths.PACED_READS.accelerate(self.content)
        return started


class _Connector(aiohttp.TCPConnector):
    """Discards pooled sockets that received unsolicited data, and opens sockets in an empty context.

    A socket and its timer outlive the call that opened them, and asyncio keeps the context of that call with both: it
    has the caller's token.
    """

    async def _get(self, *arguments: Any) -> Any:
        connection: Any = await super()._get(*arguments)
        while connection is not None and connection.protocol.should_close:
            connection.close()  # the next turn would read the data as its answer
            connection = await super()._get(*arguments)
        return connection

    async def _create_connection(self, *arguments: Any) -> Any:
        connect = super()._create_connection(*arguments)
        connecting = asyncio.get_running_loop().create_task(connect, name="connect to an LLM", context=Context())
        try:
            return await connecting
        except asyncio.CancelledError:
            connecting.add_done_callback(_close)  # the connection may have opened just then
            raise

    def _release(self, *arguments: Any, **options: Any) -> None:
        Context().run(super()._release, *arguments, **options)


def _close(connecting: asyncio.Task[Any]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
