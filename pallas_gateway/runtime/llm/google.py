"""Repairs of fast-agent's class for Google's models. Installed when an agent first uses one."""

from __future__ import annotations

import os
import sys
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from pallas_gateway.cloud_logins import google_identity
from pallas_gateway.runtime.compat.requirements import check_names

if TYPE_CHECKING:
    from pallas_gateway.runtime.compat.requirements import ReliedOn

_MODULE = "fast_agent.llm.provider.google.llm_google_native"
_LLM = f"{_MODULE}:GoogleNativeLLM"
_CLIENT_CERTIFICATE = "GOOGLE_API_USE_CLIENT_CERTIFICATE"
"""If `true`, the library makes its own TLS contexts with the machine's certificate."""
RELIED_ON: ReliedOn = (
    (_MODULE, "genai", ()),
    (_LLM, "_apply_prompt_provider_specific", ("self",)),
    (_LLM, "_vertex_cfg", ("self",)),
    ("google.genai", "Client", ("api_key", "http_options", "vertexai", "project", "location", "credentials")),
)


def prepare(llm_class: type[Any]) -> None:
    """Repair fast-agent's class for Google; safe to call again."""
    if llm_class.__name__ != "GoogleNativeLLM" or hasattr(llm_class._apply_prompt_provider_specific, "__wrapped__"):
        return
    check_names(RELIED_ON)
    _make_clients(llm_class, sys.modules[llm_class.__module__])


def _make_clients(llm_class: Any, module: Any) -> None:
    """Make clients on an HTTP client like those of other providers; see `_Client`."""
    original = module.genai.Client

    def with_identity(settings: dict[str, Any]) -> dict[str, Any]:
        if not settings.get("vertexai") or "credentials" in settings:
            return settings
        identity = google_identity()
        project = settings["project"] or identity.project
        return {**settings, "credentials": identity.credentials, "project": project}

    def client(**settings: Any) -> Any:
        settings = with_identity(settings)
        if os.environ.get(_CLIENT_CERTIFICATE) == "true":
            return original(**settings)
        return SimpleNamespace(aio=_Client(settings))

    module.genai = SimpleNamespace(Client=client, with_identity=with_identity)
    ask = llm_class._apply_prompt_provider_specific

    @wraps(ask)
    async def logged_in(self: Any, *arguments: Any, **options: Any) -> Any:
        if self._vertex_cfg()[0]:
            await google_identity().ready()
        return await ask(self, *arguments, **options)

    llm_class._apply_prompt_provider_specific = logged_in


class _Client:
    """An asynchronous client of Google's library on an HTTP client like those of other providers.

    With its own HTTP client, the library sleeps up to 10 s when a connection is refused.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        from google import genai  # noqa: PLC0415  not before an LLM is used
        from openai import DefaultAioHttpClient  # noqa: PLC0415

        self.http = DefaultAioHttpClient(timeout=None)
        http_options = settings["http_options"] or genai.types.HttpOptions()
        share_trust_store(http_options)
        http_options.httpx_async_client = self.http
        self._client = genai.Client(**{**settings, "http_options": http_options})
        self.models = self._client.aio.models

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client and its sockets."""
        self._client.close()
        await self.http.aclose()


def share_trust_store(http_options: Any) -> None:
    """Use the TLS context of all clients; otherwise the library reads the trust store for two unused clients."""
    import httpx2  # noqa: PLC0415  not before an LLM is used

    trusted = httpx2.create_ssl_context()
    http_options.client_args = {"verify": trusted}
    http_options.async_client_args = {"verify": trusted, "ssl": trusted}
