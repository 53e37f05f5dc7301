"""Deep copies of the messages of a conversation, which fast-agent makes when it loads them and twice in each turn.

The history is loaded uncopied and passed to the model uncopied, but for its last message: no provider of fast-agent
changes an earlier one. A turn copies all others once, with a copy for the few types that occur.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import FAST_PATH, Change, Name

if TYPE_CHECKING:
    from collections.abc import Callable

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
)


def changed(_original: Any, _: Any) -> Callable[..., Any]:
    """Copy a model of ordinary values without asking each how it wants to be copied."""
    from pallas_gateway.fast_paths._deep_copying import fast_deepcopy  # noqa: PLC0415  as late as the library

    return fast_deepcopy


def copying_tools(original: Any, _: Any) -> Callable[..., Any]:
    """Copy tools field by field."""
    from pallas_gateway.fast_paths import _deep_copying  # noqa: PLC0415  as above

    return _deep_copying.copying_tools(original)


def loading(original: Any, _: Any) -> Callable[..., Any]:
    """Load messages uncopied if only their agent has them."""
    from pallas_gateway.fast_paths import _deep_copying  # noqa: PLC0415  as above

    return _deep_copying.loading_uncopied(original)


def preparing(original: Any, _: Any) -> Callable[..., Any]:
    """Copy each message of a turn once."""
    from pallas_gateway.fast_paths import _deep_copying  # noqa: PLC0415  as above

    return _deep_copying.preparing(original)


def merging(original: Any, _: Any) -> Any:
    """Copy no messages to merge nothing."""
    from pallas_gateway.fast_paths import _deep_copying  # noqa: PLC0415  as above

    return staticmethod(_deep_copying.merging_results(original))
