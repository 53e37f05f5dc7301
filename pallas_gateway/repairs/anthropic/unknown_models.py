"""Each call of a model of Claude that fast-agent does not know fails.

Symptom: each call of a new model fails with "missing 1 required keyword-only argument: 'max_tokens'".

Repair: the limit of such a model is the default of `max_output_tokens`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.config.model.agents import ModelCapabilities

_MODULE = "fast_agent.llm.provider.anthropic.llm_anthropic"
CHANGE = Change(
    "anthropic-unknown-models",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(Name(f"{_MODULE}:AnthropicLLM._resolve_thinking_arguments", ("self", "model", "max_tokens")),),
    gone_when="fast-agent sends a limit for models that it does not know",
)


def changed(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Give a limit where there is none."""
    del holder
    default = ModelCapabilities().max_output_tokens

    @wraps(original)
    def resolve(self: Any, model: str, max_tokens: int | None, *rest: Any, **options: Any) -> Any:
        return original(self, model, default if max_tokens is None else max_tokens, *rest, **options)

    return resolve
