"""Runs of text in a streamed chat completion, accumulated at once, and chunks known by their class.

Imported once an LLM is used.

For models that it knows, fast-agent has OpenAI's library add each chunk to a whole completion, which is used at the end
only. For every chunk the library makes a dict of the message so far and a message of the dict, and events that
fast-agent does not read. Here chunks that only continue a text wait, and are accumulated as one. All other chunks go to
the library at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import Choice, ChoiceDelta

if TYPE_CHECKING:
    from pallas_gateway.runtime.compat.requirements import ReliedOn

RELIED_ON: ReliedOn = (
    (ChatCompletionStreamState, "handle_chunk", ("self", "chunk")),
    (ChatCompletionStreamState, "current_completion_snapshot", ()),
    (ChatCompletionStreamState, "get_final_completion", ("self",)),
)
_STATE = "ChatCompletionStreamState"
_PROTOCOLS = ("_OpenAIUsageHolder", "_OpenAIChoicesHolder")
"""Protocols of fast-agent's module that each chunk is checked against, attribute by attribute."""
_REPLACED = ("index", "type")
"""Strings of a delta that the library does not add to those before."""


def install(module: Any) -> None:
    """Have a provider's module of fast-agent accumulate its streams here; safe to call again."""
    if getattr(module, _STATE, None) is ChatCompletionStreamState:
        setattr(module, _STATE, RunsState)
    for name in _PROTOCOLS:
        protocol = getattr(module, name, None)
        if isinstance(protocol, type):
            setattr(module, name, (ChatCompletionChunk, protocol))


class RunsState(ChatCompletionStreamState[Any]):
    """The library's state of a stream, without the events that it makes for each chunk."""

    def __init__(self) -> None:
        super().__init__()
        self._has_begun = False
        self._run: _Run | None = None

    def handle_chunk(self, chunk: ChatCompletionChunk) -> list[Any]:
        """Take a chunk."""
        name = _continued(chunk) if self._has_begun else None
        if name is not None and self._run is not None and self._run.goes_on(name, chunk):
            self._run.add(chunk)
            return []
        self._end_run()
        if name is not None:
            self._run = _Run(name, chunk)
        else:
            self._has_begun = True  # the first chunk makes the completion
            super().handle_chunk(chunk)
        return []

    @property
    def current_completion_snapshot(self) -> Any:
        """The completion so far."""
        self._end_run()
        return super().current_completion_snapshot

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            super().handle_chunk(run.whole())


class _Run:
    """Chunks that continue one text, `name` of a delta."""

    def __init__(self, name: str, chunk: ChatCompletionChunk) -> None:
        self._name = name
        self._last = chunk
        self._pieces: list[str] = [getattr(chunk.choices[0].delta, name)]

    def goes_on(self, name: str, chunk: ChatCompletionChunk) -> bool:
        """Return True if the chunk differs from the last one in the piece of text only, as far as it is accumulated."""
        given, before = chunk.choices[0].delta, self._last.choices[0].delta
        return name == self._name and given.model_fields_set == before.model_fields_set

    def add(self, chunk: ChatCompletionChunk) -> None:
        self._last = chunk  # of which the library keeps `usage` and `system_fingerprint`
        self._pieces.append(getattr(chunk.choices[0].delta, self._name))

    def whole(self) -> ChatCompletionChunk:
        """One chunk for all of them."""
        choice = self._last.choices[0]
        delta = choice.delta.model_copy(update={self._name: "".join(self._pieces)})
        return self._last.model_copy(update={"choices": [choice.model_copy(update={"delta": delta})]})


def _continued(chunk: ChatCompletionChunk) -> str | None:
    """The name of the one text that a chunk continues; None if it does anything else."""
    if type(chunk) is not ChatCompletionChunk or chunk.moderation is not None or type(chunk.choices) is not list:
        return None
    if len(chunk.choices) != 1 or not _is_plain(choice := chunk.choices[0]):
        return None
    fields, more = choice.delta.__dict__, choice.delta.__pydantic_extra__ or {}
    given = [(name, value) for each in (fields, more) for name, value in each.items() if value is not None]
    if len(given) != 1:
        return None
    name, value = given[0]
    return name if type(value) is str and name not in _REPLACED else None


def _is_plain(choice: Choice) -> bool:
    return (
        type(choice) is Choice
        and type(choice.delta) is ChoiceDelta
        and choice.index == 0
        and choice.finish_reason is None
        and choice.logprobs is None
        and not choice.model_extra
    )
