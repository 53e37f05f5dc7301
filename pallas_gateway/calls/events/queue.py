"""The one queue between a call and a reader of its events.

Adding an event never waits: a call does not wait for its client. Pieces of text of one turn are joined until they are
read. One rule bounds a reader that is too slow: beyond `MOST_EVENTS` the oldest event that it may miss is dropped; when
none is left, the reader is lost and gets no later events. The call goes on in any case.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from pallas_gateway.calls.events.events import PROGRESS, Emitter, Event, TextDelta, ToolsEnded, TurnEnded

MOST_EVENTS = 1000
"""Events that wait for a reader."""
LONGEST_TEXT = 256 * 1024
"""Characters of one turn that wait for a reader that may miss text; older ones are dropped."""
LIVE = (*PROGRESS, TextDelta)
"""Events that an MCP client may miss: later events and the result have the same content."""


@dataclass(slots=True)
class StreamOptions:
    """The events that the client of a call asks for. A request that continues the call may change them.

    Attributes:
        progress: `PROGRESS` (and a heartbeat).
        messages: turns, tools, questions and events of peers.
        deltas: text as the model produces it.
        text_seconds: the time between two pieces of text.
    """

    progress: bool = False
    messages: bool = True
    deltas: bool = False
    text_seconds: float = 0.1

    def become(self, other: StreamOptions) -> None:
        """Take the values of another request of the same client."""
        self.progress, self.messages, self.deltas = other.progress, other.messages, other.deltas

    def include(self, event: Event) -> bool:
        """Return whether the client asks for events of this type."""
        if isinstance(event, PROGRESS):
            return self.progress
        return self.deltas if isinstance(event, TextDelta) else self.messages


@dataclass(slots=True, eq=False)
class _Text:
    """Unread text of one turn."""

    emitter: Emitter
    iteration: int
    pieces: deque[str] = field(default_factory=deque)
    characters: int = 0

    def add(self, piece: str, most: int | None) -> None:
        self.pieces.append(piece)
        self.characters += len(piece)
        while most is not None and self.characters - len(self.pieces[0]) >= most:
            self.characters -= len(self.pieces.popleft())

    def joined(self, most: int | None) -> TextDelta:
        text = "".join(self.pieces)
        return TextDelta(self.emitter, self.iteration, text if most is None else text[-most:])


class EventQueue:
    """The `EventSink` of one reader; see the module.

    Args:
        options: the events that it takes; others are not kept.
        may_miss: types of events that may be dropped. With `TextDelta`, so may the oldest text of a turn.
    """

    def __init__(self, options: StreamOptions, may_miss: tuple[type, ...] = LIVE) -> None:
        self.options = options
        self.is_lost = False
        self.on_lost: Callable[[], object] = lambda: None
        """Called when the reader is lost."""
        self._may_miss = (*may_miss, _Text) if TextDelta in may_miss else may_miss
        self._longest_text = LONGEST_TEXT if TextDelta in may_miss else None
        self._waiting: deque[Event | _Text] = deque()
        self._texts: dict[tuple[Emitter, int], _Text] = {}  # unread ones, to which pieces are added
        self._something = asyncio.Event()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: Event) -> None:
        if self.is_lost or self._is_closed or not self.options.include(event):
            return
        if isinstance(event, TextDelta):
            self._join(event)
        else:
            if isinstance(event, (TurnEnded, ToolsEnded)):
                self._texts.pop((event.emitter, event.iteration), None)
            self._waiting.append(event)
        if len(self._waiting) > MOST_EVENTS:
            self._make_room()
        self._something.set()

    def next(self, *, with_text: bool = True) -> Event | None:
        """Return and remove the oldest event; None if there is none.

        Without `with_text`, the text of turns that have not ended stays, and later events are returned before it.
        """
        for event in self._waiting:
            if with_text or not isinstance(event, _Text) or not self._is_open(event):
                self._remove(event)
                return event.joined(self._longest_text) if isinstance(event, _Text) else event
        return None

    async def wait(self, until: float | None = None) -> None:
        """Return when an event was added, at the latest at this time of the event loop."""
        self._something.clear()
        try:
            async with asyncio.timeout_at(until):
                await self._something.wait()
        except TimeoutError:
            return

    def serve(self, options: StreamOptions) -> None:
        """Take the events that these options ask for from here on, and drop unread ones that they do not."""
        self.options.become(options)
        self.is_lost = False
        for event in [*self._waiting]:
            if not (options.deltas if isinstance(event, _Text) else options.include(event)):
                self._remove(event)

    def lose(self) -> None:
        """Drop all events, and take no more before the next `serve`."""
        self.is_lost = True
        self._waiting.clear()
        self._texts.clear()

    def wake(self) -> None:
        """End a `wait`."""
        self._something.set()

    def close(self) -> None:
        """Add no more events; `events` ends after the last one."""
        self._is_closed = True
        self._something.set()

    async def events(self) -> AsyncGenerator[Event]:
        """Yield all events until `close`, in order."""
        while True:
            while (event := self.next()) is not None:
                yield event
            if self._is_closed:
                return
            await self.wait()

    def split(self) -> EventQueue:
        """Return a closed queue with the unread events; this one has the later ones."""
        unread = EventQueue(self.options, self._may_miss)
        unread._is_closed = True
        unread._waiting, self._waiting = self._waiting, deque()
        unread._texts, self._texts = self._texts, {}
        return unread

    def copy(self) -> EventQueue:
        """Return another queue with the same unread events."""
        other = EventQueue(self.options, self._may_miss)
        other._longest_text = self._longest_text
        for event in self._waiting:
            other.put(event.joined(self._longest_text) if isinstance(event, _Text) else event)
        return other

    def _join(self, event: TextDelta) -> None:
        if not event.text:
            return
        turn = event.emitter, event.iteration
        if (text := self._texts.get(turn)) is None:
            text = self._texts[turn] = _Text(*turn)
            self._waiting.append(text)
        text.add(event.text, self._longest_text)

    def _make_room(self) -> None:
        for event in self._waiting:
            if isinstance(event, self._may_miss):
                self._remove(event)
                return
        if not isinstance(self._waiting[-1], _Text):
            self._waiting.pop()
        self.is_lost = True
        self.on_lost()

    def _is_open(self, text: _Text) -> bool:
        return self._texts.get((text.emitter, text.iteration)) is text

    def _remove(self, event: Event | _Text) -> None:
        self._waiting.remove(event)
        if isinstance(event, _Text) and self._is_open(event):
            del self._texts[event.emitter, event.iteration]
