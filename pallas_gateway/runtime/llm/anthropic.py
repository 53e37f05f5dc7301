"""Anthropic's models: parameters that their API refuses while the model thinks. Installed when an agent first uses one.

With thinking, the API refuses a `temperature` other than 1, `top_k`, a `top_p` below 0.95, and forced tools. fast-agent
turns thinking on for most models and sends these parameters. Here thinking is then switched off for the rest of the
call: the API does not allow thinking after tool calls without it. Models that always think are not forced to a tool.
Models since Opus 4.1 accept `temperature` or `top_p`: if both are set, `top_p` is left out.
"""

from __future__ import annotations

import re
from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.runtime.compat.requirements import check_names

if TYPE_CHECKING:
    from pallas_gateway.runtime.compat.requirements import ReliedOn

_LLM = "fast_agent.llm.provider.anthropic.llm_anthropic:AnthropicLLM"
RELIED_ON: ReliedOn = (
    (_LLM, "prepare_provider_arguments", ("self", "base_args", "request_params", "exclude_fields")),
    (_LLM, "_is_thinking_enabled", ("self", "model")),
    (_LLM, "_requires_explicit_thinking_field", ("self", "model")),
    (_LLM, "_supports_thinking_disable", ("self", "model")),
    (_LLM, "_configure_anthropic_task_budget", ("self", "raw_task_budget", "config", "model_name")),
    (_LLM, "_resolve_thinking_arguments", ("self", "model", "max_tokens", "structured_mode")),
    ("fast_agent.llm.fastagent_llm:FastAgentLLM", "_reasoning_effort", ()),
    ("anthropic:AsyncAnthropic", "_client", ()),
)
_TAKE_TWO = re.compile(r"claude-(?:v?[123]|instant|(?:opus|sonnet)-4(?:-0|-2\d{7}|@\d+)?(?![-.]?\d))")
"""Models before Opus 4.1, which accept `temperature` together with `top_p`."""
_FORCED = ("any", "tool")
_LOWEST_TOP_P = 0.95
_THINKING = ("thinking", "output_config", "max_tokens")
"""Arguments that `_resolve_thinking_arguments` returns."""


def prepare(llm_class: type[Any]) -> None:
    """Repair fast-agent's class for Anthropic; safe to call again."""
    original = getattr(llm_class, "prepare_provider_arguments", None)
    if llm_class.__name__ != "AnthropicLLM" or original is None or hasattr(original, "original"):
        return
    check_names(RELIED_ON)

    @wraps(original)
    def arguments_of(
        self: Any, base_args: dict[str, Any], request_params: Any, exclude_fields: set[str] | None = None
    ) -> dict[str, Any]:
        model = base_args["model"]
        thinks = self._is_thinking_enabled(model)
        may_stop = self._requires_explicit_thinking_field(model) or self._supports_thinking_disable(model)
        if not may_stop:
            base_args, request_params = _unforced(base_args, request_params)
        arguments: dict[str, Any] = original(self, base_args, request_params, exclude_fields)
        if thinks and may_stop and is_refused_with_thinking(arguments):
            _stop_thinking(self, arguments, request_params.max_tokens)
        sampling = arguments.get("extra_body") or {}
        if sampling.get("temperature") is not None and takes_one_of_two(model):
            sampling.pop("top_p", None)
        if arguments.get("stop_sequences") is None:
            arguments.pop("stop_sequences", None)  # fast-agent sends null, which is no value of the API's types
        return arguments

    arguments_of.original = original  # type: ignore[attr-defined]
    llm_class.prepare_provider_arguments = arguments_of
    _ignore_unset_budget(llm_class)


def _ignore_unset_budget(llm_class: Any) -> None:
    """Skip fast-agent's warning about an ignored task budget where the `anthropic` section has none."""
    original = llm_class._configure_anthropic_task_budget

    @wraps(original)
    def configure(self: Any, raw_task_budget: Any, config: Any, model_name: str) -> Any:
        is_set = getattr(config, "task_budget", None) is not None
        return original(self, raw_task_budget, config if is_set else None, model_name)

    llm_class._configure_anthropic_task_budget = configure


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


def takes_one_of_two(model: str) -> bool:
    """Return True if a model of Anthropic's, under its name at any provider, refuses `temperature` with `top_p`."""
    return "claude" in model and _TAKE_TWO.search(model) is None


def has_stopped_thinking(llm: object) -> bool:
    """Return True if parameters of this call turned an LLM's thinking off."""
    return getattr(llm, "_has_stopped_thinking", False)


def _stop_thinking(llm: Any, arguments: dict[str, Any], max_tokens: int | None) -> None:
    from fast_agent.llm.reasoning_effort import ReasoningEffortSetting  # noqa: PLC0415  not before an LLM is used

    llm._reasoning_effort = ReasoningEffortSetting(kind="toggle", value=False)
    llm._has_stopped_thinking = True
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
