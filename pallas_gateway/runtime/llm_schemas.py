"""JSON schemas for answers of models that take no tools with one: tools first, the schema afterwards.

For such models fast-agent leaves out the tools, without a message, or takes them away after their first results. Here
the loop runs with its tools and without the schema until the model answers; then one more turn has the schema alone.
"""

from __future__ import annotations

import re
from functools import wraps
from typing import TYPE_CHECKING, Any

from fast_agent.agents.tool_agent import ToolAgent
from fast_agent.types.llm_stop_reason import LlmStopReason

from pallas_gateway.runtime.relied_on import check_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.runtime.relied_on import ReliedOn

_LLM = "fast_agent.llm.fastagent_llm:FastAgentLLM"
RELIED_ON: ReliedOn = (
    (_LLM, "_resolve_structured_tool_policy", ("self", "request_params")),
    (_LLM, "_has_tool_results", ("self", "messages")),
    (
        ToolAgent,
        "should_finalize_deferred_structured_turn",
        ("self", "messages", "request_params", "tools", "assistant_message"),
    ),
)
_GEMINI_WITHOUT_BOTH = re.compile(r"gemini-[12]\b")
_WHOLE_ANSWERS = (None, LlmStopReason.END_TURN, LlmStopReason.STOP_SEQUENCE)


def prepare(llm_class: type[Any]) -> None:
    """Repair one of fast-agent's provider classes or their base; safe to call again."""
    original = vars(llm_class).get("_resolve_structured_tool_policy")
    if original is None or hasattr(original, "original"):
        return
    check_names(RELIED_ON)
    llm_class._resolve_structured_tool_policy = _tools_first(original)
    if llm_class.__name__ == "FastAgentLLM":
        llm_class._has_tool_results = _never
        _finish_after_tools()


def _tools_first(original: Callable[[Any, Any], str]) -> Callable[[Any, Any], str]:
    @wraps(original)
    def resolve(self: Any, request_params: Any) -> str:
        policy = original(self, request_params)
        if request_params.structured_tool_policy != "auto" or request_params.structured_schema is None:
            return policy
        model = request_params.model or self.default_request_params.model or ""
        if policy == "no_tools" or (_is_google(self) and _GEMINI_WITHOUT_BOTH.match(model)):
            return "defer"
        return policy

    resolve.original = original  # type: ignore[attr-defined]
    return resolve


def _is_google(llm: object) -> bool:
    return any(kind.__name__ == "GoogleNativeLLM" for kind in type(llm).__mro__)


def _never(self: object, messages: object) -> bool:
    """Keep the tools when there are results: the model may need more."""
    del self, messages
    return False


def _finish_after_tools() -> None:
    original = ToolAgent.should_finalize_deferred_structured_turn

    @wraps(original)
    def should_finalize(
        self: ToolAgent, messages: Any, request_params: Any, tools: Any, assistant_message: Any
    ) -> bool:
        del messages  # fast-agent looks for results of tools there
        is_whole = assistant_message.stop_reason in _WHOLE_ANSWERS
        return is_whole and original(self, [], request_params, tools, assistant_message)

    ToolAgent.should_finalize_deferred_structured_turn = should_finalize  # type: ignore[method-assign]
