"""A schema takes the tools away.

Symptom: models with the policy `no_tools` (Gemini 2.5, gpt-oss, Kimi K3, GLM 5.1, MiniMax, Claude with
`structured_output_mode: tool_use`) get no tools with any `response_format`; others lose them after the first results.
Gemini 2.0 is sent both, which its API refuses.

Repair: the loop runs with its tools and without the format; one more turn, without tools, returns the format, unless
the answer was cut.
"""

from __future__ import annotations

import re
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, EachClass, Loaded, Name

_PACKAGE = "fast_agent.llm"
_BASE = f"{_PACKAGE}.fastagent_llm:FastAgentLLM"
_TURN = ("self", "messages", "request_params", "tools")
CHANGE = Change(
    "schema-tools",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_PACKAGE),
    replaces=(
        EachClass(_PACKAGE, "_resolve_structured_tool_policy", ("self", "request_params"), by="tools_first"),
        EachClass(_PACKAGE, "_prepare_structured_request", _TURN, by="held_back"),
        Name(f"{_BASE}._should_suppress_structured_schema_for_tools", _TURN, by="holding_back"),
        Name(f"{_BASE}._has_tool_results", ("self", "messages"), by="never"),
        Name(
            "fast_agent.agents.tool_agent:ToolAgent.should_finalize_deferred_structured_turn",
            (*_TURN, "assistant_message"),
            by="finalizing",
        ),
    ),
    gone_when=(
        "`_resolve_structured_tool_policy` is `defer` for such models, `_prepare_structured_request` holds"
        " `response_format` back, and `should_finalize_deferred_structured_turn` allows results of tools"
    ),
)
_GEMINI_WITHOUT_BOTH = re.compile(r"gemini-[12]\b")
_WHOLE_ANSWERS = (None, "endTurn", "stopSequence")  # of `LlmStopReason`


def tools_first(original: Any, holder: Any) -> Any:
    """Defer the schema where fast-agent would drop the tools, and for Gemini 1 and 2."""
    del holder

    @wraps(original)
    def resolve(self: Any, request_params: Any) -> str:
        policy: str = original(self, request_params)
        if request_params.structured_tool_policy != "auto":
            return policy
        if not _wants_json(request_params):
            return "always"
        model = request_params.model or self.default_request_params.model or ""
        if policy == "no_tools" or (_is_google(self) and _GEMINI_WITHOUT_BOTH.match(model)):
            return "defer"
        return policy

    return resolve


def held_back(original: Any, holder: Any) -> Any:
    """Send no `response_format` with tools."""
    del holder

    @wraps(original)
    def prepare_structured_request(self: Any, messages: Any, request_params: Any, tools: Any = None) -> Any:
        prepared_messages, prepared = original(self, messages, request_params, tools)
        if _holds_back(self, messages, request_params, tools):
            prepared = prepared.model_copy(update={"response_format": None})
        return prepared_messages, prepared

    return prepare_structured_request


def holding_back(original: Any, holder: Any) -> Any:
    """Hold the schema back while the model has tools."""
    del original, holder
    return _holds_back


def never(original: Any, holder: Any) -> Any:
    """Keep the tools after their first results: the model may need more."""
    del original, holder

    def has_tool_results(self: object, messages: object) -> bool:
        del self, messages
        return False

    return has_tool_results


def finalizing(original: Any, holder: Any) -> Any:
    """Have one more turn put the answer into JSON, with or without results of tools."""
    del holder

    @wraps(original)
    def should_finalize(self: Any, messages: object, request_params: Any, tools: Any, assistant_message: Any) -> bool:
        if self.llm is None or not tools or assistant_message.stop_reason not in _WHOLE_ANSWERS:
            return False
        return _holds_back(self.llm, messages, self.llm.get_request_params(request_params), tools)

    return should_finalize


def _wants_json(request_params: Any) -> bool:
    """Return True if the answer must be JSON, by fast-agent's schema or by OpenAI's `response_format`."""
    given = request_params.response_format
    is_text = isinstance(given, dict) and given.get("type") == "text"
    return request_params.structured_schema is not None or (given is not None and not is_text)


def _is_google(llm: object) -> bool:
    return any(kind.__name__ == "GoogleNativeLLM" for kind in type(llm).__mro__)


def _holds_back(self: Any, messages: object, request_params: Any, tools: Any) -> bool:
    """Return True while the model has tools; fast-agent sends a `response_format` with them."""
    del messages
    return (
        bool(tools) and _wants_json(request_params) and self._resolve_structured_tool_policy(request_params) == "defer"
    )
