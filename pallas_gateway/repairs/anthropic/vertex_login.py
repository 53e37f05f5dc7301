"""Claude on Vertex AI logs in for every turn.

Symptom: `anthropic-vertex` loads Google's credentials twice in each turn, on the event loop, and fetches a token.

Repair: the credentials of the process (`cloud_logins.py`) are used; a thread fetches their token, once for all turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_PACKAGE = "fast_agent.llm.provider.anthropic"
_MODULE = f"{_PACKAGE}.llm_anthropic_vertex"
CHANGE = Change(
    "anthropic-vertex-login",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(
        Name(f"{_PACKAGE}.vertex_config:detect_google_adc", by="of_the_process"),
        Name(f"{_MODULE}:detect_google_adc", by="of_the_process"),
        Name(f"{_MODULE}:AnthropicVertexLLM._prepare_anthropic_client", takes=("self", "model"), by="logged_in"),
    ),
    relies_on=(Name(f"{_PACKAGE}.vertex_config:GoogleAdcStatus", takes=("available", "project_id", "credentials")),),
    gone_when="fast-agent keeps credentials, and awaits their tokens",
)


def of_the_process(original: Any, holder: Any) -> Callable[[], Any]:
    """Return the credentials of the process."""
    del original, holder
    from fast_agent.llm.provider.anthropic.vertex_config import GoogleAdcStatus  # noqa: PLC0415  not before it is used

    from pallas_gateway.cloud_logins import google_identity  # noqa: PLC0415

    def detect_google_adc() -> GoogleAdcStatus:
        login = google_identity()
        return GoogleAdcStatus(available=True, project_id=login.project, credentials=login.credentials)

    return detect_google_adc


def logged_in(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Fetch a token before the turn."""
    del holder
    from pallas_gateway.cloud_logins import google_identity  # noqa: PLC0415  not before it is used

    @wraps(original)
    async def prepare_client(self: Any, model: str) -> None:
        await google_identity().ready()
        await original(self, model)

    return prepare_client
