"""The sockets of kept LLM clients; no data of one turn stays for the next. Imported when an LLM is used."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Any, override

import aiohttp

if TYPE_CHECKING:
    import ssl


def session(ssl_context: ssl.SSLContext, keep_alive_seconds: float) -> aiohttp.ClientSession:
    """Make the session of one client: it keeps no cookies and does not limit the number of sockets."""
    connector = _Connector(limit=0, keepalive_timeout=keep_alive_seconds, ssl=ssl_context)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


class _Connector(aiohttp.TCPConnector):
    """Discards pooled sockets that received unsolicited data, and opens sockets in an empty context.

    A socket and its timer outlive the call that opened them, and asyncio keeps the context of that call with both: it
    has the caller's token.
    """

    @override
    async def _get(self, *arguments: Any) -> Any:
        connection: Any = await super()._get(*arguments)
        while connection is not None and connection.protocol.should_close:
            connection.close()  # the next turn would read the data as its answer
            connection = await super()._get(*arguments)
        return connection

    @override
    async def _create_connection(self, *arguments: Any) -> Any:
        connect = super()._create_connection(*arguments)
        connecting = asyncio.get_running_loop().create_task(connect, name="connect to an LLM", context=Context())
        try:
            return await connecting
        except asyncio.CancelledError:
            connecting.add_done_callback(_close)  # the connection may have opened just then
            raise

    @override
    def _release(self, *arguments: Any, **options: Any) -> None:
        Context().run(super()._release, *arguments, **options)


def _close(connecting: asyncio.Task[Any]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
