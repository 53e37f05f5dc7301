"""A provider's server can stop the gateway.

Symptom: the libraries trust the servers of providers. They read an error body as long as it is, decompressed (500 KB of
gzip fill 500 MB of memory), and process a fast answer without a pause: no other call runs until the server is slower
than that. Redirects take Anthropic's `x-api-key` and Gemini's `x-goog-api-key` to any host. fast-agent makes a client
for every turn, and closes none of Anthropic's, so its sockets stay open.

Reproduction: answer 400 with a body that does not end; answer 307 with a `Location` on another port; stream pieces as
fast as possible and ask `/livez` meanwhile.

Repair: a hook of every HTTP client of a provider allows at most 128 MB of an answer and 256 KB of an error, and gzip
alone, decompressed in pieces. The event loop is left to others for a moment after each 5 ms, and redirects are followed
within a server only. A client closes its sockets after each response. Clients of Google Cloud's Vertex AI with the
machine's certificate have no such limits: Google's library makes its own HTTP client for them.
"""

from __future__ import annotations

from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import REPAIR, Change, EachModule, Loaded, Name

if TYPE_CHECKING:
    from collections.abc import Callable

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
