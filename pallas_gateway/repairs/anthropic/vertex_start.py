"""No agent with Claude on Vertex AI starts.

Symptom: `anthropic-vertex` fails at the start: fast-agent reads `api_key` of a client that has none.

Repair: a client is made to check the credentials.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_MODULE = "fast_agent.llm.provider.anthropic.llm_anthropic_vertex"
_LLM = f"{_MODULE}:AnthropicVertexLLM"
CHANGE = Change(
    "anthropic-vertex-start",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(Name(f"{_LLM}.validate_provider_credentials", takes=("self",)),),
    relies_on=(Name(f"{_LLM}._initialize_anthropic_client", takes=("self",)),),
    gone_when="`anthropic-vertex` has a check of its own",
)


def changed(original: Any, holder: Any) -> Callable[[Any], None]:
    """Check project and credentials; the inherited method requires a key."""
    del original, holder

    def validate_provider_credentials(self: Any) -> None:
        self._initialize_anthropic_client()

    return validate_provider_credentials
