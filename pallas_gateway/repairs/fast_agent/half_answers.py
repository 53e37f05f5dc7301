"""Half an answer is a whole one.

Symptom: a proxy whose server dies ends the body, and fast-agent returns the beginning as the answer (chat
completions, Anthropic, Gemini).

Repair: the turn fails with `llm_error`, "the provider's answer ended early". A chat completion is complete with a
`finish_reason` or `[DONE]`. A body without any event is "not a complete answer". A server that sends only pings
counts as silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import wraps
from time import monotonic
from typing import Any

from pallas_gateway.calls.current import current_turn
from pallas_gateway.calls.provider_failures import ended_early, incomplete
from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.limits import AFTER_LAST_SECONDS, BUSY_SECONDS

_PROVIDERS = "fast_agent.llm.provider"
_TAKES = ("self", "stream", "model")
_LAST_RESPONSE_EVENTS = frozenset({"response.completed", "response.done", "response.incomplete"})
_PINGS = ("ping", "keepalive")
CHANGE = Change(
    "half-answers",
    REPAIR,
    ("fast-agent-mcp", "openai"),
    seen_in="0.10.48",
    when=Loaded(_PROVIDERS),
    replaces=(
        Name(f"{_PROVIDERS}.openai.llm_openai:OpenAILLM._process_stream", _TAKES, by="chat_completion"),
        Name(f"{_PROVIDERS}.anthropic.llm_anthropic:AnthropicLLM._process_stream", _TAKES, by="message"),
        Name(f"{_PROVIDERS}.openai.responses_streaming:ResponsesStreamingMixin._process_stream", _TAKES, by="response"),
        Name(
            f"{_PROVIDERS}.openai.openresponses_streaming:OpenResponsesStreamingMixin._process_stream",
            _TAKES,
            by="response",
        ),
        Name(
            f"{_PROVIDERS}.google.llm_google_native:GoogleNativeLLM._consume_google_stream",
            ("self", "response_stream", "model", "capture_base"),
            by="candidates",
        ),
        Name("openai._streaming:AsyncStream._iter_events", ("self",), by="noting_done"),
    ),
    gone_when="fast-agent's `_process_stream` and `_consume_google_stream` raise over such a stream",
    script="fast_agent_half_answer.py",
)


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
            by = loop.time() + self._after_last_seconds if is_whole else begin_by
            try:
                event = await (anext(events) if by is None else _next(events, by))  # most need no timer
            except StopAsyncIteration:
                break
            except TimeoutError:
                if not is_whole:
                    raise
                break
            begin_by = begin_by if begin_by is not None and _is_ping(event) else None
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


async def _next(events: AsyncIterator[Any], by: float) -> Any:
    async with asyncio.timeout_at(by):
        return await anext(events)


def _is_ping(event: Any) -> bool:
    """Return True for an event without content: by its type, or a chunk of a chat completion without choices."""
    return getattr(event, "type", None) in _PINGS or getattr(event, "choices", event) in ([], None)


def chat_completion(original: Any, holder: Any) -> Any:
    """Require a finish reason or `[DONE]`."""
    del holder

    def is_last(chunk: Any) -> bool:
        choices: Any = getattr(chunk, "choices", None)
        return bool(choices) and choices[0].finish_reason is not None

    return _requiring(is_last, original, may_be_empty=True)  # it is asked for again


def message(original: Any, holder: Any) -> Any:
    """Require Anthropic's last event."""
    del holder
    return _requiring(lambda event: bool(event.type == "message_stop"), original)


def response(original: Any, holder: Any) -> Any:
    """Require a last event of the Responses API."""
    del holder
    return _requiring(lambda event: getattr(event, "type", None) in _LAST_RESPONSE_EVENTS, original)


def _requiring(is_last: Callable[[Any], bool], original: Any, *, may_be_empty: bool = False) -> Any:
    @wraps(original)
    async def process_stream(self: Any, stream: Any, *arguments: Any, **options: Any) -> Any:
        whole = WholeStream(stream, is_last, may_be_empty=may_be_empty, patience=current_turn().patience)
        return await original(self, whole, *arguments, **options)

    return process_stream


def candidates(original: Any, holder: Any) -> Any:
    """Require a finish reason of Gemini's, or a refused prompt, which has no candidates."""
    del holder

    def is_last(chunk: Any) -> bool:
        found = chunk.candidates or ()
        return any(one.finish_reason is not None for one in found) or chunk.prompt_feedback is not None

    @wraps(original)
    async def consume(self: Any, response_stream: Any, **options: Any) -> Any:
        return await original(self, WholeStream(response_stream, is_last), **options)

    return consume


def noting_done(original: Any, holder: Any) -> Any:
    """Record on a stream of OpenAI's library that its provider has sent `[DONE]`, which the library keeps to itself."""
    del holder

    async def iter_events(self: Any) -> AsyncIterator[Any]:
        async for event in original(self):
            self.is_done = getattr(self, "is_done", False) or event.data.startswith("[DONE]")
            yield event

    return iter_events
