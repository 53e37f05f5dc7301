"""JSON schemas for models that do not accept tools together with a schema: tools first, then the schema.

For such models fast-agent drops the tools without a message, or removes them after their first results. Here the loop
runs with tools and without the schema until the model answers; then one more turn has only the schema.
"""

from __future__ import annotations

import re
from functools import wraps
from typing import TYPE_CHECKING, Any

from fast_agent.agents.tool_agent import ToolAgent
from fast_agent.types.llm_stop_reason import LlmStopReason

from pallas_gateway.runtime.compat.requirements import check_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.runtime.compat.requirements import ReliedOn

_LLM = "fast_agent.llm.fastagent_llm:FastAgentLLM"
_TURN = ("self", "messages", "request_params", "tools")
RELIED_ON: ReliedOn = (
    (_LLM, "_resolve_structured_tool_policy", ("self", "request_params")),
    (_LLM, "_should_suppress_structured_schema_for_tools", _TURN),
    (_LLM, "_prepare_structured_request", _TURN),
    (_LLM, "_has_tool_results", ("self", "messages")),
    (ToolAgent, "should_finalize_deferred_structured_turn", (*_TURN, "assistant_message")),
)
_GEMINI_WITHOUT_BOTH = re.compile(r"gemini-[12]\b")
_WHOLE_ANSWERS = (None, LlmStopReason.END_TURN, LlmStopReason.STOP_SEQUENCE)


def prepare(llm_class: type[Any]) -> None:
    """Repair a provider class of fast-agent or their base class; safe to call again."""
    own = vars(llm_class)
    for name, repaired in _REPAIRS.items():
        if name in own and not hasattr(own[name], "original"):
            check_names(RELIED_ON)
            setattr(llm_class, name, repaired(own[name]))
            if llm_class.__name__ == "FastAgentLLM":
                llm_class._should_suppress_structured_schema_for_tools = _holds_back
                llm_class._has_tool_results = _never
                ToolAgent.should_finalize_deferred_structured_turn = _should_finalize  # type: ignore[method-assign]


def _wants_json(request_params: Any) -> bool:
    """Return True if the answer must be JSON, by fast-agent's schema or by OpenAI's `response_format`."""
    given = request_params.response_format
    is_text = isinstance(given, dict) and given.get("type") == "text"
    return request_params.structured_schema is not None or (given is not None and not is_text)


def _tools_first(original: Callable[[Any, Any], str]) -> Callable[[Any, Any], str]:
    @wraps(original)
    def resolve(self: Any, request_params: Any) -> str:
        policy = original(self, request_params)
        if request_params.structured_tool_policy != "auto":
            return policy
        if not _wants_json(request_params):
            return "always"
        model = request_params.model or self.default_request_params.model or ""
        if policy == "no_tools" or (_is_google(self) and _GEMINI_WITHOUT_BOTH.match(model)):
            return "defer"
        return policy

    resolve.original = original  # type: ignore[attr-defined]
    return resolve


def _is_google(llm: object) -> bool:
    return any(kind.__name__ == "GoogleNativeLLM" for kind in type(llm).__mro__)


def _holds_back(self: Any, messages: object, request_params: Any, tools: Any) -> bool:
    """Return True while the model has tools; fast-agent sends a `response_format` with them."""
    del messages
    return (
        bool(tools) and _wants_json(request_params) and self._resolve_structured_tool_policy(request_params) == "defer"
    )


def _held_back(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def prepare_structured_request(self: Any, messages: Any, request_params: Any, tools: Any = None) -> Any:
        prepared_messages, prepared = original(self, messages, request_params, tools)
        if _holds_back(self, messages, request_params, tools):
            prepared = prepared.model_copy(update={"response_format": None})
        return prepared_messages, prepared

    prepare_structured_request.original = original  # type: ignore[attr-defined]
    return prepare_structured_request


def _never(self: object, messages: object) -> bool:
    """Keep the tools after their first results: the model may need more."""
    del self, messages
    return False


def _should_finalize(
    self: ToolAgent, messages: object, request_params: Any, tools: Any, assistant_message: Any
) -> bool:
    """Return True if one more turn must put the answer into JSON, with or without results of tools."""
    if self.llm is None or assistant_message.stop_reason not in _WHOLE_ANSWERS:
        return False
    return _holds_back(self.llm, messages, self.llm.get_request_params(request_params), tools)


_REPAIRS = {"_resolve_structured_tool_policy": _tools_first, "_prepare_structured_request": _held_back}
