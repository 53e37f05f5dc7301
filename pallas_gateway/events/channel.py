"""The one way notifications leave a call.

The agent loop puts events in and never waits; the task of the client's request sends them out in order, at the client's
pace, and a heartbeat when there was nothing to send for a while. What a slow client may cost is bounded: live text is
coalesced and its oldest part dropped; beyond `LONGEST_BACKLOG` waiting entries the oldest progress goes, and when only
chunks and results are left, the client counts as lost and gets no more notifications. The call goes on in any case.
Once `send_until` has returned, nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pallas_gateway.calls import assistant_stream
from pallas_gateway.calls.assistant_stream import ToolsEnded, TurnEnded
from pallas_gateway.events import progress
from pallas_gateway.events.progress import ProgressCounter, ProgressEvent
from pallas_gateway.questions.asking import CANNOT_ASK
from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.calls.assistant_stream import AssistantEvent, Emitter, Payload
    from pallas_gateway.questions.asking import Asker

LONGEST_BACKLOG = 1000
"""Notifications that are kept for a slow client."""
LONGEST_DELTA = 16_384
"""Characters of live text that are kept; older ones are dropped."""
FLUSH_SECONDS = 30.0
"""Seconds in which the client of a finished call can receive the remaining notifications."""
DELTA_SECONDS = 0.1
"""Seconds between two notifications of live text."""

_log = logging.getLogger("pallas.channel")


class NotificationSender(Protocol):
    """Sends notifications on the response stream of a client."""

    async def send_progress(self, event: ProgressEvent) -> None:
        """Send one `notifications/progress`."""

    async def send_payload(self, payload: Payload) -> None:
        """Send one `notifications/message` of the assistant stream."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The notifications that the client requested: progress (with a heartbeat), and the live text.

    `delta_seconds` is the time between two pieces of live text.
    """

    progress: bool = False
    deltas: bool = False
    delta_seconds: float = DELTA_SECONDS


class EventSink(Protocol):
    """Receives the events of a call without delaying it."""

    @property
    def options(self) -> StreamOptions:
        """The notifications that the client requested."""

    @property
    def asker(self) -> Asker:
        """Puts the questions of the call to its caller."""

    def admitted(self) -> None:
        """The call runs, and is not refused any more."""

    def progress(self, message: str, *, ended: bool = False) -> None:
        """A sub-task of the message begins, or has `ended`."""

    def event(self, event: AssistantEvent) -> None:
        """An assistant has ended a turn, or its tools."""

    def live_text(self, emitter: Emitter, iteration: int, text: str) -> None:
        """A piece of the live text of one turn; only if `options` ask for it."""


@dataclass(slots=True)
class _LiveText:
    """Unsent text of one emitter and turn."""

    emitter: Emitter
    iteration: int
    text: str = ""


class Channel:
    """The `EventSink` that sends notifications; see the module."""

    def __init__(  # noqa: PLR0913  limits are keywords with defaults
        self,
        agent: str,
        sender: NotificationSender,
        options: StreamOptions,
        asker: Asker = CANNOT_ASK,
        *,
        heartbeat_seconds: float,
        on_heartbeat: Callable[[], None] = lambda: None,
        flush_seconds: float = FLUSH_SECONDS,
        delta_seconds: float = DELTA_SECONDS,
    ) -> None:
        self.asker = asker
        self._flush_seconds = flush_seconds
        self._delta_seconds = delta_seconds
        self._agent = agent
        self._sender = sender
        self._options = options
        self._heartbeat_seconds = heartbeat_seconds
        self._on_heartbeat = on_heartbeat
        self._counter = ProgressCounter()
        self._waiting: deque[ProgressEvent | Payload] = deque()
        self._live: dict[tuple[str, int], _LiveText] = {}  # by turn: inner agents may run at the same time
        self._something = asyncio.Event()
        self._closing = False
        self._lost = False
        self._patience: asyncio.Timeout | None = None

    @property
    def options(self) -> StreamOptions:
        return self._options

    def admitted(self) -> None:
        """Do nothing, because the first progress follows."""

    def progress(self, message: str, *, ended: bool = False) -> None:
        if self._options.progress:
            self._put(self._counter.event(message, ended=ended))

    def event(self, event: AssistantEvent) -> None:
        if isinstance(event, (TurnEnded, ToolsEnded)):
            self._flush_live((event.emitter.agent, event.iteration))
        self._put(event.payload())

    def live_text(self, emitter: Emitter, iteration: int, text: str) -> None:
        if not self._options.deltas or self._lost or self._closing or not text:
            return
        live = self._live.setdefault((emitter.agent, iteration), _LiveText(emitter, iteration))
        live.text = (live.text + text)[-LONGEST_DELTA:]
        self._something.set()

    async def send_until(self, work: asyncio.Future[Any]) -> None:
        """Send until `work` is done and all was sent, at most `FLUSH_SECONDS` later; send nothing afterwards.

        It runs in the task of the client's request, which has nothing else to do meanwhile.
        """
        work.add_done_callback(self._finish)
        try:
            async with asyncio.timeout(None) as self._patience:
                await self._send_all()
        except TimeoutError:
            pass  # the client does not read
        except Exception as error:  # noqa: BLE001  after an error here, the call must still be awaited
            self._lose(f"unexpected {type(error).__name__}", error)
        finally:  # also when the client disconnects
            self._lost, self._patience = True, None
        await asyncio.wait({work})

    def _finish(self, _: asyncio.Future[Any]) -> None:
        self._closing = True
        self._something.set()
        if self._patience is not None:
            now = asyncio.get_running_loop().time()
            self._patience.reschedule(now if self._lost else now + self._flush_seconds)

    def _put(self, entry: ProgressEvent | Payload) -> None:
        if not self._lost and not self._closing:
            self._append(entry)

    def _append(self, entry: ProgressEvent | Payload) -> None:
        self._waiting.append(entry)
        self._something.set()
        if len(self._waiting) > LONGEST_BACKLOG:
            self._make_room()

    def _make_room(self) -> None:
        """Drop the oldest progress; texts of assistants and results of tools are never dropped."""
        for index, entry in enumerate(self._waiting):
            if isinstance(entry, ProgressEvent) or entry.get("kind") == assistant_stream.DELTA:
                del self._waiting[index]
                return
        self._lose("the client reads too slowly")

    def _flush_live(self, turn: tuple[str, int]) -> None:
        """Send the live text of a turn before later notifications."""
        if live := self._live.pop(turn, None):
            self._append(assistant_stream.delta(live.emitter, live.iteration, live.text))

    async def _send_all(self) -> None:
        now = asyncio.get_running_loop().time
        began = last_progress = now()
        next_delta = began
        while not self._lost:
            if self._live and not self._waiting and (self._closing or now() >= next_delta):
                self._flush_live(next(iter(self._live)))
                next_delta = now() + self._delta_seconds
            if self._waiting:
                entry = self._waiting.popleft()
                if isinstance(entry, ProgressEvent):
                    last_progress = now()
                await self._send(entry)
            elif self._closing:
                return
            elif self._options.progress and now() >= last_progress + self._heartbeat_seconds:
                self._on_heartbeat()
                self._put(self._counter.event(progress.heartbeat(self._agent, now() - began)))
            else:
                await self._wait_until(self._next_due(last_progress, next_delta))

    def _next_due(self, last_progress: float, next_delta: float) -> float | None:
        """Return when the next notification is due without a new event; None if none is."""
        due = [next_delta] if self._live else []
        # Counted from the last progress, not from the last notification: only progress resets the timeout of clients.
        due += [last_progress + self._heartbeat_seconds] if self._options.progress else []
        return min(due, default=None)

    async def _wait_until(self, due: float | None) -> None:
        self._something.clear()
        try:
            async with asyncio.timeout_at(due):
                await self._something.wait()
        except TimeoutError:
            return

    async def _send(self, entry: ProgressEvent | Payload) -> None:
        try:
            if isinstance(entry, ProgressEvent):
                await self._sender.send_progress(replace(entry, message=cleaned_data(entry.message)))
            else:
                await self._sender.send_payload(cleaned_data(entry))
        except Exception as error:  # noqa: BLE001  a call goes on without its notifications
            self._lose(f"{type(error).__name__}: {error}")

    def _lose(self, why: str, error: Exception | None = None) -> None:
        self._lost = True
        self._waiting.clear()
        self._live.clear()
        self._something.set()
        _log.warning("client gets no more notifications", extra={"agent": self._agent, "why": why}, exc_info=error)
