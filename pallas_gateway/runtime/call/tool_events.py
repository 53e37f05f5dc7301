"""A call's downstream tool calls as fast-agent tells of them: progress, durations, which peer works for whom."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from fast_agent.mcp.tool_execution_handler import NoOpToolExecutionHandler
from mcp_types import TextContent

from pallas_gateway.calls import progress
from pallas_gateway.calls.relay import PeerCall
from pallas_gateway.runtime.call_scope import current_scope
from pallas_gateway.runtime.downstreams.credentials import why_without_token

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

    from pallas_gateway.calls.assistant_stream import ToolCall
    from pallas_gateway.calls.channel import EventSink
    from pallas_gateway.telemetry.traces import CallSpans

_log = logging.getLogger("pallas.runtime")


class ToolEvents(NoOpToolExecutionHandler):
    """Downstream tool calls as progress; everything about approval and display is left as it is."""

    def __init__(self, channel: EventSink, seconds_of: dict[str, float], spans: CallSpans) -> None:
        self._channel = channel
        self._spans = spans
        self._seconds_of = seconds_of
        self._running: dict[str, tuple[PeerCall, float]] = {}

    async def on_tool_start(
        self, tool_name: str, server_name: str, arguments: dict[str, Any] | None, tool_use_id: str | None = None
    ) -> str:
        """A tool call began; what its server says from now on, in this context, belongs to it."""
        id_ = await super().on_tool_start(tool_name, server_name, arguments, tool_use_id)
        call = PeerCall(server_name, tool_name, tool_use_id or id_)
        current_scope.set(replace(current_scope.get(), peer_call=call))
        self._running[id_] = (call, monotonic())
        self._spans.begin_tool(id_, server=server_name, tool=tool_name)
        self._channel.progress(progress.tool_started(server_name, tool_name))
        return id_

    async def on_tool_progress(
        self, tool_call_id: str, progress_value: float, total: float | None, message: str | None
    ) -> None:
        """A server reports progress; a peer's is passed on."""
        call, _ = self._running.get(tool_call_id, (None, 0.0))
        if call is not None and message and progress.is_ours(message):
            ended = total is not None and progress_value >= total
            self._channel.progress(progress.relayed(call.server, call.tool, message), ended=ended)

    def running_on(self, server: str) -> tuple[str, ...]:
        """Return the ids of the tool calls of a server that run now."""
        return tuple(call.tool_call_id for call, _ in self._running.values() if call.server == server)

    def abandon(self) -> None:
        """Every call that still runs has failed."""
        for call, _ in self._running.values():
            self._channel.progress(progress.tool_ended(call.server, call.tool, ok=False), ended=True)
        self._running.clear()

    async def on_tool_complete(
        self, tool_call_id: str, success: bool, content: list[ContentBlock] | None, error: str | None
    ) -> None:
        """A tool call ended."""
        del content, error
        self._spans.end_tool(tool_call_id, ok=success)
        call, began = self._running.pop(tool_call_id, (None, 0.0))
        if call is not None:
            self._seconds_of[call.tool_call_id] = monotonic() - began
            self._channel.progress(progress.tool_ended(call.server, call.tool, ok=success), ended=True)


def explain_result(call: ToolCall, result: CallToolResult) -> None:
    """Add to the result of a tool call what only the gateway knows of it."""
    _explain_missing_token(call, result)
    _explain_unasked_questions(call, result)


def _explain_unasked_questions(call: ToolCall, result: CallToolResult) -> None:
    """Add to the result of a call the questions that could not be put to the caller."""
    if not (texts := current_scope.get().questions.texts_for(call.id)):
        return
    if result.structured_content is not None:  # of a result with both, fast-agent shows the model no text
        texts = [*([] if result.content else [json.dumps(result.structured_content)]), *texts]
        result.structured_content = None
    result.content = [*result.content, *(TextContent(type="text", text=text) for text in texts)]


def _explain_missing_token(call: ToolCall, result: CallToolResult) -> None:
    """Add to the result of a call that was not sent for want of a token that this is why.

    fast-agent knows only that the connection has ended, because that is what becomes of it when a request cannot be
    authorised.
    """
    if not result.is_error or call.server is None or (error := why_without_token(call.server)) is None:
        return
    text = f"No token could be had for the server '{call.server}': {error.why}."
    result.content = [*result.content, TextContent(type="text", text=text)]
    extra = {"server": call.server, "tool": call.name, "reason": error.reason, "error": str(error)}
    _log.warning("tool call failed for want of a token", extra=extra)
