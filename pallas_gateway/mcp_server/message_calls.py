"""The calls of an agent's message tool: how MCP requests reach `hosting.answering`, and the results go back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from mcp import MCPError

from pallas_gateway.calls import nesting
from pallas_gateway.calls.call import Reply
from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.events.queue import EventQueue
from pallas_gateway.hosting.answering import IncomingCall, serve_call
from pallas_gateway.mcp_server.envelope import caller_of, headers_of, key_of
from pallas_gateway.mcp_server.notifications import ClientNotifications, Notifications, stream_options_of
from pallas_gateway.mcp_server.rounds import (
    FIRST_ROUND,
    NEW_CALL,
    Continued,
    Round,
    call_of,
    gone,
    questions_result,
    resumption_of,
)
from pallas_gateway.mcp_server.stream_asking import StreamAsker
from pallas_gateway.mcp_server.tools import call_result, conversation_id_of, parse_call
from pallas_gateway.questions.asking import CANNOT_ASK
from pallas_gateway.questions.call_client import CallClient
from pallas_gateway.questions.used_states import StatesUnavailableError
from pallas_gateway.tasks import give_way

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult

    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.cancellation import RequestKey
    from pallas_gateway.calls.log_levels import LogLevels
    from pallas_gateway.events.progress import NotificationSender
    from pallas_gateway.events.queue import StreamOptions
    from pallas_gateway.hosting.answering import AnsweredCall
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.hosting.running_calls import RunningCalls
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.mcp_server.envelope import Context
    from pallas_gateway.questions.asking import Asker
    from pallas_gateway.questions.open_calls import OpenCall, OpenCalls
    from pallas_gateway.runtime.protocols import Parent

type MessageResult = CallToolResult | InputRequiredResult


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """One `tools/call`, of a client over HTTP or of another agent of this gateway.

    Attributes:
        caller: makes the request.
        headers: of the HTTP request; for a nested call the headers that continue the trace.
        sender: sends the notifications.
        options: the notifications to send.
        asker: puts questions to the caller.
        on_begun: takes what has to be entered while a question is open.
        key: by which another request of the client can cancel this one; None if it cannot.
        round: its part of a call that asks its client.
        parent: the call that makes the request; None for a client.
        nesting: the number of calls above it, as the client states it.
    """

    caller: Caller
    headers: Mapping[str, str]
    sender: NotificationSender
    options: StreamOptions
    asker: Asker = CANNOT_ASK
    on_begun: Callable[[Callable[[], AbstractContextManager[None]]], object] = lambda _: None
    key: RequestKey | None = None
    round: Round = FIRST_ROUND
    parent: Parent | None = None
    nesting: int = 0

    @classmethod
    def over_http(cls, context: Context, params: CallToolRequestParams, endpoint: str, levels: LogLevels) -> Self:
        """Return the request that came in at `endpoint`."""
        asker = StreamAsker(context)
        return cls(
            caller_of(context),
            headers_of(context),
            ClientNotifications(context),
            stream_options_of(context, levels),
            asker,
            asker.while_asking,
            key_of(context, endpoint, context.request_id),
            Round.of(context, params),
            nesting=nesting.stated((context.meta or {}).get(nesting.META_KEY)),
        )


async def answer_message(
    agent: HostedAgent, running: RunningCalls, arguments: dict[str, Any], request: ToolRequest
) -> MessageResult:
    """Return the agent's answer, or the reason why there is none, or the questions of the call.

    Args:
        agent: answers.
        running: the calls of this process.
        arguments: of the tool, unchecked.
        request: the caller, and the receiver of notifications.

    Raises:
        MCPError: the request continues a call with a state or answers that cannot be used.
    """
    continued = NEW_CALL if request.round.state is None else await _continued(agent, running.open_calls, request.round)
    open_call: OpenCall | None = None

    async def parse(asked: Call) -> Call:
        if (waiting := continued.waiting_call()) is not None:
            return waiting
        began = perf_counter()
        call = parse_call(asked, arguments, agent.settings, max_entries=agent.max_history_entries)
        await give_way(began)
        return continued.resuming(call)

    async def answer(call: Call) -> Reply:
        nonlocal open_call
        open_call = continued.open_call(call, request.round.modes, running.open_calls)
        if open_call is None:
            return await _reply(agent, running, call, request)
        return await _reply_or_questions(agent, running, request, open_call)

    async def deliver(answered: AnsweredCall) -> MessageResult:
        if answered.reply is _ASKS and open_call is not None:
            return questions_result(open_call, running.open_calls.detach(open_call))
        return call_result(answered, agent.trace_url(answered.call))

    incoming = IncomingCall(
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
        return await serve_call(incoming, parse, answer, deliver)
    finally:
        await continued.ended(running.open_calls)


async def _reply(agent: HostedAgent, running: RunningCalls, call: Call, request: ToolRequest) -> Reply:
    """Return the agent's reply, after all notifications were sent.

    Raises:
        CallFailedError: `cancelled`, or `stopped` because the gateway is stopping.
    """
    events = EventQueue(request.options)
    work = agent.begin(call, CallClient(events, request.options, request.asker))
    request.on_begun(lambda: running.ended_by_drain(work.cancel))
    with running.cancellations.listening(request.key, call, work.cancel):
        try:
            await _notifications(agent, events, request).send_until(work)
        except asyncio.CancelledError:
            work.cancel()
            raise
    if work.cancelled():
        raise cut_off(stopping=running.draining)
    return work.result()


def _notifications(agent: HostedAgent, events: EventQueue, request: ToolRequest) -> Notifications:
    seconds, on_heartbeat = agent.heartbeat_seconds, agent.count_heartbeat
    return Notifications(agent.name, events, request.sender, heartbeat_seconds=seconds, on_heartbeat=on_heartbeat)


async def _reply_or_questions(
    agent: HostedAgent, running: RunningCalls, request: ToolRequest, open_call: OpenCall
) -> Reply:
    """Return the reply of a call that may continue in another request; `_ASKS` if it waits for that request.

    Raises:
        CallFailedError: `cancelled`, or `stopped` because the gateway is stopping.
    """
    open_call.attach(request.options)
    work = open_call.work = open_call.work or agent.begin(open_call.call, open_call)
    until: asyncio.Task[Any] = work if request.round.ends else open_call.until_asked(work)
    with running.cancellations.listening(request.key, open_call.call, work.cancel):
        try:
            await _notifications(agent, open_call.events, request).send_until(until)
        except asyncio.CancelledError:
            until.cancel()
            work.cancel()
            raise
        finally:
            if work.done() or work.cancelling():
                open_call.work = None  # a cancelled task has the frames of the call, which refer to the task
    if not work.done():
        open_call.leave()
        if not running.draining or open_call.can_be_resumed:
            return _ASKS
        work.cancel()
        await asyncio.wait({work})  # only then the tokens that the call has used are known
    if work.cancelled():
        raise cut_off(stopping=running.draining)
    return work.result()


async def _continued(agent: HostedAgent, calls: OpenCalls, round_: Round) -> Continued:
    """Return the call that a request continues or ends."""
    try:
        if not calls.is_elsewhere(round_.state):
            found = Continued(await call_of(calls, round_, agent.name))
        else:
            resumed = await resumption_of(calls, round_)
            found = Continued(resumed=resumed, is_lost=resumed is None)
    except StatesUnavailableError as error:
        return Continued(refused=error)
    except MCPError:
        if not round_.ends:
            raise
        return gone(calls, round_)
    return gone(calls, round_, found) if round_.ends and found.waiting is None else found


_ASKS = Reply((), "input_required")
"""In place of the reply of a call that waits for its next request."""
