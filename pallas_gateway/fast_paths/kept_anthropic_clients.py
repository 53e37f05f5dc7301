"""The clients of Anthropic, and those of its models at Vertex AI and GitHub Copilot, kept between turns and calls.

fast-agent makes a client for every turn, and closes none. Anthropic's client on aiohttp takes half the CPU of the one
on httpcore for streams.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import FAST_PATH, Change, EachModule, Loaded, Name

_PROVIDERS = "fast_agent.llm.provider"
_TRANSPORT = "anthropic._vendor.httpx_aiohttp.transport:AiohttpTransport"
CHANGE = Change(
    "kept_anthropic_clients",
    FAST_PATH,
    ("aiohttp", "anthropic"),
    when=Loaded("anthropic"),
    replaces=(
        EachModule(_PROVIDERS, "AsyncAnthropic"),
        EachModule(_PROVIDERS, "AsyncAnthropicVertex"),
        Name(f"{_PROVIDERS}.copilot.messages:DefaultAsyncHttpxClient", by="keeping_sockets"),
    ),
    relies_on=(
        Name("anthropic:DefaultAioHttpClient"),
        Name("anthropic:AsyncAnthropic._client"),
        Name(f"{_TRANSPORT}.client"),
        Name(f"{_TRANSPORT}.ssl_context"),
        Name("aiohttp:TCPConnector._get", ("self", "key", "traces")),
        Name("aiohttp:TCPConnector._create_connection", ("self", "req", "traces", "timeout")),
        Name("aiohttp:TCPConnector._release", ("self", "key", "protocol", "should_close")),
    ),
    needs=("provider-limits", "delta_events"),
    gone_when="fast-agent keeps clients between turns and between LLM objects, on aiohttp",
)


def changed(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Keep the clients with the same settings."""
    from pallas_gateway.fast_paths import _kept  # noqa: PLC0415  not before an LLM is used

    @wraps(original, updated=())
    def client(**settings: Any) -> Any:
        if (http := settings.get("http_client")) is not None or _kept.is_callers_own(settings):
            made = original(**settings)
            if getattr(http, "is_kept", False):
                _kept.keep_open(http)
            return made

        def make() -> Any:
            made = original(**{**settings, "http_client": aio_client()})
            _kept.keep_open(made._client)
            return made

        return _kept.kept({"class": original.__name__, **settings}, make)

    return client


def aio_client(**settings: Any) -> Any:
    """An HTTP client on aiohttp."""
    from anthropic import DefaultAioHttpClient  # noqa: PLC0415  not before an LLM is used

    from pallas_gateway.fast_paths import _kept  # noqa: PLC0415  as above

    return _kept.without_cookies(DefaultAioHttpClient(**settings))


def keeping_sockets(_original: Any, _: Any) -> Callable[..., Any]:
    """Keep the HTTP client that GitHub Copilot's clients are made with."""
    from pallas_gateway.fast_paths import _kept  # noqa: PLC0415  not before an LLM is used

    def http_client(**settings: Any) -> Any:
        return _kept.kept({"provider": "copilot", **settings}, lambda: _KeptHttp(aio_client(**settings))).http

    return http_client


class _KeptHttp:
    """An HTTP client that is closed with the clients of the other providers."""

    def __init__(self, http: Any) -> None:
        self.http = http
        http.is_kept = True

    async def close(self) -> None:
        """Close its sockets."""
        await self.http.aclose()


async def close() -> None:
    """Close the kept clients of the running event loop."""
    from pallas_gateway.fast_paths._kept import close_clients  # noqa: PLC0415  not before an LLM is used

    await close_clients()
