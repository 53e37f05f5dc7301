"""The HTTP client of GitHub Copilot's Claude models, kept between turns."""

from __future__ import annotations

import sys
from typing import Any

from pallas_gateway.runtime import fast_paths
from pallas_gateway.runtime.compat.requirements import check_names
from pallas_gateway.runtime.llm.client_cache import aio_client, kept


def prepare(llm_class: type[Any]) -> None:
    """Keep the client of fast-agent's class; safe to call again."""
    if llm_class.__name__ == "CopilotMessagesLLM" and "keeps_sockets" not in vars(llm_class):
        _keep_sockets(sys.modules[llm_class.__module__])
        llm_class.keeps_sockets = True


def _keep_sockets(module: Any) -> None:
    """Keep the HTTP client of Claude; fast-agent makes one for every turn, and closes none."""
    check_names(((module, "DefaultAsyncHttpxClient", ()),))
    original = module.DefaultAsyncHttpxClient

    def http_client(**settings: Any) -> Any:
        if not fast_paths.KEPT_ANTHROPIC_CLIENTS.is_on:
            return original(**settings)
        return kept({"provider": "copilot", **settings}, lambda: _Kept(aio_client(**settings))).http

    module.DefaultAsyncHttpxClient = http_client


class _Kept:
    """An HTTP client that is closed with the clients of the other providers."""

    def __init__(self, http: Any) -> None:
        self.http = http

    async def close(self) -> None:
        """Close its sockets."""
        await self.http.aclose()
