"""Newer models of Claude refuse `temperature` with `top_p`.

Symptom: from Opus 4.1, Sonnet 4.5 and Haiku 4.5 on the API answers 400 to a request with both; fast-agent sends both.

Repair: `top_p` is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.repairs.anthropic._models import takes_one_of_two

_MODULE = "fast_agent.llm.provider.anthropic.llm_anthropic"
_ARGUMENTS = ("self", "base_args", "request_params")
CHANGE = Change(
    "anthropic-sampling",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(Name(f"{_MODULE}:AnthropicLLM.prepare_provider_arguments", takes=_ARGUMENTS),),
    needs=("anthropic-thinking",),  # it judges the parameters as they were set
    gone_when="fast-agent sends one of them",
)


def changed(original: Callable[..., dict[str, Any]], holder: Any) -> Callable[..., dict[str, Any]]:
    """Leave out `top_p` beside `temperature`."""
    del holder

    @wraps(original)
    def arguments_of(self: Any, base_args: dict[str, Any], *more: Any, **options: Any) -> dict[str, Any]:
        arguments = original(self, base_args, *more, **options)
        sampling = arguments.get("extra_body") or {}
        if sampling.get("temperature") is not None and takes_one_of_two(base_args["model"]):
            sampling.pop("top_p", None)
        return arguments

    return arguments_of
