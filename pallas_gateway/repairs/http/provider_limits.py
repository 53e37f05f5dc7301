"""A provider's server can stop the gateway.

Symptom: the libraries read an error body of any length, decompressed, process a fast answer without a pause, and send
the provider's key along redirects to any host.

Repair: clients of providers accept 128 MB of an answer, 256 KB of an error, and gzip alone, pause each 5 ms, and follow
redirects within a server only. Google Cloud's clients with the machine's certificate have no such limits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, EachModule, Loaded, Name

_PROVIDERS = "fast_agent.llm.provider"
CHANGE = Change(
    "provider-limits",
    REPAIR,
    ("fast-agent-mcp", "openai", "anthropic", "google-genai"),
    seen_in="0.10.48",
    when=Loaded(_PROVIDERS),
    replaces=(
        EachModule(_PROVIDERS, "AsyncOpenAI"),
        EachModule(_PROVIDERS, "AsyncAzureOpenAI"),
        EachModule(_PROVIDERS, "AsyncAnthropic"),
        EachModule(_PROVIDERS, "AsyncAnthropicVertex"),
        Name(f"{_PROVIDERS}.google.llm_google_native:genai", by="limiting_google"),
    ),
    needs=("google-login",),
    gone_when="never as a whole: limits belong to what runs many calls in one process",
)


def changed(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """A provider's client, limited."""

    @wraps(original, updated=())
    def client(**settings: Any) -> Any:
        made = original(**settings)
        _limit(made._client)
        return made

    return client


def limiting_google(genai: Any, _: Any) -> Any:
    """Google's clients, as far as their HTTP clients are known."""

    def client(**settings: Any) -> Any:
        made = genai.Client(**settings)
        if (http := getattr(made.aio, "http", None)) is not None:
            _limit(http)
        return made

    return SimpleNamespace(**{**vars(genai), "Client": client})


def _limit(client: Any) -> None:
    from pallas_gateway.repairs.http._limited import is_limited, limited  # noqa: PLC0415  not before an LLM is used

    if not is_limited(client):  # GitHub Copilot's, which several turns may use
        client.headers["Connection"] = "close"
        limited(client)
