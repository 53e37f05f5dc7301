"""Events of a call's downstream tool calls: progress, durations, and the tool call behind each nested call."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, override

from fast_agent.mcp.helpers.content_helpers import get_text
from fast_agent.mcp.tool_execution_handler import NoOpToolExecutionHandler
from mcp_types import TextContent

from pallas_gateway.calls.assistant_stream import PeerCall
from pallas_gateway.calls.events import progress
from pallas_gateway.calls.events.events import ToolEnded, ToolReported, ToolStarted
from pallas_gateway.calls.tool_results import spell_out
from pallas_gateway.runtime.downstreams.credentials import why_without_token
from pallas_gateway.runtime.scope import current_scope
from pallas_gateway.telemetry.redaction import shortened

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

    from pallas_gateway.calls.events.events import EventSink, ToolCall
    from pallas_gateway.telemetry.traces import CallSpans

OTHERS_SECONDS = 2.0
"""Longest wait for the end of tool calls that run at the same time as one that asks."""
PROGRESS_SECONDS = 0.25
"""Shortest time between two messages of progress that a server sends of one tool call."""
_LONGEST_ERROR = 300
_log = logging.getLogger("pallas.runtime")


@dataclass(slots=True, eq=False)
class _Running:
    """A tool call; `held` is its latest progress, which `flush` sends."""

    call: PeerCall
    is_peer: bool
    began: float
    held: str | None = None
    next_at: float = 0.0
    flush: asyncio.TimerHandle | None = None


class ToolEvents(NoOpToolExecutionHandler):
    """Reports downstream tool calls as progress; approval and display are fast-agent's."""

    def __init__(self, sink: EventSink, times_of: dict[str, tuple[float, float]], spans: CallSpans | None) -> None:
        self._sink = sink
        self._spans = spans
        self._times_of = times_of  # when a tool call began, and its seconds
        self._running: dict[str, _Running] = {}
        self._asking: Counter[str] = Counter()  # open questions that name no tool call, by server
        self._has_changed = asyncio.Event()

    @override
    async def on_tool_start(
        self, tool_name: str, server_name: str, arguments: dict[str, Any] | None, tool_use_id: str | None = None
    ) -> str:
        """Report the start of a tool call; notifications in this context belong to it."""
        id_ = await super().on_tool_start(tool_name, server_name, arguments, tool_use_id)
        scope, call = current_scope.get(), PeerCall(server_name, tool_name, tool_use_id or id_)
        current_scope.set(replace(scope, peer_call=call))
        downstream = scope.presented.downstreams.get(server_name) if scope.presented is not None else None
        is_peer = downstream is not None and downstream.peer is not None
        self._running[id_] = _Running(call, is_peer, monotonic())
        if self._spans is not None:
            self._spans.begin_tool(id_, server=server_name, tool=tool_name)
        self._sink.put(ToolStarted(server_name, tool_name))
        return id_

    @override
    async def on_tool_progress(
        self, tool_call_id: str, progress_value: float, total: float | None, message: str | None
    ) -> None:
        """Relay the progress of a peer, or pass on that of another server, a few times a second."""
        if (running := self._running.get(tool_call_id)) is None:
            return
        server, tool = running.call.server, running.call.tool
        if message and (running.is_peer or progress.is_ours(message)):
            self._send_held(running)
            ended = total is not None and progress_value >= total
            self._sink.put(ToolReported(progress.relayed(server, tool, message), ended))
            return
        running.held = progress.of_server(server, tool, message, progress_value, total)
        loop = asyncio.get_running_loop()
        if loop.time() >= running.next_at:
            self._send_held(running)
        elif running.flush is None:
            running.flush = loop.call_at(running.next_at, self._send_held, running)

    def _send_held(self, running: _Running) -> None:
        if running.flush is not None:
            running.flush.cancel()
            running.flush = None
        if running.held is not None:
            self._sink.put(ToolReported(running.held))
            running.held, running.next_at = None, asyncio.get_running_loop().time() + PROGRESS_SECONDS

    def running_on(self, server: str) -> tuple[str, ...]:
        """Return the ids of the tool calls of a server that run now."""
        return tuple(one.call.tool_call_id for one in self._running.values() if one.call.server == server)

    async def asking_on(self, server: str) -> tuple[str, ...]:
        """Return the ids of the tool calls of a server that may have asked a question which is still open.

        A program does not tell which request its question belongs to. A tool call that ends while the question is open
        did not ask it, so others have some time to end.
        """
        self._asking[server] += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(OTHERS_SECONDS):
                    while len(self.running_on(server)) > self._asking[server]:
                        self._has_changed.clear()
                        await self._has_changed.wait()
            return self.running_on(server)
        finally:
            self._asking[server] -= 1

    def abandon(self) -> None:
        """Report the failure of every tool call that still runs."""
        for id_ in list(self._running):
            self._end(id_, ok=False)

    def _end(self, id_: str, *, ok: bool) -> _Running | None:
        if (running := self._running.pop(id_, None)) is not None:
            self._send_held(running)
            self._sink.put(ToolEnded(running.call.server, running.call.tool, ok))
        return running

    @override
    async def on_tool_complete(
        self, tool_call_id: str, success: bool, content: list[ContentBlock] | None, error: str | None
    ) -> None:
        """Report the end of a tool call."""
        del content, error
        if self._spans is not None:
            self._spans.end_tool(tool_call_id, ok=success)
        running = self._end(tool_call_id, ok=success)
        self._has_changed.set()
        if running is not None:
            self._times_of[running.call.tool_call_id] = running.began, monotonic() - running.began


def explain_result(call: ToolCall, result: CallToolResult) -> None:
    """Add the gateway's own reasons for a failure to a result."""
    _explain_missing_token(call, result)
    _explain_unasked_questions(call, result)


def kind_of_failure(call: ToolCall, result: CallToolResult) -> str | None:
    """Return the kind of error of a tool call, None for none; what the model reads of it is logged."""
    kind = current_scope.get().tool_failures.pop(call.id, "tool_error")
    if not result.is_error:
        return None
    words = " ".join(text for block in result.content if (text := get_text(block)))
    extra = {"server": call.server, "tool": call.name, "reason": kind, "error": shortened(words, _LONGEST_ERROR)}
    _log.debug("tool call failed", extra=extra)
    return kind


def _explain_unasked_questions(call: ToolCall, result: CallToolResult) -> None:
    """Put the questions that could not be put to the caller before the result of a call.

    That may be a sentence for developers: fast-agent or a library refuses a question that this caller cannot be asked.
    """
    if not (texts := current_scope.get().questions.texts_for(call.id)):
        return
    spell_out(result)
    result.content = [*(TextContent(type="text", text=text) for text in texts), *result.content]


def _explain_missing_token(call: ToolCall, result: CallToolResult) -> None:
    """Add the token error to the result of a tool call that was not sent because of it.

    fast-agent only knows that the connection has ended, as it does when a request cannot be authorised.
    """
    if not result.is_error or call.server is None or (error := why_without_token(call.server)) is None:
        return
    text = f"No token could be had for the server '{call.server}': {error.why}."
    result.content = [*result.content, TextContent(type="text", text=text)]
    extra = {"server": call.server, "tool": call.name, "reason": error.reason, "error": str(error)}
    _log.warning("tool call without token", extra=extra)
