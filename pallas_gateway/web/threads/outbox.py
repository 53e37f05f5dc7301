"""Queue of a running call's events for its client, which may read slowly.

The call never waits for its client, so its turn ends when the answer exists. The queue is bounded: text is joined, and
beyond `MOST_WAITING` the oldest text and tool events are dropped; the last event holds the whole answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pallas_gateway.calls.assistant_stream import DELTA
from pallas_gateway.web.threads.answers import line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pallas_gateway.web.threads.answers import Json

MOST_WAITING = 1 << 20  # characters of queued events
_KEPT = ("thread", "question", "answer")


@dataclass(frozen=True, slots=True)
class _Entry:
    """Pieces of text that are sent as one event, `head` without its text; or the line of another event."""

    pieces: list[str]
    head: Json | None
    may_be_dropped: bool


class Outbox:
    """A queue of events for one reader, ended by `close`; adding an event never waits."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self._most_waiting = most_waiting
        self._waiting: deque[_Entry] = deque()
        self._size = 0
        self._something = asyncio.Event()
        self._is_closed = False

    def put(self, event: Json) -> None:
        """Add an event."""
        head, piece = _parted(event)
        if head is not None and self._waiting and self._waiting[-1].head == head:
            self._waiting[-1].pieces.append(piece)
        else:
            self._waiting.append(_Entry([piece], head, may_be_dropped=event["type"] not in _KEPT))
        self._size += len(piece)
        while self._size > self._most_waiting and self._drop_oldest():
            pass
        self._something.set()

    def copy(self) -> Outbox:
        """Return another queue of the same events."""
        other = Outbox(self._most_waiting)
        other._waiting.extend(replace(entry, pieces=[*entry.pieces]) for entry in self._waiting)
        other._size = self._size
        return other

    def close(self) -> None:
        """End `lines` after the queued events."""
        self._is_closed = True
        self._something.set()

    async def lines(self) -> AsyncGenerator[str]:
        """The events in order, each as JSON on one line."""
        while True:
            while self._waiting:
                yield self._line(self._waiting.popleft())
            if self._is_closed:
                return
            self._something.clear()
            await self._something.wait()

    def _line(self, entry: _Entry) -> str:
        text = "".join(entry.pieces)
        self._size -= len(text)
        return text if entry.head is None else line(_whole(entry.head, text))

    def _drop_oldest(self) -> bool:
        for index, entry in enumerate(self._waiting):
            if entry.may_be_dropped:
                self._size -= sum(map(len, entry.pieces))
                del self._waiting[index]
                return True
        return False


def _parted(event: Json) -> tuple[Json | None, str]:
    """An event of live text without its text, and the text; None and the line of another event."""
    if event["type"] == "text":
        return {"type": "text"}, event["delta"]
    if event["type"] == "assistant" and event["data"].get("kind") == DELTA:
        return {"type": "assistant", "data": {**event["data"], "text": ""}}, event["data"]["text"]
    return None, line(event)


def _whole(head: Json, text: str) -> Json:
    return {**head, "data": {**head["data"], "text": text}} if "data" in head else {**head, "delta": text}
