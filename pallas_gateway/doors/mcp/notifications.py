"""The events of a call as MCP notifications: numbered progress with a heartbeat, and the assistant stream.

The task of the client's request sends them, in order and at the client's pace. Once `send_until` has returned, nothing
is sent.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcp_types import (
    LOG_LEVEL_META_KEY,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    ProgressNotification,
    ProgressNotificationParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pallas_gateway.calls.assistant_stream import LOGGER, STREAM_META_KEY, payload_of
from pallas_gateway.calls.events import progress
from pallas_gateway.calls.events.events import TextDelta, TurnEnded
from pallas_gateway.calls.events.progress import ProgressCounter, ProgressEvent
from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.doors.mcp.envelope import SESSION_HEADER, headers_of
from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.context import ServerRequestContext

    from pallas_gateway.calls.assistant_stream import Payload
    from pallas_gateway.calls.events.events import Event
    from pallas_gateway.calls.events.progress import NotificationSender
    from pallas_gateway.calls.events.queue import EventQueue
    from pallas_gateway.core.parts import LogLevels

FLUSH_SECONDS = 30.0
"""Seconds in which the client of a finished call can receive the remaining notifications."""
_LEVELS_THAT_SHOW_INFO = ("debug", "info")
_log = logging.getLogger("pallas.channel")


class Notifications:
    """Sends the events of a queue to the client of one request; see the module."""

    def __init__(  # noqa: PLR0913  limits are keywords with defaults
        self,
        agent: str,
        queue: EventQueue,
        sender: NotificationSender,
        *,
        heartbeat_seconds: float,
        on_heartbeat: Callable[[], None] = lambda: None,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self._agent = agent
        self._queue = queue
        self._sender = sender
        self._heartbeat_seconds = heartbeat_seconds
        self._on_heartbeat = on_heartbeat
        self._flush_seconds = flush_seconds
        self._counter = ProgressCounter()
        self._rest: EventQueue | None = None  # to send after the end
        self._lost = False
        self._patience: asyncio.Timeout | None = None
        queue.on_lost = lambda: self._lose("the client reads too slowly")

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
            self._queue.on_lost = lambda: None  # it would keep the request in memory
        await asyncio.wait({work})

    def _finish(self, _: asyncio.Future[Any]) -> None:
        self._rest = self._queue.split()  # later events are of the next request, if there is one
        self._queue.on_lost = lambda: None
        self._queue.wake()
        if self._patience is not None:
            now = asyncio.get_running_loop().time()
            self._patience.reschedule(now if self._lost else now + self._flush_seconds)

    async def _send_all(self) -> None:
        now, options = asyncio.get_running_loop().time, self._queue.options
        began = last_progress = next_text = now()
        while not self._lost:
            is_over = self._rest is not None
            unread = self._queue if self._rest is None else self._rest
            if (event := unread.next(with_text=is_over or now() >= next_text)) is not None:
                next_text = self._next_text(event, next_text)
                if (counted := self._counter.of(event)) is not None:
                    last_progress = now()
                await self._send(counted or payload_of(event))
            elif is_over:
                return
            elif options.progress and now() >= last_progress + self._heartbeat_seconds:
                last_progress = now()
                self._on_heartbeat()
                await self._send(self._counter.event(progress.heartbeat(self._agent, now() - began)))
            else:
                due = [next_text] if len(self._queue) else []
                # Counted from the last progress, not from the last notification: only progress resets the timeout of
                # clients.
                due += [last_progress + self._heartbeat_seconds] if options.progress else []
                await self._queue.wait(min(due, default=None))

    def _next_text(self, event: Event, planned: float) -> float:
        """Return when the text after an event can be sent: the first text of a turn is never held back."""
        match event:
            case TextDelta():
                return asyncio.get_running_loop().time() + self._queue.options.text_seconds
            case TurnEnded():
                return 0.0
        return planned

    async def _send(self, entry: ProgressEvent | Payload | None) -> None:
        try:
            if isinstance(entry, ProgressEvent):
                await self._sender.send_progress(replace(entry, message=cleaned_data(entry.message)))
            elif entry is not None:
                await self._sender.send_payload(cleaned_data(entry))
        except Exception as error:  # noqa: BLE001  a call goes on without its notifications
            self._lose(f"{type(error).__name__}: {error}")

    def _lose(self, why: str, error: Exception | None = None) -> None:
        self._lost = True
        self._queue.lose()
        self._queue.wake()
        _log.warning("client gets no more notifications", extra={"agent": self._agent, "why": why}, exc_info=error)


class ClientNotifications:
    """The `NotificationSender` of one request over HTTP."""

    def __init__(self, context: ServerRequestContext[Any, Any]) -> None:
        self._session = context.session
        self._request_id = context.request_id
        self._token = (context.meta or {}).get("progress_token")

    async def send_progress(self, event: ProgressEvent) -> None:
        if self._token is None:
            return
        params = ProgressNotificationParams(
            progress_token=self._token, progress=event.progress, total=event.total, message=event.message
        )
        await self._session.send_notification(ProgressNotification(params=params), self._request_id)

    async def send_payload(self, payload: Payload) -> None:
        params = LoggingMessageNotificationParams(level="info", logger=LOGGER, data=payload)
        await self._session.send_notification(LoggingMessageNotification(params=params), self._request_id)


def stream_options_of(context: ServerRequestContext[Any, Any], levels: LogLevels) -> StreamOptions:
    """Return the notifications that a request asks for."""
    meta = context.meta or {}
    # The 2026-07-28 era: only if the request asks for their level. Before: unless the session has set a higher level.
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        messages = meta.get(LOG_LEVEL_META_KEY) in _LEVELS_THAT_SHOW_INFO
    else:
        messages = levels.shows_info(headers_of(context).get(SESSION_HEADER))
    deltas = messages and meta.get(STREAM_META_KEY) == "delta"
    return StreamOptions(progress=meta.get("progress_token") is not None, messages=messages, deltas=deltas)
