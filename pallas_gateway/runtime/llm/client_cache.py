"""The HTTP clients of LLM turns, kept between turns and calls.

fast-agent makes a client for every turn and discards it, so each turn opens a connection (with TLS: several round
trips) and blocks the event loop for some milliseconds. Only sockets are shared, no data of a call: a client is
determined by its provider's address, key and headers; cookies are not kept; a client with a caller's own token is not
kept; and a turn that ends early closes its responses.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Mapping
from contextvars import Context
from dataclasses import replace
from functools import partial
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fast_agent.mcp.auth.context import request_bearer_token

from pallas_gateway.calls.current import running_call
from pallas_gateway.runtime import fast_paths
from pallas_gateway.runtime.scope import current_scope
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    type Lend = Callable[[Mapping[str, Any], Callable[[Callable[[Any], Any]], Any]], Any]

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
RETIRE_SECONDS = 3600.0
"""A removed client is closed after this time; turns that still use it have ended by then."""
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, OrderedDict[Any, Any]] = WeakKeyDictionary()
_retired: WeakKeyDictionary[asyncio.AbstractEventLoop, set[Any]] = WeakKeyDictionary()
_closing = TaskOwner()


def keep_clients_of(module: ModuleType) -> None:
    """Make a provider's module of fast-agent use kept clients; safe to call again."""
    if hasattr(module, "AsyncOpenAI") and hasattr(module, "DefaultAioHttpClient"):
        _keep_openai(module)
    for name in ("AsyncAnthropic", "AsyncAnthropicVertex"):
        if hasattr(module, name):
            _keep_anthropic(module, name)
    if hasattr(module, "AsyncAzureOpenAI"):
        _keep_azure(module)


async def close_clients() -> None:
    """Close the clients of the running event loop."""
    loop = asyncio.get_running_loop()
    for client in (*_clients.pop(loop, {}).values(), *_retired.pop(loop, ())):
        await client.close()


def _keep_openai(module: Any) -> None:
    original, http_client = module.AsyncOpenAI, module.DefaultAioHttpClient
    if getattr(original, "is_kept", False):
        return
    fast_paths.OPENAI_RUNS.install(module)
    fast_paths.OPENAI_MESSAGES.install(module)
    client_class = original
    for fast_path in (fast_paths.OPENAI_CHUNKS, fast_paths.OPENAI_REQUESTS):
        client_class = fast_path.accelerate(client_class)
    lend = lender()

    def client(**settings: Any) -> Any:
        settings.pop("http_client", None)
        return lend(settings, lambda prepare: client_class(**settings, http_client=prepare(http_client())))

    client.is_kept = True  # type: ignore[attr-defined]
    module.AsyncOpenAI = client
    module.DefaultAioHttpClient = _none  # `client` makes it


def _keep_anthropic(module: Any, name: str) -> None:
    original = getattr(module, name)
    if getattr(original, "is_kept", False):
        return

    is_kept = fast_paths.KEPT_ANTHROPIC_CLIENTS.is_on

    def client(**settings: Any) -> Any:
        if settings.get("http_client") is not None:
            return original(**settings)
        if is_callers_own(settings) or not is_kept:
            made = original(**settings)  # fast-agent does not close it
            for_one_turn(made._client)
            return made
        return kept({"class": name, **settings}, lambda: original(**{**settings, "http_client": aio_client()}))

    client.is_kept = True  # type: ignore[attr-defined]
    setattr(module, name, client)


def _keep_azure(module: Any) -> None:
    original = module.AsyncAzureOpenAI
    if getattr(original, "is_kept", False):
        return
    from openai import DefaultAioHttpClient  # noqa: PLC0415  not before an LLM is used

    from pallas_gateway.cloud_logins import azure_identity  # noqa: PLC0415

    if (make_credential := module.DefaultAzureCredential) is not None:
        module.DefaultAzureCredential = partial(azure_identity, make_credential)
    lend = lender()

    def client(**settings: Any) -> Any:
        if "azure_ad_token_provider" in settings:  # fast-agent's provider blocks
            settings["azure_ad_token_provider"] = azure_identity(make_credential).token
        return lend(settings, lambda prepare: original(**settings, http_client=prepare(DefaultAioHttpClient())))

    client.is_kept = True  # type: ignore[attr-defined]
    module.AsyncAzureOpenAI = client


def lender() -> Lend:
    """Return a function that returns a client for one turn, a kept one if possible.

    Its arguments are the settings that determine the client, and a function that makes the client; that receives a
    function which prepares the HTTP client.
    """
    is_kept = fast_paths.KEPT_CLIENTS.is_on

    def lend(settings: Mapping[str, Any], make: Callable[[Callable[[Any], Any]], Any]) -> Any:
        if is_callers_own(settings) or not is_kept:
            return make(for_one_turn)
        return Lent(kept(settings, lambda: make(without_cookies)))

    return lend


def is_callers_own(settings: Mapping[str, Any]) -> bool:
    """True if the client would send the caller's own token; such a client is not shared or kept."""
    token = request_bearer_token.get()
    return bool(token) and _holds(settings, str(token))


def _holds(value: object, text: str) -> bool:
    """Return True if a client's settings contain a text. Strings are searched directly, because `repr` escapes."""
    if isinstance(value, str):
        return text in value
    if isinstance(value, bytes):
        return text.encode(errors="surrogatepass") in value
    if isinstance(value, Mapping):
        return any(_holds(one, text) for pair in value.items() for one in pair)
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_holds(one, text) for one in value)
    shown = repr(value)
    return text in shown or repr(text)[1:-1] in shown


def kept(settings: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """Return the running event loop's client with these settings, made if there is none yet."""
    clients = _clients.setdefault(asyncio.get_running_loop(), OrderedDict())
    key = (repr(sorted((name, repr(value)) for name, value in settings.items())), *map(os.environ.get, READ_BY_CLIENTS))
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
        self._token = current_scope.set(replace(current_scope.get(), responses=self._responses))
        return self._client

    async def __aexit__(self, *_: object) -> None:
        current_scope.reset(self._token)
        for response in self._responses:
            if not response.is_closed:
                await response.aclose()


async def remember(response: Any) -> None:
    """A hook of HTTP clients: record a response, which the turn closes at its end."""
    if (responses := current_scope.get().responses) is not None:
        responses.append(response)


def without_cookies(client: Any) -> Any:
    """Prepare an HTTP client on aiohttp: it keeps no cookies, and the turn records its responses."""
    limited(client)
    client.event_hooks["response"].append(remember)
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            transport.client = partial(_session, transport)
    return client


def for_one_turn(client: Any) -> Any:
    """Prepare an HTTP client for one turn: its answers are limited, its sockets are closed after each response."""
    client.headers["Connection"] = "close"
    return limited(client)


def limited(client: Any) -> Any:
    """Limit the answers of an HTTP client."""
    from pallas_gateway.runtime.llm import limits  # noqa: PLC0415  not before an LLM is used

    return limits.limited(client)


def _session(transport: Any) -> Any:
    from pallas_gateway.runtime.llm import sockets  # noqa: PLC0415  not before an LLM is used

    return sockets.session(transport.ssl_context, running_call.get().llm_limits.keep_alive_seconds)


def aio_client(**settings: Any) -> Any:
    """The Anthropic library's client on aiohttp, which takes half the CPU of the one on httpcore for streams."""
    from anthropic import DefaultAioHttpClient  # noqa: PLC0415  not before an LLM is used

    return without_cookies(DefaultAioHttpClient(**settings))


def _none(**_: Any) -> None:
    """Make no HTTP client."""
