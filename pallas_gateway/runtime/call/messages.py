"""Converts conversations to fast-agent's messages, and its messages to replies and usage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fast_agent.constants import FAST_AGENT_ERROR_CHANNEL
from fast_agent.llm.usage_tracking import UsageSchema
from fast_agent.mcp.helpers.content_helpers import get_text
from fast_agent.types import PromptMessageExtended
from fast_agent.types.llm_stop_reason import LlmStopReason
from mcp_types import BlobResourceContents, EmbeddedResource, ImageContent, TextContent
from pydantic import TypeAdapter

from pallas_gateway.calls.call import PDF, Reply, TurnUsage, Usage
from pallas_gateway.calls.provider_failures import OF_TENSORZERO
from pallas_gateway.telemetry.redaction import cleaned, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fast_agent.llm.usage_tracking import TurnUsage as FastAgentTurn

    from pallas_gateway.calls.call import Image, Message, Stop
    from pallas_gateway.calls.spending import Ended

_text = TypeAdapter(TextContent).validator.validate_python
_turn = TypeAdapter(PromptMessageExtended).validator.validate_python
"""Make models without the `__init__` of their class: a long history takes a quarter less."""
_NOT_IN_NAMES = re.compile(r"[/\\?#]")
"""Characters that end the path of a URI, or a part of it."""
_SHOWN_ERROR_CHARACTERS = 300
MOST_TOKENS = 10**12
"""Of one kind in one turn: a provider may send any number, and sums, costs and shares of limits must fit a float."""
_CACHED_ON_REQUEST = frozenset({UsageSchema.ANTHROPIC, UsageSchema.BEDROCK})
"""Types of usage of providers that cache only marked messages; others cache by themselves."""
_FAILURES = {
    LlmStopReason.ERROR: "llm_error",
    LlmStopReason.TIMEOUT: "llm_timeout",
}


def to_fast_agent(message: Message) -> PromptMessageExtended:
    """Convert one turn, with its images and documents after its text."""
    content = [_text({"type": "text", "text": message.text})]
    content += [
        _document(one) if one.mime_type == PDF else ImageContent(type="image", data=one.data, mime_type=one.mime_type)
        for one in message.images
    ]
    stop_reason = LlmStopReason.END_TURN if message.role == "assistant" else None
    turn: PromptMessageExtended = _turn({"role": message.role, "content": content, "stop_reason": stop_reason})
    return turn


def _document(pdf: Image) -> EmbeddedResource:
    """Return a PDF as fast-agent passes it on: the last part of its URI is the name that the provider gets."""
    name = _NOT_IN_NAMES.sub("_", pdf.name) or "document"
    uri = f"attachment:///{name if name.lower().endswith('.pdf') else f'{name}.pdf'}"
    return EmbeddedResource(type="resource", resource=BlobResourceContents(uri=uri, mime_type=PDF, blob=pdf.data))


def workflow_failure(answer: PromptMessageExtended) -> Reply:
    """The reply for a workflow with an agent whose model failed; the workflow would return the error as text."""
    return failed(_FAILURES[answer.stop_reason or LlmStopReason.ERROR], _failure_sentence(answer))


def failure_reason(answer: PromptMessageExtended) -> str | None:
    """The kind of a turn's failure (`llm_error`, `llm_timeout`), None if it did not fail."""
    return _FAILURES.get(answer.stop_reason) if answer.stop_reason else None


_OF_VERTEX = "/publishers/google/models/"
"""The end of the prefix of Vertex AI's model names, which has a project and a location."""


def to_reply(answer: PromptMessageExtended) -> Reply:
    """Convert the final message of a call to a reply without usage."""
    stop_reason = answer.stop_reason or LlmStopReason.END_TURN
    if stop_reason is LlmStopReason.CANCELLED:
        return failed("cancelled", "The call was stopped before it was answered.")
    if stop_reason in _FAILURES:
        return failed(_FAILURES[stop_reason], _failure_sentence(answer))
    if not answer.content and stop_reason is LlmStopReason.SAFETY:
        return failed("llm_error", "The model could not answer: its provider's content filter stopped it.")
    if answer.first_text() == _ROUTER_WITHOUT_MODEL:
        return failed(
            "llm_error", "The model could not answer: the agent that chooses who answers got no choice from it."
        )
    text_first = sorted(answer.content, key=lambda block: not isinstance(block, TextContent))
    stopped: Stop | None = "max_iterations" if stop_reason is LlmStopReason.MAX_ITERATIONS else None
    return Reply(tuple(text_first), stop_reason.value, stopped=stopped)


def failed(reason: str, sentence: str) -> Reply:
    """The reply of a failed call: one sentence, in which keys that a provider may quote are hidden."""
    return Reply((TextContent(type="text", text=cleaned(sentence)),), reason, failure=reason)


# fast-agent's router answers with this if its model fails.
_ROUTER_WITHOUT_MODEL = "No routing response received from LLM"
STOPPED_AT_LIMIT = "[Stopped: the agent reached its limit of steps for one call. This answer is partial.]"


STOPPED = "[Stopped: "
"""The beginning of the sentence that ends a partial answer."""


def deadline_reply(seconds: float, texts: Sequence[str]) -> Reply:
    """The successful reply of a call at its deadline, with what the agent and those that it has called have said."""
    return _partial("deadline", f"the agent did not finish within its {seconds:g} s for one call", texts)


def stopped_reply(ended: Ended, texts: Sequence[str]) -> Reply:
    """The successful reply of a call that a budget has ended, likewise."""
    return _partial(ended.stop, ended.sentence, texts)


def _partial(stop: Stop, why: str, texts: Sequence[str]) -> Reply:
    text = f"{STOPPED}{why}. {'This answer is partial' if texts else 'There is no answer yet'}.]"
    content = tuple(TextContent(type="text", text=one) for one in (*texts, text))
    reason = LlmStopReason.END_TURN.value if stop == "deadline" else stop
    return Reply(content, reason, halted=(stop,), stopped=stop)


def turn_of(turn: FastAgentTurn, estimated_output: int | None = None) -> TurnUsage:
    """Convert the usage of one LLM turn; `estimated_output` takes the place of a number that was not sent."""
    cache_read, cache_write = turn.prompt.cache_read or 0, turn.prompt.cache_write or 0
    uncached = turn.prompt.uncached
    if uncached is None:  # `total` includes cached tokens
        uncached = max(0, (turn.prompt.total or 0) - cache_read - cache_write)
    output = turn.completion.total if estimated_output is None else estimated_output
    usage = Usage(
        _cut(uncached),
        _cut(output),
        _cut(cache_read),
        _cut(cache_write),
        _cut(turn.completion.reasoning),
        estimated=estimated_output is not None,
    )
    caches_by_itself = turn.usage_schema not in _CACHED_ON_REQUEST
    return TurnUsage(model_shown(turn.model), usage, caches_by_itself, turn.provider.config_name)


def _cut(tokens: int | None) -> int:
    return min(tokens or 0, MOST_TOKENS)


def model_shown(name: str) -> str:
    """Return the name of a model for metrics: without the prefixes that are no part of it."""
    return name.removeprefix(OF_TENSORZERO).rpartition(_OF_VERTEX)[2]


def _failure_sentence(answer: PromptMessageExtended) -> str:
    blocks = (answer.channels or {}).get(FAST_AGENT_ERROR_CHANNEL) or answer.content
    detail = " ".join((get_text(blocks[0]) or "").split()) if blocks else ""
    detail = shortened(detail, _SHOWN_ERROR_CHARACTERS - 1)
    return f"The model could not answer: {detail or 'no reason was given'}"
