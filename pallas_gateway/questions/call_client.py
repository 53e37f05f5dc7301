"""The client of a call, as the call sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.events.queue import StreamOptions
from pallas_gateway.questions.asking import CANNOT_ASK

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from pallas_gateway.events.events import EventSink
    from pallas_gateway.questions.asking import Asker


def nowhere(_: Set[str]) -> None:
    """The `checkpoint` of a call that cannot be resumed."""


class CallClient:
    """The client of a call.

    Attributes:
        sink: receives the events of the call.
        options: the events that the client asks for.
        checkpoint: returns where the call waits for answers to questions of these ids, for another process to resume
            it; None if it cannot be resumed. The call sets it.
    """

    def __init__(self, sink: EventSink, options: StreamOptions | None = None, asker: Asker = CANNOT_ASK) -> None:
        self.sink = sink
        self.options = options or StreamOptions()
        self.checkpoint: Callable[[Set[str]], str | None] = nowhere
        self._asker = asker

    @property
    def asker(self) -> Asker:
        """Puts questions to the client. A subclass may be the asker itself, without a reference cycle."""
        return self._asker
