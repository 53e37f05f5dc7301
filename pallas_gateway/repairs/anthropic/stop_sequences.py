"""Claude is sent null for the stop sequences.

Symptom: a request to Anthropic's API without stop sequences has `"stop_sequences": null`, which strict servers refuse.

Repair: null is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_MODULE = "fast_agent.llm.provider.anthropic.llm_anthropic"
CHANGE = Change(
    "anthropic-stop-sequences",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(Name(f"{_MODULE}:AnthropicLLM.prepare_provider_arguments", takes=("self",)),),
    needs=("anthropic-sampling",),
    gone_when="fast-agent leaves `stop_sequences` out of requests without any",
)


def changed(original: Callable[..., dict[str, Any]], holder: Any) -> Callable[..., dict[str, Any]]:
    """Leave out null."""
    del holder

    @wraps(original)
    def arguments_of(self: Any, *given: Any, **options: Any) -> dict[str, Any]:
        arguments = original(self, *given, **options)
        if arguments.get("stop_sequences") is None:
            arguments.pop("stop_sequences", None)
        return arguments

    return arguments_of
