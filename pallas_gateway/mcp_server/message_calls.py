"""The calls of an agent's message tool: how MCP requests reach `hosting.answering`, and the results go back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.events.queue import EventQueue
from pallas_gateway.hosting.answering import serve_call
from pallas_gateway.mcp_server.continued_calls import continue_call, reply_or_questions, result_of
from pallas_gateway.mcp_server.tool_requests import parsed
from pallas_gateway.questions.call_client import CallClient
from pallas_gateway.questions.waiting_calls import WaitingCall

if TYPE_CHECKING:
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.hosting.answering import AnsweredCall
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.hosting.running_calls import RunningCalls
    from pallas_gateway.mcp_server.tool_requests import MessageResult, ToolRequest


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
    if request.round.state is not None:
        return await continue_call(agent, running, arguments, request)
    waiting: WaitingCall | None = None  # a call of a client that answers questions by repeating its request

    async def parse(asked: Call) -> Call:
        return await parsed(asked, arguments, agent)

    async def answer(call: Call) -> Reply:
        nonlocal waiting
        if not request.round.modes:
            return await _reply(agent, running, call, request)
        waiting = WaitingCall(call, request.round.modes)
        return await reply_or_questions(agent, running, request, waiting)

    async def deliver(answered: AnsweredCall) -> MessageResult:
        return result_of(answered, agent, running, waiting)

    return await serve_call(request.incoming(agent, arguments), parse, answer, deliver)


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
            await request.notifications(agent, events).send_until(work)
        except asyncio.CancelledError:
            work.cancel()
            raise
    if work.cancelled():
        raise cut_off(stopping=running.draining)
    return work.result()
