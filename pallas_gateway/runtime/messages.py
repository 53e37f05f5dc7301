"""Between the gateway's messages and fast-agent's: conversation in, reply and usage out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fast_agent.constants import FAST_AGENT_ERROR_CHANNEL
from fast_agent.mcp.helpers.content_helpers import get_text
from fast_agent.types import PromptMessageExtended
from fast_agent.types.llm_stop_reason import LlmStopReason
from mcp_types import ImageContent, TextContent

from pallas_gateway.calls.call import Reply, TurnUsage, Usage
from pallas_gateway.errors import CallFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fast_agent.interfaces import AgentProtocol
    from fast_agent.llm.usage_tracking import TurnUsage as FastAgentTurn
    from mcp_types import ContentBlock

    from pallas_gateway.calls.call import Message

_SHOWN_ERROR_CHARACTERS = 300
_WEB_PAGE = re.compile(r"<(?:!doctype|html)", re.IGNORECASE)
"""Where the error page of a proxy begins; the status before it says what a person needs to know."""
_FAILURES = {
    LlmStopReason.ERROR: "llm_error",
    LlmStopReason.TIMEOUT: "llm_timeout",
}


def to_fast_agent(message: Message) -> PromptMessageExtended:
    """One turn with its images after its text."""
    content: list[ContentBlock] = [TextContent(type="text", text=message.text)]
    content += [ImageContent(type="image", data=image.data, mime_type=image.mime_type) for image in message.images]
    return PromptMessageExtended(
        role=message.role,
        content=content,
        stop_reason=LlmStopReason.END_TURN if message.role == "assistant" else None,
    )


def to_reply(answer: PromptMessageExtended, agents: Iterable[AgentProtocol]) -> Reply:
    """The final message and what it cost.

    Raises:
        CallFailedError: fast-agent returns model failures as messages; here they become what they are.
    """
    stop_reason = answer.stop_reason or LlmStopReason.END_TURN
    if stop_reason is LlmStopReason.CANCELLED:
        raise CallFailedError("The call was stopped before it was answered.", reason="cancelled")
    if stop_reason in _FAILURES:
        raise CallFailedError(_failure_sentence(answer), reason=_FAILURES[stop_reason])
    turns = turns_of(agents)
    content = list(answer.content)
    if stop_reason is LlmStopReason.MAX_ITERATIONS:
        content.append(TextContent(type="text", text=_STOPPED_AT_LIMIT))
    text_first = sorted(content, key=lambda block: not isinstance(block, TextContent))
    return Reply(tuple(text_first), stop_reason.value, len(turns), turns)


_STOPPED_AT_LIMIT = "[Stopped: the agent reached its limit of steps for one call. This answer is partial.]"


def deadline_reply(seconds: float, agents: Iterable[AgentProtocol]) -> Reply:
    """A success that says the time was up."""
    text = f"[Stopped: the agent did not finish within its {seconds:g} s for one call. There is no answer yet.]"
    turns = turns_of(agents)
    return Reply((TextContent(type="text", text=text),), LlmStopReason.END_TURN.value, len(turns), turns)


def turns_of(agents: Iterable[AgentProtocol]) -> tuple[TurnUsage, ...]:
    """Every LLM turn of the call. Workflow agents have no accumulator of their own: their parts do."""
    accumulators = (getattr(agent, "usage_accumulator", None) for agent in agents)
    return tuple(_turn(turn) for accumulator in accumulators if accumulator for turn in accumulator.turns)


def _turn(turn: FastAgentTurn) -> TurnUsage:
    cache_read, cache_write = turn.prompt.cache_read or 0, turn.prompt.cache_write or 0
    uncached = turn.prompt.uncached
    if uncached is None:  # `total` includes what came from and went into the cache
        uncached = max(0, (turn.prompt.total or 0) - cache_read - cache_write)
    usage = Usage(uncached, turn.completion.total or 0, cache_read, cache_write, turn.completion.reasoning or 0)
    return TurnUsage(turn.model, usage)


def _failure_sentence(answer: PromptMessageExtended) -> str:
    blocks = (answer.channels or {}).get(FAST_AGENT_ERROR_CHANNEL) or answer.content
    detail = " ".join((get_text(blocks[0]) or "").split()) if blocks else ""
    detail = _WEB_PAGE.split(detail, maxsplit=1)[0].rstrip(" :")
    if len(detail) > _SHOWN_ERROR_CHARACTERS:
        detail = detail[: _SHOWN_ERROR_CHARACTERS - 1].rstrip() + "…"
    return f"The model could not answer: {detail or 'no reason was given'}"
