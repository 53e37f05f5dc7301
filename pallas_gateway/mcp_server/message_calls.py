"""The calls of an agent's message tool: MCP's side of `agents.answering`, and what the client hears meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from mcp import MCPError
from mcp_types import (
    LOG_LEVEL_META_KEY,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    ProgressNotification,
    ProgressNotificationParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pallas_gateway.calls import nesting
from pallas_gateway.calls.asking import CANNOT_ASK
from pallas_gateway.calls.assistant_stream import LOGGER, STREAM_META_KEY
from pallas_gateway.calls.call import Reply
from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.channel import StreamOptions
from pallas_gateway.hosting.answering import IncomingCall, serve_call
from pallas_gateway.mcp_server.envelope import SESSION_HEADER, caller_of, headers_of, key_of
from pallas_gateway.mcp_server.forward_to_owner import forward
from pallas_gateway.mcp_server.rounds import (
    FIRST_ROUND,
    Continued,
    Round,
    call_of,
    gone,
    questions_result,
    resumption_of,
)
from pallas_gateway.mcp_server.stream_asking import StreamAsker
from pallas_gateway.mcp_server.tools import call_result, conversation_id_of, parse_call
from pallas_gateway.tasks import give_way

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult

    from pallas_gateway.calls.asking import Asker
    from pallas_gateway.calls.assistant_stream import Payload
    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.cancellation import RequestKey
    from pallas_gateway.calls.channel import NotificationSender
    from pallas_gateway.calls.log_levels import LogLevels
    from pallas_gateway.calls.nesting import Parent, RunningCalls
    from pallas_gateway.calls.open_calls import OpenCall
    from pallas_gateway.calls.progress import ProgressEvent
    from pallas_gateway.hosting.answering import AnsweredCall
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.mcp_server.envelope import Context

type MessageResult = CallToolResult | InputRequiredResult

_LEVELS_THAT_SHOW_INFO = ("debug", "info")


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """One `tools/call`, of a client over HTTP or of another agent of this gateway.

    Attributes:
        caller: makes the request.
        headers: of the HTTP request, or those that continue the trace of the parent.
        sender: takes the notifications.
        options: the notifications to send.
        asker: puts questions to the caller.
        key: identifies the request when its client cancels it from another one; None if that is not possible.
        round: its place in a call that asks its client.
        parent: the call that makes the request, None for a client.
        nesting: the calls above it that a client states.
    """

    caller: Caller
    headers: Mapping[str, str]
    sender: NotificationSender
    options: StreamOptions
    asker: Asker = CANNOT_ASK
    key: RequestKey | None = None
    round: Round = FIRST_ROUND
    parent: Parent | None = None
    nesting: int = 0

    @classmethod
    def over_http(cls, context: Context, params: CallToolRequestParams, endpoint: str, levels: LogLevels) -> Self:
        """Return the request that came in at `endpoint`."""
        return cls(
            caller_of(context),
            headers_of(context),
            ClientNotifications(context, levels),
            stream_options_of(context, levels),
            StreamAsker(context),
            key_of(context, endpoint, context.request_id),
            Round.of(context, params),
            nesting=nesting.stated(_meta(context).get(nesting.META_KEY)),
        )


async def answer_message(
    agent: HostedAgent, running: RunningCalls, arguments: dict[str, Any], request: ToolRequest
) -> MessageResult:
    """Return the agent's answer, or a result with the reason why there is none, or the questions of the call.

    Args:
        agent: answers.
        running: calls of this process.
        arguments: of the tool, unchecked.
        request: who asks, and where notifications go meanwhile.

    Raises:
        MCPError: the request repeats a call with a state or answers that cannot be used.
    """
    continued = await _continued(agent, running, request)
    if not isinstance(continued, Continued):
        return continued
    waiting: list[OpenCall] = []

    async def parse(asked: Call) -> Call:
        if continued.waiting is not None:
            return continued.waiting.call
        continued.refuse_lost()
        began = perf_counter()
        call = parse_call(asked, arguments, agent.settings, max_entries=agent.max_history_entries)
        await give_way(began)
        return continued.resuming(call)

    async def answer(call: Call) -> Reply:
        open_call = continued.open_call(call, request.round.modes, running.open_calls)
        reply = await _reply(agent, running, call, request, open_call)
        if reply is None and open_call is not None:
            waiting.append(open_call)
        return reply or Reply((), "input_required")

    async def deliver(answered: AnsweredCall) -> MessageResult:
        if waiting:
            return questions_result(waiting[0], running.open_calls.detach(waiting[0]))
        return call_result(answered, agent.trace_url(answered.call))

    arrival = IncomingCall(
        agent,
        request.caller,
        request.headers,
        conversation_id_of(arguments),
        call_id=continued.call_id,
        mcp_method="tools/call",
        parent=request.parent,
        nesting=request.nesting,
    )
    try:
        return await serve_call(arrival, parse, answer, deliver)
    finally:
        continued.ended(running.open_calls)


async def _continued(agent: HostedAgent, running: RunningCalls, request: ToolRequest) -> MessageResult | Continued:
    """Return what a request goes on with or ends, or the result of a call that waits in another process."""
    if not request.round.ends:
        return await _found(agent, running, request)
    try:
        found = await _found(agent, running, request)
    except MCPError:
        return gone(running.open_calls, request.round)
    if isinstance(found, Continued) and found.waiting is None:
        return gone(running.open_calls, request.round, found)
    return found


async def _found(agent: HostedAgent, running: RunningCalls, request: ToolRequest) -> MessageResult | Continued:
    """Return what a request goes on with, or the result of a call that waits in another process of this gateway."""
    calls, resumed = running.open_calls, None
    if calls.is_elsewhere(request.round.state):
        with suppress(ConnectionResetError):
            if (result := await forward(running.exchanges, agent.name, request)) is not None:
                return result
            resumed = await resumption_of(calls, request.round)
        return Continued(resumed=resumed, is_lost=resumed is None)
    return Continued(call_of(calls, request.round, agent.name))


async def _reply(
    agent: HostedAgent, running: RunningCalls, call: Call, request: ToolRequest, open_call: OpenCall | None
) -> Reply | None:
    """Return the agent's reply, after all notifications were sent; None if the call asks and waits for a next request.

    Raises:
        CallFailedError: `cancelled`, or `stopped` because the gateway is stopping.
    """
    channel = agent.channel(request.sender, request.options, request.asker)
    if open_call is None:
        work = agent.begin(call, channel)
        until: asyncio.Task[Any] = work
        if isinstance(request.asker, StreamAsker):
            request.asker.while_asking(lambda: running.ended_by_drain(work.cancel))
    else:
        open_call.attach(channel)
        work = open_call.work = open_call.work or agent.begin(call, open_call)
        until = work if request.round.ends else open_call.until_asked(work)
    with running.cancellations.listening(request.key, call, work.cancel):
        try:
            await channel.send_until(until)
        except asyncio.CancelledError:
            until.cancel()
            work.cancel()
            raise
        finally:
            if open_call is not None and (work.done() or work.cancelling()):
                open_call.work = None  # a task that was cancelled has the frames of the call, which refer to it
    if open_call is not None and not work.done():
        open_call.leave()
        if running.draining and not open_call.can_be_resumed:
            work.cancel()
            await asyncio.wait({work})  # what it has spent is known at its end
            raise cut_off(stopping=True)
        return None
    if work.cancelled():
        raise cut_off(stopping=running.draining)
    return work.result()


class ClientNotifications:
    """The `NotificationSender` of one request."""

    def __init__(self, context: ServerRequestContext[Any, Any], levels: LogLevels) -> None:
        self._session = context.session
        self._request_id = context.request_id
        self._token = _meta(context).get("progress_token")
        self._wants_messages = _wants_messages(context, levels)

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


def stream_options_of(context: ServerRequestContext[Any, Any], levels: LogLevels) -> StreamOptions:
    """The notifications that a request asks for."""
    meta = _meta(context)
    deltas = meta.get(STREAM_META_KEY) == "delta" and _wants_messages(context, levels)
    return StreamOptions(progress=meta.get("progress_token") is not None, deltas=deltas)


def _wants_messages(context: ServerRequestContext[Any, Any], levels: LogLevels) -> bool:
    """Clients of the 2026-07-28 era get messages only if the request asks for their level.

    Older ones get them unless they have set a higher level.
    """
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return levels.shows_info(headers_of(context).get(SESSION_HEADER))
    return _meta(context).get(LOG_LEVEL_META_KEY) in _LEVELS_THAT_SHOW_INFO


def _meta(context: ServerRequestContext[Any, Any]) -> Mapping[str, Any]:
    return context.meta or {}
