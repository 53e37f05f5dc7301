"""The calls of an agent's message tool: how MCP requests become `RunningCall`s, and the results go back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.events.queue import EventQueue
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.core.waiting_calls import WaitingCall
from pallas_gateway.doors.mcp.continued_calls import continue_call, reply_or_questions, result_of
from pallas_gateway.doors.mcp.tool_requests import parsed

if TYPE_CHECKING:
    from pallas_gateway.calls.call import Reply
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.parts import Sessions
    from pallas_gateway.doors.mcp.tasks import McpTasks
    from pallas_gateway.doors.mcp.tool_requests import McpToolRequest, MessageResult


async def answer_message(
    agent: HostedAgent, sessions: Sessions, arguments: dict[str, Any], request: McpToolRequest, tasks: McpTasks | None
) -> MessageResult:
    """Return the agent's answer, or the reason why there is none, or the questions of the call, or its task.

    Args:
        agent: answers.
        sessions: of this process.
        arguments: of the tool, unchecked.
        request: the caller, and the receiver of notifications.
        tasks: of the gateway; None if it has no database.

    Raises:
        MCPError: the agent requires a client that accepts tasks; or the request continues a call with a state or
            answers that cannot be used.
    """
    becomes_task = tasks is not None and tasks.accepts(agent, request)
    if request.round.state is not None:
        return await continue_call(agent, sessions, arguments, request, tasks)
    waiting: WaitingCall | None = None  # a call of a client that answers questions by repeating its request
    with request.of(agent, arguments) as asked:
        with asked.answering():
            call = await asked.decoded(lambda call: parsed(call, arguments, agent))
            if tasks is not None and becomes_task:
                waiting = tasks.call(agent, call, request.round.modes, arguments)
                asked.ended(await reply_or_questions(sessions, request, waiting))
            elif request.round.modes:
                waiting = WaitingCall(agent, call, request.round.modes)
                asked.ended(await reply_or_questions(sessions, request, waiting))
            else:
                events = EventQueue(request.options)
                one = RunningCall(agent, call, events, request.options, request.asker)
                asked.ended(await _reply(sessions, request, one, events))
        return result_of(asked, sessions, waiting)


async def _reply(sessions: Sessions, request: McpToolRequest, call: RunningCall, events: EventQueue) -> Reply:
    """Return the agent's reply, after all notifications were sent.

    Raises:
        CallFailedError: `cancelled`, or `stopped` because the gateway is stopping.
    """
    work = call.begin()
    with sessions.cancellations.listening(request.key, call.call, work.cancel):
        try:
            await request.notifications(call.agent, events).send_until(work)
        except asyncio.CancelledError:
            work.cancel()
            raise
    return call.result_of(work)
