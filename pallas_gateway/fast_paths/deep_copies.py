"""Deep copies of the messages of a conversation, which fast-agent makes when it loads them and twice in each turn.

The history is loaded uncopied and passed to the model uncopied, but for its last message: no provider of fast-agent
changes an earlier one. A turn copies all others once, with a copy for the few types that occur.
"""

from __future__ import annotations

from pallas_gateway.changes.change import FAST_PATH, Change, Name

_AGENT = "fast_agent.agents.llm_decorator:LlmDecorator"
CHANGE = Change(
    "deep_copies",
    FAST_PATH,
    ("fast-agent-mcp", "pydantic"),
    replaces=(
        Name("fast_agent.types:PromptMessageExtended.__deepcopy__"),
        Name("fast_agent.types:RequestParams.__deepcopy__"),
        Name("mcp_types:TextContent.__deepcopy__"),
        Name("mcp_types:Tool.model_copy", ("self", "update", "deep"), by="copying_tools"),
        Name(f"{_AGENT}.load_message_history", ("self", "messages", "clear_state"), by="loading"),
        Name(f"{_AGENT}._prepare_llm_call", ("self", "messages", "request_params"), by="preparing"),
        Name(f"{_AGENT}._merge_trailing_tool_result_turn", ("messages",), by="merging"),
    ),
    relies_on=(Name(f"{_AGENT}._template_prefix_messages", ("self",)),),
    gone_when="a turn copies messages once",
    made_in="pallas_gateway.fast_paths._deep_copying",
)
