"""Where a call's notifications go: its client's own response stream, in the form the client's era wants."""

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

from pallas_gateway.calls.assistant_stream import LOGGER
from pallas_gateway.calls.channel import StreamOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.context import ServerRequestContext

    from pallas_gateway.calls.assistant_stream import Payload
    from pallas_gateway.calls.progress import ProgressEvent

STREAM_META_KEY = "pallas/stream"
_LEVELS_THAT_SHOW_INFO = ("debug", "info")


class ClientNotifications:
    """The `NotificationSender` of one request."""

    def __init__(self, context: ServerRequestContext[Any, Any]) -> None:
        self._session = context.session
        self._request_id = context.request_id
        self._token = _meta(context).get("progress_token")
        self._wants_messages = _wants_messages(context)

    async def send_progress(self, event: ProgressEvent) -> None:
        """Send one `notifications/progress`."""
        if self._token is None:
            return
        params = ProgressNotificationParams(
            progress_token=self._token, progress=event.progress, total=event.total, message=event.message
        )
        await self._session.send_notification(ProgressNotification(params=params), self._request_id)

    async def send_payload(self, payload: Payload) -> None:
        """Send one `notifications/message`, to clients that take them."""
        if self._wants_messages:
            params = LoggingMessageNotificationParams(level="info", logger=LOGGER, data=payload)
            await self._session.send_notification(LoggingMessageNotification(params=params), self._request_id)


def stream_options_of(context: ServerRequestContext[Any, Any]) -> StreamOptions:
    """What a request asks to be told."""
    meta = _meta(context)
    deltas = meta.get(STREAM_META_KEY) == "delta" and _wants_messages(context)
    return StreamOptions(progress=meta.get("progress_token") is not None, deltas=deltas)


def _wants_messages(context: ServerRequestContext[Any, Any]) -> bool:
    """Clients of the 2026-07-28 era get messages only if the request asks for their level; older ones always."""
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return True
    return _meta(context).get(LOG_LEVEL_META_KEY) in _LEVELS_THAT_SHOW_INFO


def _meta(context: ServerRequestContext[Any, Any]) -> Mapping[str, Any]:
    return context.meta or {}
