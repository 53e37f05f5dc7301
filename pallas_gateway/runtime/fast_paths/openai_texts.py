"""Events of a streamed chat completion that only continue its text, joined before they are parsed.

Imported once an LLM is used.

Events that were read together differ in a few letters. Those that have the bytes of an earlier event around another
text become one event, so that the library and fast-agent handle one chunk for all of them. The first event of each form
is parsed by itself, which shows that it is nothing but text. fast-agent takes a text that begins with all text before
it for a repetition, so a text that is not shorter than that is left alone, unless its first letter is another one.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from fast_agent.llm.provider.openai.llm_openai import OpenAILLM
from openai.types.chat import ChatCompletionChunk

from pallas_gateway.runtime.fast_paths.delta_events import INSIDE_OF_STRING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pallas_gateway.runtime.compat.requirements import ReliedOn

RELIED_ON: ReliedOn = ((OpenAILLM, "_extract_incremental_delta", ("delta", "cumulative")),)
_CONTENT = re.compile(rb'"content"\s*:\s*"')
_NAME = b'"content"'
_TEXT = re.compile(INSIDE_OF_STRING)
_PADDING = re.compile(rb'("obfuscation"\s*:\s*")[^"\\]*')
"""OpenAI's random letters, which hide the lengths of texts on the network."""
_PADDED = b'"obfuscation"'
_ROLES = (None, "assistant")


def accelerate(stream_class: type[Any]) -> type[Any]:
    """A class of streams that joins such events."""
    return type(stream_class.__name__, (_Joining, stream_class), {})


class _Joining:
    """Goes before the class of a stream."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._texts = Texts()

    def _ended_by(self: Any, piece: bytes) -> Iterator[Any]:
        events: Iterator[Any] = super()._ended_by(piece)  # type: ignore[misc]
        joined: Iterator[Any] = self._texts.joined(events)
        return joined

    def _chunk(self: Any, event: Any) -> ChatCompletionChunk | None:
        chunk: ChatCompletionChunk | None = super()._chunk(event)  # type: ignore[misc]
        if chunk is not None:
            self._texts.learn(event, chunk)
        return chunk


class Texts:
    """The texts of one stream."""

    def __init__(self) -> None:
        self._head: bytes | None = None  # of an event that is only text, up to its text
        self._tail = b""
        self._unknown: object = None  # the latest event of another form
        self._characters = 0  # of the text so far, at least
        self._begin: bytes | None = None  # of the text so far, its first byte; empty if that is not known

    def joined[T](self, events: Iterable[T]) -> Iterator[T | bytes]:
        """Yield the events, with those that follow each other and only continue the text as one."""
        run: list[bytes] = []
        length = 0
        for event in events:
            text = self._text_of(event)
            characters = _characters(text) if text is not None else None
            if run and (text is None or characters is None or not self._continues(run[0], length, text, characters)):
                yield self._whole(run)
                self._characters += length
                run, length = [], 0
            if text is None or characters is None:
                self._unknown = event
                yield event
            elif run or characters < self._characters or self._differs(text):
                run.append(text)
                length += characters
            else:
                self._characters = characters
                self._note_begin(text)
                yield event
        if run:
            yield self._whole(run)
            self._characters += length

    def _continues(self, first: bytes, length: int, text: bytes, characters: int) -> bool:
        """Return True if neither `text` nor the texts since `first` with it can repeat all text before them."""
        if length + characters < self._characters:
            return True
        return self._differs(first) and (characters < self._characters + length or self._differs(text))

    def _differs(self, text: bytes) -> bool:
        """Return True if a text begins with another letter than all text before it."""
        return bool(self._begin and text) and text[:1] not in {self._begin, b"\\"}

    def _note_begin(self, text: bytes) -> None:
        if self._begin is None and text:
            self._begin = b"" if text[:1] == b"\\" else text[:1]

    def learn(self, event: object, chunk: ChatCompletionChunk) -> None:
        """Take the form of an event, if it has another one, from the chunk that it is."""
        if event is not self._unknown or not isinstance(event, bytes):
            return
        if (text := _only_text(chunk)) is None:
            if any(choice.delta.content for choice in chunk.choices):
                self._begin = self._begin or b""
            return
        characters = len(text)
        self._characters = characters + (self._characters if characters < self._characters else 0)
        begin = _CONTENT.search(event)
        is_known = begin is not None and event.count(_NAME) == 1 and self._take_form(event, begin.end(), text)
        if not is_known:
            self._begin = self._begin or b""

    def _take_form(self, event: bytes, begin: int, text: str) -> bool:
        head, tail = event[:begin], event[_end_of_text(event, begin) :]
        inside = event[len(head) : len(event) - len(tail)]
        if b"\\" in head + tail or json.loads(b'"%b"' % inside) != text:
            return False
        self._head, self._tail = head, _unpadded(tail)
        self._note_begin(inside)
        return True

    def _text_of(self, event: object) -> bytes | None:
        """The text of an event of the known form, as in JSON."""
        if self._head is None or not isinstance(event, bytes) or not event.startswith(self._head):
            return None
        begin = len(self._head)
        end = _end_of_text(event, begin)
        return event[begin:end] if _unpadded(event[end:]) == self._tail else None

    def _whole(self, run: list[bytes]) -> bytes:
        return b"".join((self._head or b"", *run, self._tail))


def _end_of_text(event: bytes, begin: int) -> int:
    found = _TEXT.match(event, begin)
    return found.end() if found is not None else begin


def _unpadded(tail: bytes) -> bytes:
    return _PADDING.sub(rb"\1", tail) if _PADDED in tail else tail


def _characters(text: bytes) -> int | None:
    """The number of characters of a text in JSON; None if it is not UTF-8, which the library refuses."""
    try:
        characters = text.decode()
    except UnicodeDecodeError:
        return None
    return len(characters if "\\" not in characters else json.loads(f'"{characters}"'))


def _only_text(chunk: ChatCompletionChunk) -> str | None:
    """The text of a chunk if it has nothing else that is used; None otherwise."""
    if type(chunk) is not ChatCompletionChunk or len(chunk.choices) != 1:
        return None
    choice = chunk.choices[0]
    delta = {**dict(choice.delta), **(choice.delta.model_extra or {})}
    text, role = delta.pop("content"), delta.pop("role")
    others = (choice.finish_reason, choice.logprobs, choice.index, *(choice.model_extra or {}).values())
    is_plain = type(text) is str and role in _ROLES and not any(others) and not any(delta.values())
    return text if is_plain else None
