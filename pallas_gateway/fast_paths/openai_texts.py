"""Events of a streamed chat completion that only continue its text, joined before they are parsed.

Of events that were read together, those that have the bytes of an earlier event around another text become one event.
A text that fast-agent may take for the whole answer (it has the same first letter, and may be the longer one) is left
alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pallas_gateway.changes.change import FAST_PATH, Change, EachModule, Loaded, Name
from pallas_gateway.fast_paths._joined_events import INSIDE_OF_STRING, joining

_PROVIDERS = "fast_agent.llm.provider"
CHANGE = Change(
    "openai_texts",
    FAST_PATH,
    ("fast-agent-mcp", "openai"),
    when=Loaded(f"{_PROVIDERS}.openai.llm_openai"),
    replaces=(EachModule(_PROVIDERS, "AsyncOpenAI"), EachModule(_PROVIDERS, "AsyncAzureOpenAI")),
    relies_on=(Name(f"{_PROVIDERS}.openai.llm_openai:OpenAILLM._extract_incremental_delta", ("delta", "cumulative")),),
    needs=("delta_events", "repeated-texts"),
    gone_when="fast-agent takes the events that are ready together, with one timer and one log event for them",
)
LONG_BYTES = 65_536
"""An answer with an event without an end after so many bytes is passed on as it is from then on."""
_END = b"\n\n"
_FIELD = b"data:"
_CONTENT = re.compile(rb'"content"\s*:\s*"')
_NAME = b'"content"'
_TEXT = re.compile(INSIDE_OF_STRING)
_PADDING = re.compile(rb'("obfuscation"\s*:\s*")[^"\\]*')
"""OpenAI's random letters, which hide the lengths of texts on the network."""
_PADDED = b'"obfuscation"'
_ROLES = (None, "assistant")


def changed(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """A client of OpenAI's library that joins texts of the answers that it receives."""
    return joining(original, Texts)


class Texts:
    """The texts of one stream."""

    def __init__(self) -> None:
        self._rest = b""  # of an event without its end
        self._is_plain = True  # each event so far is one line of data, or a comment
        self._head: bytes | None = None  # of an event that is only text, up to its text
        self._tail = b""
        self._characters = 0  # of the text so far, at least
        self._is_exact = True  # whether the text so far has just so many
        self._begin: bytes | None = None  # of the text so far, its first byte; empty if that is not known

    def joined(self, data: bytes) -> bytes:
        """Return the events that end with the bytes of one read; those that only continue the text are one."""
        if not self._is_plain:
            return data
        whole, end, rest = (self._rest + data).rpartition(_END)
        if b"\r" in data or len(rest) > LONG_BYTES:
            self._is_plain = False
            return self.left() + data
        self._rest = rest
        return b"".join(event + _END for event in self._joined(whole.split(_END))) if end else b""

    def left(self) -> bytes:
        """Return the beginning of an event without its end."""
        left, self._rest = self._rest, b""
        return left

    def _joined(self, events: Iterable[bytes]) -> Iterator[bytes]:
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
                self._learn(event)
                yield event
            elif run or characters < self._characters or self._differs(text):
                run.append(text)
                length += characters
            else:
                self._count(characters)
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

    def _learn(self, event: bytes) -> None:
        """Take the form of an event of another form, if it is only text."""
        if _NAME not in event and b"\\" not in event:  # which could write the name
            return
        text = _only_text(event)
        if text is None:
            self._begin = self._begin or b""
            self._is_exact = False
            return
        self._count(len(text))
        begin = _CONTENT.search(event)
        if begin is None or event.count(_NAME) != 1 or not self._take_form(event, begin.end(), text):
            self._begin = self._begin or b""

    def _count(self, characters: int) -> None:
        """Count a text. One as long as all before it is a piece, too (`repeated-texts`); a longer one may be all."""
        before, self._characters = self._characters, characters
        if characters < before or (self._is_exact and characters == before):
            self._characters += before
        elif before:
            self._is_exact = False

    def _take_form(self, event: bytes, begin: int, text: str) -> bool:
        head, tail = event[:begin], event[_end_of_text(event, begin) :]
        inside = event[len(head) : len(event) - len(tail)]
        if b"\\" in head + tail or json.loads(b'"%b"' % inside) != text:
            return False
        self._head, self._tail = head, _unpadded(tail)
        self._note_begin(inside)
        return True

    def _text_of(self, event: bytes) -> bytes | None:
        """The text of an event of the known form, as in JSON."""
        if self._head is None or not event.startswith(self._head):
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


def _only_text(event: bytes) -> str | None:
    """The text of an event that is a chunk with nothing else that is used; None of others."""
    if b"\n" in event:  # JSON may have line ends; a line of an event has none
        return None
    try:
        chunk: Any = json.loads(event.removeprefix(_FIELD).decode())
    except (ValueError, RecursionError):
        return None
    match chunk:
        case {"choices": [{"index": 0, "delta": {"content": str() | None as text, **delta}, **choice}]}:
            role = delta.pop("role", None)
            is_plain = role in _ROLES and not any(delta.values()) and not any(choice.values())
            return text or "" if is_plain and not chunk.get("error") else None
    return None
