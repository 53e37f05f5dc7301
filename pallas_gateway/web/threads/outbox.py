"""Queue of a running call's events for its client, which may read slowly.

The call never waits for its client, so its turn ends when the answer exists. The queue is bounded: text is joined, and
beyond `MOST_WAITING` the oldest text and tool events are dropped; the last event holds the whole answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_gateway.web.threads.answers import line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pallas_gateway.web.threads.answers import Json

MOST_WAITING = 1 << 20  # characters of queued events
_KEPT = ("thread", "question", "answer")


@dataclass(frozen=True, slots=True)
class _Entry:
    """Pieces of text that are sent as one event, or the line of another event."""

    pieces: list[str]
    is_text: bool
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
        is_text = event["type"] == "text"
        piece = event["delta"] if is_text else line(event)
        if is_text and self._waiting and self._waiting[-1].is_text:
            self._waiting[-1].pieces.append(piece)
        else:
            self._waiting.append(_Entry([piece], is_text, may_be_dropped=event["type"] not in _KEPT))
        self._size += len(piece)
        while self._size > self._most_waiting and self._drop_oldest():
            pass
        self._something.set()

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
        return line({"type": "text", "delta": text}) if entry.is_text else text

    def _drop_oldest(self) -> bool:
        for index, entry in enumerate(self._waiting):
            if entry.may_be_dropped:
                self._size -= sum(map(len, entry.pieces))
                del self._waiting[index]
                return True
        return False
