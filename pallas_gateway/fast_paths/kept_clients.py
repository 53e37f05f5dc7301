"""The clients of OpenAI, of APIs like it, of Azure and of Google, kept between turns and calls.

fast-agent makes a client for every turn, so each turn opens a connection and makes TLS contexts, which block the event
loop for about 20 ms each. One client is kept for each class and its arguments, and closed with the gateway. Pooled
sockets that received unsolicited data are discarded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

from pallas_gateway.changes.change import FAST_PATH, Change, EachModule, Loaded, Name

_PROVIDERS = "fast_agent.llm.provider"
_GOOGLE = f"{_PROVIDERS}.google.llm_google_native"
_TRANSPORT = "openai._vendor.httpx_aiohttp.transport:AiohttpTransport"
CHANGE = Change(
    "kept_clients",
    FAST_PATH,
    ("aiohttp", "openai"),
    when=Loaded("openai", _GOOGLE),
    replaces=(
        EachModule(_PROVIDERS, "AsyncOpenAI"),
        EachModule(_PROVIDERS, "DefaultAioHttpClient", by="making_none"),
        EachModule(_PROVIDERS, "AsyncAzureOpenAI", by="keeping"),
        Name(f"{_GOOGLE}:genai", by="keeping_google"),
    ),
    relies_on=(
        Name("openai:DefaultAioHttpClient"),
        Name(f"{_TRANSPORT}.client"),
        Name(f"{_TRANSPORT}.ssl_context"),
        Name("aiohttp:TCPConnector._get", ("self", "key", "traces")),
        Name("aiohttp:TCPConnector._create_connection", ("self", "req", "traces", "timeout")),
        Name("aiohttp:TCPConnector._release", ("self", "key", "protocol", "should_close")),
        Name("aiohttp.connector:Connection.protocol"),
        Name("aiohttp.client_proto:ResponseHandler.should_close"),
        Name("httpx2:AsyncClient._transport"),
        Name("httpx2:AsyncClient._mounts"),
    ),
    needs=("provider-limits", "delta_events", "openai_texts"),
    gone_when="fast-agent keeps clients between turns and between LLM objects",
    script="fast_agent_client_per_turn.py",
)
_CLIENT_CERTIFICATE = "GOOGLE_API_USE_CLIENT_CERTIFICATE"
"""If `true`, Google's library makes its own TLS contexts with the machine's certificate."""


def changed(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Keep the clients of modules that make no HTTP client of another kind, as GitHub Copilot's does."""
    return keeping(original, holder) if hasattr(holder, "DefaultAioHttpClient") else original


def making_none(original: Any, _: Any) -> Callable[..., None]:
    """Make no HTTP client for each turn."""
    return wraps(original, updated=())(lambda **_settings: None)


def keeping(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Keep the clients with the same settings."""
    from openai import DefaultAioHttpClient  # noqa: PLC0415  not before an LLM is used

    from pallas_gateway.fast_paths import _kept  # noqa: PLC0415  as above

    @wraps(original, updated=())
    def client(**settings: Any) -> Any:
        if settings.pop("http_client", None) is not None:
            message = "fast-agent makes an HTTP client of another kind"
            raise TypeError(message)
        if _kept.is_callers_own(settings):
            return original(**settings, http_client=DefaultAioHttpClient())

        def make() -> Any:
            made = original(**settings, http_client=_kept.without_cookies(DefaultAioHttpClient()))
            _kept.keep_open(made._client)
            return made

        return _kept.Lent(_kept.kept(settings, make))

    return client


def keeping_google(genai: Any, _: Any) -> Any:
    """Keep the clients of Google's library whose HTTP client is known."""
    if not hasattr(genai, "with_identity"):  # the library's own
        return genai
    from pallas_gateway.fast_paths import _kept  # noqa: PLC0415  not before an LLM is used

    def client(**settings: Any) -> Any:
        settings = genai.with_identity(settings)  # which may be renewed
        if _kept.is_callers_own(settings) or os.environ.get(_CLIENT_CERTIFICATE) == "true":
            return genai.Client(**settings)

        def make() -> Any:
            made = genai.Client(**settings).aio
            _kept.keep_open(_kept.without_cookies(made.http))
            return made

        return SimpleNamespace(aio=_kept.Lent(_kept.kept({"provider": "google", **settings}, make)))

    return SimpleNamespace(Client=client)


async def close() -> None:
    """Close the kept clients of the running event loop."""
    from pallas_gateway.fast_paths._kept import close_clients  # noqa: PLC0415  not before an LLM is used

    await close_clients()
