"""Repairs of streamed answers: their tool calls, repeated texts, and answers without their last event.

The last are failures of the provider, which fast-agent treats as complete: a proxy whose server dies ends the body
normally. The pieces before that have already reached the client.
"""

from __future__ import annotations

import asyncio
from functools import wraps
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pallas_gateway.calls.current import current_turn
from pallas_gateway.calls.provider_failures import ended_early, incomplete, reported
from pallas_gateway.errors import CallFailedError
from pallas_gateway.limits import AFTER_LAST_SECONDS, BUSY_SECONDS
from pallas_gateway.runtime.compat.requirements import check_names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pallas_gateway.runtime.compat.requirements import ReliedOn

_PROVIDERS = "fast_agent.llm.provider"
_STREAMS: ReliedOn = tuple(
    (f"{_PROVIDERS}.{place}", "_process_stream", ("self", "stream", "model"))
    for place in (
        "openai.llm_openai:OpenAILLM",
        "anthropic.llm_anthropic:AnthropicLLM",
        "openai.responses_streaming:ResponsesStreamingMixin",
        "openai.openresponses_streaming:OpenResponsesStreamingMixin",
    )
)
_CHUNK: ReliedOn = ((f"{_PROVIDERS}.openai.llm_openai:OpenAILLM", "_process_stream_chunk_common", ("self", "chunk")),)
_LAST_RESPONSE_EVENTS = frozenset({"response.completed", "response.done", "response.incomplete"})
_PINGS = ("ping", "keepalive")
_FAILED_RESPONSE_EVENTS = frozenset({"error", "response.failed"})


class WholeStream:
    """A stream that fails if its last event is missing, or if it brings only pings.

    `may_be_empty` is for streams that fast-agent requests again if they contain no event. `patience` is the time in
    which the first event must come, in seconds: pings of a server that never answers keep its connection alive, and
    the libraries of some providers do not show them.
    """

    def __init__(  # noqa: PLR0913  the times are for tests
        self,
        stream: Any,
        is_last: Callable[[Any], bool],
        *,
        may_be_empty: bool = False,
        patience: float | None = None,
        after_last_seconds: float = AFTER_LAST_SECONDS,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        self._after_last_seconds = after_last_seconds
        self._busy_seconds = busy_seconds
        self._stream = stream
        self._is_last = is_last
        self._may_be_empty = may_be_empty
        self._patience = patience

    def __getattr__(self, name: str) -> Any:
        """Forward to the stream."""
        return getattr(self._stream, name)

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the events.

        Raises:
            CallFailedError: `llm_error`; the stream ended without its last event.
            TimeoutError: it brought only pings for too long.
        """
        is_whole, event, busy = False, None, 0.0
        events = aiter(self._stream)
        loop = asyncio.get_running_loop()
        begin_by = loop.time() + self._patience if self._patience is not None else None
        while True:
            try:
                async with asyncio.timeout_at(loop.time() + self._after_last_seconds if is_whole else begin_by):
                    event = await anext(events)
            except StopAsyncIteration:
                break
            except TimeoutError:
                if not is_whole:
                    raise
                break
            begin_by = begin_by if _is_ping(event) else None
            is_whole = is_whole or self._is_last(event)
            began = monotonic()
            yield event
            busy += monotonic() - began
            if busy > self._busy_seconds:
                busy = 0.0
                await asyncio.sleep(0)
        if event is None and not self._may_be_empty:
            raise incomplete()
        if event is not None and not is_whole and not getattr(self._stream, "is_done", False):
            raise ended_early()


def _is_ping(event: Any) -> bool:
    """Return True for an event without content: by its type, or a chunk of a chat completion without choices."""
    return getattr(event, "type", None) in _PINGS or getattr(event, "choices", event) in ([], None)


def require_ends(llm_class: type[Any]) -> None:
    """Make a provider's class of fast-agent refuse streams without their last event; safe to call again."""
    reader = _READERS.get(llm_class.__name__)
    if reader is None or hasattr(llm_class._process_stream, "original"):
        return
    check_names(tuple(one for one in _STREAMS if one[0].endswith(f":{llm_class.__name__}")))
    original = llm_class._process_stream

    @wraps(original)
    async def process_stream(self: Any, stream: Any, *arguments: Any, **options: Any) -> Any:
        whole = WholeStream(
            stream, reader(), may_be_empty=llm_class.__name__ in _ASKED_AGAIN, patience=current_turn().patience
        )
        return await original(self, whole, *arguments, **options)

    process_stream.original = original  # type: ignore[attr-defined]
    llm_class._process_stream = process_stream


def keep_equal_texts(llm_class: type[Any]) -> None:
    """Make fast-agent's class of chat completions keep a text that equals all text before it; safe to call again.

    fast-agent supports servers that send the whole text again and again, so it drops such a text: the answer "1", "1",
    "2" becomes "12". A chunk with a tool call or a finish reason may still repeat the text.
    """
    original = vars(llm_class).get("_process_stream_chunk_common")
    if original is None or hasattr(original, "original"):
        return
    check_names(_CHUNK)

    def process(self: Any, chunk: Any, *, cumulative_content: str, **options: Any) -> Any:
        if not cumulative_content or not _is_text(chunk, cumulative_content):
            return original(self, chunk, cumulative_content=cumulative_content, **options)
        text, *others = original(self, chunk, cumulative_content="", **options)
        return (cumulative_content + text, *others)

    process.original = original  # type: ignore[attr-defined]
    llm_class._process_stream_chunk_common = process


def _is_text(chunk: Any, text: str) -> bool:
    """Return True for a chunk with this text and nothing else."""
    choice = chunk.choices[0] if chunk.choices else None
    return (
        choice is not None
        and choice.delta.content == text
        and not choice.delta.tool_calls
        and choice.finish_reason is None
    )


def note_ends() -> None:
    """Make streams of the OpenAI library record that their provider has sent `[DONE]`; safe to call again."""
    from openai import AsyncStream  # noqa: PLC0415  not before an LLM is used

    check_names(((AsyncStream, "_iter_events", ("self",)),))
    original = AsyncStream._iter_events
    if hasattr(original, "original"):
        return

    async def iter_events(self: Any) -> AsyncIterator[Any]:
        async for event in original(self):
            self.is_done = getattr(self, "is_done", False) or event.data.startswith("[DONE]")
            yield event

    iter_events.original = original  # type: ignore[attr-defined]
    AsyncStream._iter_events = iter_events  # type: ignore[method-assign]


def _chat_completions() -> Callable[[Any], bool]:
    """Of chat completions: `finish_reason` or `[DONE]`; some servers send only one. Tool calls are corrected."""
    from pallas_gateway.runtime.llm.endings import ToolCalls  # noqa: PLC0415  not before an LLM is used

    calls = ToolCalls()

    def is_last(chunk: Any) -> bool:
        choices: Any = getattr(chunk, "choices", None)
        if not choices:
            return False
        calls.settle(choices[0])
        return choices[0].finish_reason is not None

    return is_last


def _messages() -> Callable[[Any], bool]:
    """Of Anthropic's messages."""
    return lambda event: bool(event.type == "message_stop")


def _responses() -> Callable[[Any], bool]:
    """Of the Responses API."""
    return lambda event: getattr(event, "type", None) in _LAST_RESPONSE_EVENTS


def _open_responses() -> Callable[[Any], bool]:
    """Of `openresponses`; its error events, which fast-agent ignores, raise `CallFailedError` with their message."""

    def is_last(event: Any) -> bool:
        if event.type in _FAILED_RESPONSE_EVENTS:
            error = event if event.type == "error" else event.response.error
            raise CallFailedError(reported(getattr(error, "message", None)), reason="llm_error")
        return event.type in _LAST_RESPONSE_EVENTS

    return is_last


_READERS = {
    "OpenAILLM": _chat_completions,
    "AnthropicLLM": _messages,
    "ResponsesStreamingMixin": _responses,
    "OpenResponsesStreamingMixin": _open_responses,
}
"""By class of fast-agent, a function that makes, for each stream, a predicate for the last event."""
_ASKED_AGAIN = ("OpenAILLM",)


class ToolCalls:
    """Corrects the tool calls of a streamed chat completion to OpenAI's form.

    In that form, each call has an index, which its pieces repeat, and the finish reason is `tool_calls`. Some
    compatible servers send no index or 0 for every call, no ids, a new id with each piece, or the finish reason `stop`.
    fast-agent then drops calls or merges them, without an error.
    """

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._numbers: dict[int | None, int] = {}  # by the server's index, None for the latest call

    def settle(self, choice: Any) -> None:
        """Correct a chunk's first choice in place."""
        for piece in choice.delta.tool_calls or ():
            self._settle(piece)
        if choice.finish_reason == "stop" and self._ids:
            choice.finish_reason = "tool_calls"

    def _settle(self, piece: Any) -> None:
        index = piece.index
        if self._begins(index, piece.id, getattr(piece.function, "name", None)):
            self._numbers[index] = self._numbers[None] = len(self._ids)
            piece.id = piece.id or f"call_{uuid4().hex}"
            self._ids.append(piece.id)
        else:
            piece.id = None
        piece.index = self._numbers[index]

    def _begins(self, index: int | None, call_id: str | None, name: str | None) -> bool:
        number = self._numbers.get(index)
        if number is None:
            return True
        if not name:
            return False  # a new call has a name; a new id alone is no new call
        return call_id != self._ids[number] if call_id else index is None
