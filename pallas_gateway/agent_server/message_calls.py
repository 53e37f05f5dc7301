"""The calls of an agent's message tool: MCP's side of `agents.answering`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pallas_gateway.agent_server.client_notifications import ClientNotifications, stream_options_of
from pallas_gateway.agent_server.requests import caller_of, headers_of, key_of
from pallas_gateway.agent_server.tools import call_result, conversation_id_of, parse_call
from pallas_gateway.agents.answering import Arrival, serve_call
from pallas_gateway.calls.cancellation import cut_off

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from pallas_gateway.agent_server.requests import Context
    from pallas_gateway.agents.answering import Answered
    from pallas_gateway.agents.hosted_agent import HostedAgent
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.nesting import RunningCalls


async def answer_message(
    agent: HostedAgent, running: RunningCalls, context: Context, arguments: dict[str, Any], *, endpoint: str
) -> CallToolResult:
    """Return the agent's answer, or a result that says why there is none; the client is notified meanwhile.

    Args:
        agent: answers.
        running: calls of this process.
        context: the request.
        arguments: of the tool, unchecked.
        endpoint: where the request came in; it is cancelled there.
    """

    async def parse(asked: Call) -> Call:
        return parse_call(asked, arguments, agent.settings, max_entries=agent.max_history_entries)

    async def answer(call: Call) -> Reply:
        return await _reply(agent, running, context, call, endpoint)

    async def deliver(answered: Answered) -> CallToolResult:
        return call_result(answered)

    conversation = conversation_id_of(arguments)
    arrival = Arrival(agent, caller_of(context), headers_of(context), running, conversation, mcp_method="tools/call")
    return await serve_call(arrival, parse, answer, deliver)


async def _reply(agent: HostedAgent, running: RunningCalls, context: Context, call: Call, endpoint: str) -> Reply:
    """Return the agent's reply, after all notifications were sent.

    Raises:
        CallFailedError: `cancelled` by the client, or `stopped` because the gateway is stopping.
    """
    key = key_of(context, endpoint, context.request_id)
    channel = agent.channel(ClientNotifications(context), stream_options_of(context))
    work = agent.begin(call, channel)
    with running.cancellations.listening(key, call, work.cancel):
        try:
            await channel.send_until(work)
        except asyncio.CancelledError:
            work.cancel()
            raise
    if work.cancelled():
        raise cut_off(stopping=running.draining)
    return work.result()
