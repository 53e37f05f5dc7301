"""The sockets of kept LLM clients: nothing of one turn stays on them for another. Imported once an LLM is used."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

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
)


def session(ssl_context: ssl.SSLContext, keep_alive_seconds: float) -> aiohttp.ClientSession:
    """What sends the requests of one client: keeps no cookie, and has as many sockets as there are turns."""
    connector = _Connector(limit=0, keepalive_timeout=keep_alive_seconds, ssl=ssl_context)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


class _Connector(aiohttp.TCPConnector):
    """Gives no socket twice on which something came unasked, and has sockets remember nobody.

    A socket and the timer that closes it outlive the call that opened them. asyncio keeps its context with both: the
    token of the call's client, and all that the call was about.
    """

    async def _get(self, *arguments: Any) -> Any:
        connection: Any = await super()._get(*arguments)
        while connection is not None and connection.protocol.should_close:
            connection.close()  # else the next turn would take for its answer what is there
            connection = await super()._get(*arguments)
        return connection

    async def _create_connection(self, *arguments: Any) -> Any:
        connect = super()._create_connection(*arguments)
        connecting = asyncio.get_running_loop().create_task(connect, name="connect to an LLM", context=Context())
        try:
            return await connecting
        except asyncio.CancelledError:
            connecting.add_done_callback(_close)  # it may have come about just then
            raise

    def _release(self, *arguments: Any, **options: Any) -> None:
        Context().run(super()._release, *arguments, **options)


def _close(connecting: asyncio.Task[Any]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
