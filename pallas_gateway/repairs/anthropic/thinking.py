"""Claude refuses parameters while it thinks.

Symptom: fast-agent turns thinking on for most models of Anthropic, with which the API refuses [some
parameters](use/parameters.md#what-had-no-effect).

Repair: such a request has no thinking, nor have the later ones of its call; models that always think get no forced
tool. Both are in `_meta["pallas/params"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.calls.current import current_turn
from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_MODULE = "fast_agent.llm.provider.anthropic.llm_anthropic"
_LLM = f"{_MODULE}:AnthropicLLM"
_ARGUMENTS = ("self", "base_args", "request_params", "exclude_fields")
CHANGE = Change(
    "anthropic-thinking",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(Name(f"{_LLM}.prepare_provider_arguments", takes=_ARGUMENTS),),
    relies_on=(
        Name(f"{_LLM}._is_thinking_enabled", takes=("self", "model")),
        Name(f"{_LLM}._requires_explicit_thinking_field", takes=("self", "model")),
        Name(f"{_LLM}._supports_thinking_disable", takes=("self", "model")),
        Name(f"{_LLM}._resolve_thinking_arguments", takes=("self", "model", "max_tokens", "structured_mode")),
        Name("fast_agent.llm.fastagent_llm:FastAgentLLM._reasoning_effort"),
    ),
    gone_when="fast-agent leaves out thinking, or the parameters, by itself",
)
_FORCED = ("any", "tool")
_LOWEST_TOP_P = 0.95
_THINKING = ("thinking", "output_config", "max_tokens")
"""Arguments that `_resolve_thinking_arguments` returns."""


def changed(original: Callable[..., dict[str, Any]], holder: Any) -> Callable[..., dict[str, Any]]:
    """Switch thinking off where the API refuses the other parameters with it."""
    del holder

    @wraps(original)
    def arguments_of(
        self: Any, base_args: dict[str, Any], request_params: Any, exclude_fields: set[str] | None = None
    ) -> dict[str, Any]:
        model = base_args["model"]
        thinks = self._is_thinking_enabled(model)
        may_stop = self._requires_explicit_thinking_field(model) or self._supports_thinking_disable(model)
        if not may_stop:
            base_args, request_params = _unforced(base_args, request_params)
        arguments = original(self, base_args, request_params, exclude_fields)
        if thinks and may_stop and is_refused_with_thinking(arguments):
            _stop_thinking(self, arguments, request_params.max_tokens)
        return arguments

    return arguments_of


def is_refused_with_thinking(arguments: dict[str, Any]) -> bool:
    """Return True if the API refuses these arguments of a request while the model thinks."""
    body = {**arguments, **(arguments.get("extra_body") or {})}
    temperature, top_p = body.get("temperature"), body.get("top_p")
    return (
        (temperature is not None and temperature != 1)
        or (top_p is not None and top_p < _LOWEST_TOP_P)
        or body.get("top_k") is not None
        or (body.get("tool_choice") or {}).get("type") in _FORCED
    )


def _stop_thinking(llm: Any, arguments: dict[str, Any], max_tokens: int | None) -> None:
    """Stop it for the rest of the call."""
    from fast_agent.llm.reasoning_effort import ReasoningEffortSetting  # noqa: PLC0415  not before it is used

    llm._reasoning_effort = ReasoningEffortSetting(kind="toggle", value=False)
    current_turn().changed["thinking"] = "off"
    output = {name: value for name, value in arguments.get("output_config", {}).items() if name != "effort"}
    for name in _THINKING:
        arguments.pop(name, None)
    arguments |= {"output_config": output} if output else {}
    arguments |= llm._resolve_thinking_arguments(arguments["model"], max_tokens, None)[0]


def _unforced(base_args: dict[str, Any], request_params: Any) -> tuple[dict[str, Any], Any]:
    """Remove a forced tool from both."""
    if (base_args.get("tool_choice") or {}).get("type") == "any":  # `tool` is how fast-agent enforces a schema
        base_args = {name: value for name, value in base_args.items() if name != "tool_choice"}
    metadata = request_params.metadata or {}
    if (metadata.get("tool_choice") or {}).get("type") in _FORCED:
        rest = {name: value for name, value in metadata.items() if name != "tool_choice"}
        request_params = request_params.model_copy(update={"metadata": rest or None})
    return base_args, request_params
