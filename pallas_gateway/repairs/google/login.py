"""Gemini on Vertex AI logs in for every turn.

Symptom: each turn loads Google's credentials and fetches a token.

Repair: the credentials of the process (`cloud_logins.py`) are used; a thread fetches their token, once for all turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_MODULE = "fast_agent.llm.provider.google.llm_google_native"
_LLM = f"{_MODULE}:GoogleNativeLLM"
CHANGE = Change(
    "google-login",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(
        Name(f"{_MODULE}:genai", by="with_credentials"),
        Name(f"{_LLM}._apply_prompt_provider_specific", takes=("self",), by="logged_in"),
    ),
    relies_on=(Name(f"{_LLM}._vertex_cfg", takes=("self",)),),
    needs=("google-client",),
    gone_when="fast-agent keeps credentials, and awaits their tokens",
)


def with_credentials(genai: Any, holder: Any) -> Any:
    """Make clients with the credentials of the process."""
    del holder
    from pallas_gateway.cloud_logins import google_identity  # noqa: PLC0415  not before it is used

    def with_identity(settings: dict[str, Any]) -> dict[str, Any]:
        if not settings.get("vertexai") or settings.get("credentials") is not None:
            return settings
        login = google_identity()
        return {**settings, "credentials": login.credentials, "project": settings["project"] or login.project}

    def client(**settings: Any) -> Any:
        return genai.Client(**with_identity(settings))

    return SimpleNamespace(**{**vars(genai), "Client": client, "with_identity": with_identity})


def logged_in(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Fetch a token before the turn."""
    del holder
    from pallas_gateway.cloud_logins import google_identity  # noqa: PLC0415  not before it is used

    @wraps(original)
    async def ask(self: Any, *arguments: Any, **options: Any) -> Any:
        if self._vertex_cfg()[0]:
            await google_identity().ready()
        return await original(self, *arguments, **options)

    return ask
