"""Streamed answers that end before their end: a failure of the provider, where fast-agent takes them for whole.

A proxy whose server dies ends the body as if that were all. What was streamed until then has reached the client.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.errors import CallFailedError
from pallas_gateway.runtime.relied_on import check_names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pallas_gateway.runtime.relied_on import ReliedOn

_STREAMS: ReliedOn = (
    ("fast_agent.llm.provider.openai.llm_openai:OpenAILLM", "_process_stream", ("self", "stream", "model")),
    ("fast_agent.llm.provider.anthropic.llm_anthropic:AnthropicLLM", "_process_stream", ("self", "stream", "model")),
)


def ended_early() -> CallFailedError:
    """The failure of a turn whose answer has no end."""
    return CallFailedError("the provider's answer ended early", reason="llm_error")


class WholeStream:
    """A stream that must hold its last event, unless it holds none at all, which fast-agent asks for again."""

    def __init__(self, stream: Any, is_last: Callable[[Any], bool]) -> None:
        self._stream = stream
        self._is_last = is_last

    def __getattr__(self, name: str) -> Any:
        """As the stream itself."""
        return getattr(self._stream, name)

    async def __aiter__(self) -> AsyncIterator[Any]:
        """The events.

        Raises:
            CallFailedError: `llm_error`; there are no more, and the last one has not come.
        """
        is_whole, event = False, None
        async for event in self._stream:
            is_whole = is_whole or self._is_last(event)
            yield event
        if event is not None and not is_whole and not getattr(self._stream, "is_done", False):
            raise ended_early()


def require_ends(llm_class: type[Any]) -> None:
    """Have a provider's class of fast-agent refuse streams without an end; safe to call again."""
    reader = _READERS.get(llm_class.__name__)
    if reader is None or hasattr(llm_class._process_stream, "original"):
        return
    check_names(tuple(one for one in _STREAMS if one[0].endswith(f":{llm_class.__name__}")))
    original = llm_class._process_stream

    @wraps(original)
    async def process_stream(self: Any, stream: Any, *arguments: Any, **options: Any) -> Any:
        return await original(self, WholeStream(stream, reader()), *arguments, **options)

    process_stream.original = original  # type: ignore[attr-defined]
    llm_class._process_stream = process_stream


def _chat_completions() -> Callable[[Any], bool]:
    """Those end with `[DONE]` as well; some servers send only one of both. The chunks' tool calls are corrected."""
    from pallas_gateway.runtime.llm_tool_calls import ToolCalls  # noqa: PLC0415  not before an LLM is used

    calls = ToolCalls()

    def is_last(chunk: Any) -> bool:
        choices: Any = getattr(chunk, "choices", None)
        if not choices:
            return False
        calls.settle(choices[0])
        return choices[0].finish_reason is not None

    return is_last


def _messages() -> Callable[[Any], bool]:
    """Anthropic's."""
    return lambda event: bool(event.type == "message_stop")


_READERS = {"OpenAILLM": _chat_completions, "AnthropicLLM": _messages}
"""By class of fast-agent: for each stream, a function that returns True for the last event."""
