"""The steps of a call as they are stored, and what the model reads of them in later turns.

A step is a round of tools: a message of the model with tool calls, and the results. It is stored as fast-agent's own
messages: besides the text, they have what a provider requires, such as ids, signatures of thinking and reasoning items.
Another provider, or another model where these belong to one model, reads the same as text: it would refuse the rest.

Within a call fast-agent keeps the contents of Google's own API in the memory of its LLM, and sends these: of earlier
turns it sends neither tool calls nor signatures. So a call whose history has steps begins with that memory: the stored
contents, with the signatures that a model gave its tool calls.

What is stored is cut, and has no token or key that the call knows. Signed parts are never changed: a step in which one
would have to be is stored for reading as text.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

from fast_agent.constants import (
    ANTHROPIC_ASSISTANT_RAW_CONTENT,
    OPENAI_ASSISTANT_MESSAGE_ITEMS,
    OPENAI_REASONING_ENCRYPTED,
    REASONING,
)
from fast_agent.mcp.helpers.content_helpers import canonicalize_tool_result_content_for_llm, get_text
from fast_agent.types import PromptMessageExtended
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import TypeAdapter
from pydantic_core import from_json

from pallas_gateway.calls.call import Step
from pallas_gateway.runtime.call.messages import to_fast_agent
from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_types import ContentBlock

    from pallas_gateway.calls.call import Message, StepLog
    from pallas_gateway.tasks import Parts

    type Json = dict[str, Any]

CONTENT = "pallas-google-content"
"""The channel of a message with its content in Google's API, as JSON."""
_GOOGLE = "google"
_OF_ONE_MODEL = (ANTHROPIC_ASSISTANT_RAW_CONTENT, OPENAI_REASONING_ENCRYPTED, OPENAI_ASSISTANT_MESSAGE_ITEMS, CONTENT)
"""Channels with parts that are signed or encrypted for one model."""
_SIGNED = ("thinking", "redacted_thinking", "reasoning")
_MOST_OF_CHANNELS = 256 * 1024
_CUT = "… [cut: {} bytes]"
_LEAST = 32
"""Bytes that a block must have left, to say that it was cut."""
_MISSING = "[The call was ended before the result of this tool was read.]"
_RECORD = "[Tools that were used for this answer. This is a record; to use a tool, call it.]"
_AT_ONCE = 50
"""Messages of a history, between two pauses."""
_SHORTER = (4, 16, 64, 256)
_log = logging.getLogger("pallas.runtime")


@dataclass(slots=True)
class _Round:
    """A round whose results are not there yet; `assistant` is a copy: a tool may change its arguments."""

    provider: str
    model: str
    assistant: Json
    tools: Mapping[str, str]


class _StoredRound(TypedDict):
    assistant: PromptMessageExtended
    results: PromptMessageExtended


class StepRecorder:
    """Records the rounds of one call."""

    def __init__(self, log: StepLog) -> None:
        self._log = log
        self._open: dict[object, _Round] = {}

    def begin(self, loop: object, llm: Any, message: PromptMessageExtended, tools: Mapping[str, str]) -> None:
        """Note that a model asks for tools; `tools` are their names by the ids of the calls."""
        if llm is None:
            return
        kept = {
            name: blocks for name, blocks in (message.channels or {}).items() if name in (*_OF_ONE_MODEL, REASONING)
        }
        if (content := content_channel(llm, message)) is not None:
            kept[CONTENT] = content
        if ANTHROPIC_ASSISTANT_RAW_CONTENT in kept or CONTENT in kept:
            kept.pop(REASONING, None)  # which is for people to read
        texts = [block for block in message.content if isinstance(block, TextContent)]
        copied = message.model_copy(update={"content": texts, "channels": kept or None, "timestamp": None})
        provider = llm.provider.config_name
        try:
            wire = _wire(copied)
        except ValueError:  # arguments of a tool are nested deeper than pydantic writes: the call goes on
            _log.warning("step not kept, nested too deeply", extra={"provider": provider})
            return
        self._open[loop] = _Round(provider, llm.model_name or "", wire, tools)

    def end(self, loop: object, results: Mapping[str, CallToolResult]) -> None:
        """Store the round of a loop with its results; one that has none is completed."""
        if (round_ := self._open.pop(loop, None)) is not None:
            self._log.add(_stored(round_, results, self._log.most_bytes))

    def close(self) -> None:
        """Store the rounds whose results will not come."""
        for loop in [*self._open]:
            self.end(loop, {})


def replayed(messages: Sequence[Message], llm: Any, *, offers_tools: bool) -> Parts[list[PromptMessageExtended]]:
    """Return a history for a model; with its steps in fast-agent's own messages where the model can read them.

    A provider refuses tool calls in a request that offers no tools.
    """
    history: list[PromptMessageExtended] = []
    seen: set[str] = set()
    reader = (llm.provider.config_name, llm.model_name) if offers_tools and llm is not None else None
    for number, message in enumerate(messages, 1):
        rounds = _own_messages(message.steps, reader, seen) if reader is not None and message.steps else None
        history += rounds or ()
        answer = to_fast_agent(message)
        if message.steps and rounds is None:
            record = TextContent(type="text", text="\n\n".join(filter(None, (_as_text(message.steps), message.text))))
            answer.content = [record, *answer.content[1:]]
        history.append(answer)
        if number % _AT_ONCE == 0:
            yield
    return history


def has_steps(messages: Sequence[Message]) -> bool:
    return any(message.steps for message in messages)


def _own_messages(
    steps: Sequence[Step], reader: tuple[str, str | None], seen: set[str]
) -> list[PromptMessageExtended] | None:
    """Return the rounds of a turn as fast-agent's messages; None if the provider and model cannot read one of them."""
    provider, model = reader
    if any(step.provider != provider for step in steps):
        return None
    rounds: list[PromptMessageExtended] = []
    ids: set[str] = set()
    for step in steps:
        try:
            assistant, results = _messages_of(step)
        except ValueError:
            # Another version stored it; the model reads its text.
            _log.warning("stored step not understood, read as text", extra={"provider": step.provider})
            return None
        if step.model != model:
            if any(name in (assistant.channels or {}) for name in _OF_ONE_MODEL):
                return None
            assistant.channels = None
        called = assistant.tool_calls or {}
        # A local server may count from one in each request.
        if not (seen.isdisjoint(called) and ids.isdisjoint(called)):
            return None
        ids.update(called)
        rounds += (assistant, results)
    seen |= ids
    return rounds


def _messages_of(step: Step) -> tuple[PromptMessageExtended, PromptMessageExtended]:
    """Return the messages of a stored round.

    Raises:
        ValueError: another version has stored it in another form.
    """
    stored = _stored_rounds().validate_json(step.data)
    assistant, results = stored["assistant"], stored["results"]
    if assistant.tool_calls is None or (results.tool_results or {}).keys() != assistant.tool_calls.keys():
        raise ValueError("not each call has its result")
    return assistant, results


@cache
def _stored_rounds() -> TypeAdapter[_StoredRound]:
    """Return what makes messages of JSON at once; of parts that are read before, each would be checked again."""
    return TypeAdapter(_StoredRound)


def _as_text(steps: Sequence[Step]) -> str:
    lines = [_RECORD]
    for step in steps:
        try:
            stored = from_json(step.data)
            assistant, results = stored["assistant"], stored["results"]["tool_results"]
            lines += [block["text"] for block in assistant.get("content", ()) if block.get("text")]
            for id_, call in assistant["tool_calls"].items():
                arguments = json.dumps(call["params"].get("arguments", {}), ensure_ascii=False)
                said = "failed" if results[id_].get("isError") else "returned"
                text = "\n".join(_shown(block) for block in results[id_]["content"])
                lines.append(f"{stored['tools'].get(id_, call['params']['name'])} {arguments} {said}:\n{text}")
        except (ValueError, KeyError, TypeError, AttributeError):
            # Tool calls of an earlier turn are left out.
            _log.warning("stored step not readable", extra={"provider": step.provider})
    return "\n\n".join(lines)


def _shown(block: Json) -> str:
    return str(block["text"]) if block.get("type") == "text" else f"[{block.get('mimeType', 'image')}]"


def _stored(round_: _Round, results: Mapping[str, CallToolResult], most: int) -> Step:
    assistant: Json = dict(round_.assistant)
    channels = assistant.pop("channels", None)
    assistant = cleaned_data(assistant)
    calls: dict[str, Json] = assistant["tool_calls"]
    for call in calls.values():
        call["params"]["arguments"] = _cut_arguments(call["params"].get("arguments") or {}, most)
        call["params"].pop("_meta", None)
    assistant["content"] = [{"type": "text", "text": _cut_text(one["text"], most)} for one in assistant["content"]]
    kept = _kept_channels(channels, calls) if channels else None
    if kept:
        assistant["channels"] = kept
    answered = {id_: _wire(_cut_result(results.get(id_), most)) for id_ in calls}
    stored = {
        "assistant": assistant,
        "results": {"role": "user", "content": [], "tool_results": answered},
        "tools": dict(round_.tools),
    }
    data = json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()
    provider = round_.provider if kept is not None or not channels else ""
    return Step(provider, round_.model, data)


def _kept_channels(channels: Json, calls: Mapping[str, Json]) -> Json | None:
    """Return the channels with the arguments as they are stored; None if a signed part would change, or is too long."""
    kept: Json = {}
    size = 0
    for name, blocks in channels.items():
        kept[name] = []
        for block in blocks:
            text = block["text"] if name == REASONING else _kept_block(block["text"], calls)
            if text is None:
                return None
            text = cleaned_data(text) if name == REASONING else text
            size += len(text)
            kept[name].append({"type": "text", "text": text})
    return kept if size <= _MOST_OF_CHANNELS else None


def _kept_block(text: str, calls: Mapping[str, Json]) -> str | None:
    block: Json = json.loads(text)
    if block.get("type") == "tool_use" and block.get("id") in calls:
        block["input"] = calls[block["id"]]["params"]["arguments"]
    for part in block.get("parts", ()):  # of a content of Google's
        if (call := part.get("function_call")) is not None and call.get("id") in calls:
            call["args"] = calls[call["id"]]["params"]["arguments"]
    cleaned = cleaned_data(block)
    is_signed = block.get("type") in _SIGNED or "item" in block
    return None if is_signed and cleaned != block else json.dumps(cleaned, ensure_ascii=False, separators=(",", ":"))


def _cut_result(result: CallToolResult | None, most: int) -> CallToolResult:
    """Return a result as the model reads it, cut to `most` bytes; an image is kept whole or not at all."""
    if result is None:
        return CallToolResult(content=[TextContent(type="text", text=_MISSING)], is_error=True)
    blocks: list[ContentBlock] = []
    left = most
    for block in canonicalize_tool_result_content_for_llm(result, source="threads"):
        if left <= _LEAST:
            break
        kept = _cut_block(block, left)
        left -= len(kept.text.encode("utf-8", "replace")) if isinstance(kept, TextContent) else len(kept.data)
        blocks.append(kept)
    return CallToolResult(content=blocks, is_error=result.is_error)


def _cut_block(block: ContentBlock, most: int) -> TextContent | ImageContent:
    if isinstance(block, ImageContent):
        if len(block.data) <= most:
            return ImageContent(type="image", data=block.data, mime_type=block.mime_type)
        text = f"[{block.mime_type}: not kept, {len(block.data)} bytes]"
    elif isinstance(block, EmbeddedResource) and isinstance(block.resource, BlobResourceContents):
        text = f"[{block.resource.mime_type or 'binary'}: not kept, {len(block.resource.blob)} bytes]"
    elif isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
        text = block.resource.text
    elif isinstance(block, ResourceLink):
        text = f"[{block.name}]({block.uri})"
    else:
        text = get_text(block) or f"[{getattr(block, 'mime_type', block.type)}: not kept]"
    return TextContent(type="text", text=_cut_text(cleaned_data(text), most))


def _cut_text(text: str, most: int) -> str:
    whole = text.encode("utf-8", "replace")
    if len(whole) <= most:
        return text
    note = _CUT.format(len(whole))
    return whole[: max(most - len(note.encode()), 0)].decode("utf-8", "ignore") + note


def _cut_arguments(arguments: Json, most: int) -> Json:
    """Return arguments whose JSON has at most `most` bytes: their long texts are cut first."""
    if (size := _size(arguments)) <= most:
        return arguments
    for part in _SHORTER:
        cut: Json = _with_short_texts(arguments, max(most // part, len(_CUT) + 8))
        if _size(cut) <= most:
            return cut
    return {"cut": _cut_text(json.dumps(arguments, ensure_ascii=False), most // 2), "bytes": size}


def _with_short_texts(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return _cut_text(value, most)
    if isinstance(value, dict):
        return {key: _with_short_texts(one, most) for key, one in value.items()}
    return [_with_short_texts(one, most) for one in value] if isinstance(value, list) else value


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _wire(value: Any) -> Json:
    wire: Json = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return wire


def content_channel(llm: Any, message: PromptMessageExtended) -> list[TextContent] | None:
    """Return the channel of a message that Google's API has just answered; None if it has no signature to keep."""
    if llm.provider.config_name != _GOOGLE or not (contents := llm.history.get()):
        return None
    content = contents[-1].model_dump(mode="json", exclude_none=True)
    parts = content.get("parts", ())
    called = {part["function_call"].get("id") for part in parts if "function_call" in part}
    if called != {*(message.tool_calls or {})} or not any("thought_signature" in part for part in parts):
        return None
    return [TextContent(type="text", text=json.dumps({"role": "model", "parts": parts}))]


def load_contents(llm: Any, history: Sequence[PromptMessageExtended]) -> None:
    """Begin the memory of Google's LLM with a history; without effect on others."""
    if llm.provider.config_name != _GOOGLE or not any(message.tool_calls for message in history):
        return
    from google.genai import types  # noqa: PLC0415  of this provider only

    contents: list[Any] = []
    names: dict[str, str] = {}
    for message in history:
        if message.tool_calls:
            names = {id_: call.params.name for id_, call in message.tool_calls.items()}
            contents.append(_content_of(types, llm, message))
        elif message.tool_results:
            results = [(names[id_], id_, result) for id_, result in message.tool_results.items()]
            contents += llm._converter.convert_function_results_to_google(results)
        else:
            contents += llm._converter.convert_to_google_content([message])
    llm.history.set(contents)


def _content_of(types: Any, llm: Any, message: PromptMessageExtended) -> Any:
    if (stored := (message.channels or {}).get(CONTENT)) and isinstance(stored[0], TextContent):
        return types.Content.model_validate_json(stored[0].text)
    texts = llm._converter.convert_to_google_content([message])
    parts = [part for content in texts for part in content.parts]
    for id_, call in (message.tool_calls or {}).items():
        called = types.FunctionCall(id=id_, name=call.params.name, args=call.params.arguments or {})
        parts.append(types.Part(function_call=called))
    return types.Content(role="model", parts=parts)
