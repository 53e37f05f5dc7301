"""Google's client sleeps when a connection is refused.

Symptom: a refused connection makes Google's library sleep for 1 to 10 s and try once more. Each client reads the trust
store twice.

Repair: the library gets an HTTP client like other providers'.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, Self

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_MODULE = "fast_agent.llm.provider.google.llm_google_native"
CHANGE = Change(
    "google-client",
    REPAIR,
    ("google-genai", "fast-agent-mcp"),
    seen_in="2.28.0",
    when=Loaded(_MODULE),
    replaces=(Name(f"{_MODULE}:genai"),),
    relies_on=(
        Name(
            "google.genai:Client", takes=("api_key", "http_options", "vertexai", "project", "location", "credentials")
        ),
    ),
    gone_when="the library does not sleep over a refused connection",
)
_CLIENT_CERTIFICATE = "GOOGLE_API_USE_CLIENT_CERTIFICATE"
"""If `true`, the library makes its own TLS contexts with the machine's certificate."""


def changed(original: Any, holder: Any) -> Any:
    """Return what fast-agent uses of the library, with other clients."""
    del holder

    def client(**settings: Any) -> Any:
        if os.environ.get(_CLIENT_CERTIFICATE) == "true":
            return original.Client(**settings)
        return SimpleNamespace(aio=_Client(original, settings))

    return SimpleNamespace(Client=client, with_identity=dict)


class _Client:
    """An asynchronous client of the library on an HTTP client like those of other providers."""

    def __init__(self, genai: Any, settings: dict[str, Any]) -> None:
        import httpx2  # noqa: PLC0415  not before an LLM is used
        from openai import DefaultAioHttpClient  # noqa: PLC0415

        self.http = DefaultAioHttpClient(timeout=None)
        trusted = httpx2.create_ssl_context()
        options = settings["http_options"] or genai.types.HttpOptions()
        options.client_args = {"verify": trusted}
        options.async_client_args = {"verify": trusted, "ssl": trusted}
        options.httpx_async_client = self.http
        self._client = genai.Client(**{**settings, "http_options": options})
        self.models = self._client.aio.models

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client and its sockets."""
        self._client.close()
        await self.http.aclose()
