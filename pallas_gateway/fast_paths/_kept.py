"""The HTTP clients of LLM turns, kept between turns and calls. Imported when an LLM is used.

Only sockets are shared, no data of a call: a client is determined by its provider's address, key and headers; cookies
are not kept; a client with a caller's own token is not kept; and a turn that ends early closes its responses.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from contextvars import Context, ContextVar
from functools import partial
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, override
from weakref import WeakKeyDictionary

import aiohttp
from fast_agent.mcp.auth.context import request_bearer_token

from pallas_gateway.calls.current import running_call
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.redaction import holds

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
KEPT_CLIENTS = 64
"""Most clients that are kept: one for each address, key and headers; the least recently used one is removed."""
READ_BY_CLIENTS = (
    *(name.upper() for name in _PROXIES),
    *_PROXIES,
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS"),
    "AZURE_OPENAI_AD_TOKEN",
    *("GOOGLE_GEMINI_BASE_URL", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"),
    *("ANTHROPIC_VERTEX_BASE_URL", "ANTHROPIC_VERTEX_PROJECT_ID", "CLOUD_ML_REGION"),
    *("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS"),
)
"""Variables that a client reads when it is made; a reload may change them by `.env`."""
_NAMES = tuple(map(os.fsencode, READ_BY_CLIENTS))
RETIRE_SECONDS = 3600.0
"""A removed client is closed after this time; turns that still use it have ended by then."""
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, OrderedDict[Any, Any]] = WeakKeyDictionary()
_retired: WeakKeyDictionary[asyncio.AbstractEventLoop, set[Any]] = WeakKeyDictionary()
_closing = TaskOwner()
_responses: ContextVar[list[Any] | None] = ContextVar("pallas_llm_responses", default=None)
"""Those of the running turn, closed at its end."""


async def close_clients() -> None:
    """Close the clients of the running event loop."""
    loop = asyncio.get_running_loop()
    for client in (*_clients.pop(loop, {}).values(), *_retired.pop(loop, ())):
        await client.close()


def is_callers_own(settings: Mapping[str, Any]) -> bool:
    """True if the client would send the caller's own token; such a client is not shared or kept."""
    token = request_bearer_token.get()
    return bool(token) and holds(settings, str(token))


def kept(settings: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """Return the running event loop's client with these settings, made if there is none yet."""
    clients = _clients.setdefault(asyncio.get_running_loop(), OrderedDict())
    variables: dict[bytes, bytes] = vars(os.environ)["_data"]  # `os.environ.get` takes 1 µs for each that is not set
    key = (repr(sorted((name, repr(value)) for name, value in settings.items())), *map(variables.get, _NAMES))
    if key not in clients:
        clients[key] = make()
        if len(clients) > KEPT_CLIENTS:
            _retire(clients.popitem(last=False)[1])
    clients.move_to_end(key)
    return clients[key]


def _retire(client: Any) -> None:
    loop = asyncio.get_running_loop()
    retired = _retired.setdefault(loop, set())
    retired.add(client)

    def close() -> None:
        if client in retired:
            retired.remove(client)
            _closing.spawn(client.close(), name="close LLM client", report=True)

    loop.call_later(RETIRE_SECONDS, close, context=Context())  # a call's context would keep its token


class Lent:
    """A kept client for one turn, which closes the turn's responses at the end and leaves the client open."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._responses: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        """Forward to the client, for code that uses it without entering it."""
        return getattr(self._client, name)

    async def close(self) -> None:
        """Do nothing: other turns use the client."""

    async def __aenter__(self) -> Any:
        self._token = _responses.set(self._responses)
        return self._client

    async def __aexit__(self, *_: object) -> None:
        _responses.reset(self._token)
        for response in self._responses:
            if not response.is_closed:
                await response.aclose()


async def remember(response: Any) -> None:
    """A hook of HTTP clients: record a response, which the turn closes at its end."""
    if (responses := _responses.get()) is not None:
        responses.append(response)


def without_cookies(client: Any) -> Any:
    """Prepare an HTTP client on aiohttp: it keeps no cookies, and the turn records its responses."""
    client.event_hooks["response"].append(remember)
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            transport.client = partial(_session, transport)
    return client


def keep_open(http: Any) -> None:
    """Leave the sockets of an HTTP client open after a response, which the limits of providers' answers close."""
    http.headers["Connection"] = "keep-alive"


def _session(transport: Any) -> Any:
    return session(transport.ssl_context, running_call.get().llm_limits.keep_alive_seconds)


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
