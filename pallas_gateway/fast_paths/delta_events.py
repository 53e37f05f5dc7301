"""Events of Anthropic's API and of OpenAI's Responses API that continue a text, joined before they are parsed.

Both libraries pass an event through four generators. Consecutive events that were read together and differ only in
their text (of the Responses API also in their number or in random letters) become one event.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import FAST_PATH, Change, EachModule, Loaded
from pallas_gateway.fast_paths._joined_events import INSIDE_OF_STRING, joining

if TYPE_CHECKING:
    from collections.abc import Callable

    type _Event = re.Match[bytes] | bytes

_PROVIDERS = "fast_agent.llm.provider"
CHANGE = Change(
    "delta_events",
    FAST_PATH,
    ("anthropic", "fast-agent-mcp", "openai"),
    when=Loaded(_PROVIDERS),
    replaces=tuple(
        EachModule(_PROVIDERS, name)
        for name in ("AsyncOpenAI", "AsyncAzureOpenAI", "AsyncAnthropic", "AsyncAnthropicVertex")
    ),
    needs=("provider-limits",),
    gone_when="fast-agent takes the events that are ready together, with one timer and one log event for them",
)

_END = b"\n\n"
_ANTHROPIC = re.compile(
    rb'((?:event: content_block_delta\n)?data: \{ *"type": *"content_block_delta", *"index": *\d+, *"delta": *'
    rb'\{ *"type": *"(?:text_delta", *"text|thinking_delta", *"thinking)": *")(%b)(" *\}) *\}' % INSIDE_OF_STRING
)
_MEMBER = (
    rb'"(?:(?:sequence_number|output_index|content_index)": *(?:0|[1-9]\d{0,17}+)(?!\d)'
    rb'|item_id": *"[\w-]*"|obfuscation": *"\w*"|type": *"response\.output_text\.delta"|logprobs": *(?:\[\]|null))'
)
_RESPONSES = re.compile(
    rb'((?:event: response\.output_text\.delta\n)?data: \{ *(?:%b, *)*+"delta": *")(%b)("(?:, *%b)*+ *\})'
    % (_MEMBER, INSIDE_OF_STRING, _MEMBER)
)
"""https://developers.openai.com/api/reference/resources/responses/streaming-events"""
_EVENTS = {b'_delta"': _ANTHROPIC, b'_text.delta"': _RESPONSES}
"""Both kinds of events, by a name that they have."""
_VARYING = re.compile(rb'(?<="sequence_number":) *\d+|(?<="obfuscation":) *"\w*"')


def changed(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """A provider's client that joins events of the answers that it receives."""
    return joining(original, DeltaEvents)


class DeltaEvents:
    """The events of one stream, after decompression."""

    def __init__(self) -> None:
        self._is_at_begin = True  # of an event

    def joined(self, data: bytes) -> bytes:
        """Return the bytes of one read with fewer events. Those of which a part is read before or later stay."""
        is_at_begin, self._is_at_begin = self._is_at_begin, data.endswith(_END)
        pattern = next((pattern for name, pattern in _EVENTS.items() if name in data), None)
        if pattern is None:
            return data
        *blocks, rest = data.split(_END)
        events: list[_Event] = [pattern.fullmatch(block) or block for block in blocks]
        if not is_at_begin:
            events[:1] = blocks[:1]
        runs = (_as_one(list(run)) for _, run in groupby(events, _form))
        return _END.join((*runs, rest))

    def left(self) -> bytes:
        """Nothing is held back."""
        return b""


def _form(event: _Event) -> tuple[bytes, bytes] | None:
    """What is the same in all events of a text; None for other events."""
    return None if isinstance(event, bytes) else (_VARYING.sub(b"", event[1]), _VARYING.sub(b"", event[3]))


def _as_one(run: list[_Event]) -> bytes:
    """One event for all of a run; what is not a run of texts stays as it is."""
    texts = [event for event in run if not isinstance(event, bytes)]
    if len(texts) <= 1 or not all(_is_unicode(event[2]) for event in texts):  # the libraries refuse other bytes
        return _END.join([event if isinstance(event, bytes) else event[0] for event in run])
    first = texts[0]
    return first[0][: first.start(2)] + b"".join([event[2] for event in texts]) + first[0][first.end(2) :]


def _is_unicode(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
