"""The notifications that the client of a `tools/call` asks for, and how they reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_types import (
    LOG_LEVEL_META_KEY,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    ProgressNotification,
    ProgressNotificationParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pallas_gateway.calls.assistant_stream import LOGGER, STREAM_META_KEY
from pallas_gateway.events.channel import StreamOptions
from pallas_gateway.mcp_server.envelope import SESSION_HEADER, headers_of

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from pallas_gateway.calls.assistant_stream import Payload
    from pallas_gateway.calls.log_levels import LogLevels
    from pallas_gateway.events.progress import ProgressEvent

_LEVELS_THAT_SHOW_INFO = ("debug", "info")


class ClientNotifications:
    """The `NotificationSender` of one request."""

    def __init__(self, context: ServerRequestContext[Any, Any], levels: LogLevels) -> None:
        self._session = context.session
        self._request_id = context.request_id
        self._token = (context.meta or {}).get("progress_token")
        self._wants_messages = _wants_messages(context, levels)

    async def send_progress(self, event: ProgressEvent) -> None:
        if self._token is None:
            return
        params = ProgressNotificationParams(
            progress_token=self._token, progress=event.progress, total=event.total, message=event.message
        )
        await self._session.send_notification(ProgressNotification(params=params), self._request_id)

    async def send_payload(self, payload: Payload) -> None:
        if self._wants_messages:
            params = LoggingMessageNotificationParams(level="info", logger=LOGGER, data=payload)
            await self._session.send_notification(LoggingMessageNotification(params=params), self._request_id)


def stream_options_of(context: ServerRequestContext[Any, Any], levels: LogLevels) -> StreamOptions:
    """Return the notifications that a request asks for."""
    meta = context.meta or {}
    deltas = meta.get(STREAM_META_KEY) == "delta" and _wants_messages(context, levels)
    return StreamOptions(progress=meta.get("progress_token") is not None, deltas=deltas)


def _wants_messages(context: ServerRequestContext[Any, Any], levels: LogLevels) -> bool:
    # The 2026-07-28 era: only if the request asks for their level. Before: unless the session has set a higher level.
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return levels.shows_info(headers_of(context).get(SESSION_HEADER))
    return (context.meta or {}).get(LOG_LEVEL_META_KEY) in _LEVELS_THAT_SHOW_INFO
