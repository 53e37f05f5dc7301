"""A call of a hosted agent as a stream of events, for the APIs other than MCP.

    async with begun(agent, call, gateway.running, live=True) as events:
        async for event in events:
            match event:
                case Admitted(): ...           # the first event; a refused call raises instead
                case TextDelta(text): ...      # joined, they are the text of the agent
                case ToolCalled(): ...         # id, agent, server, name, arguments
                case ToolResulted(): ...       # the same id, and success or failure
                case Streamed(payload): ...    # only with `payloads`: the assistant stream, also of peers
                case Asked(): ...              # only with `asks`: set its answer
                case QuestionClosed(): ...     # the id of that question
                case DrainBegun(): ...         # the gateway is stopping: a call that waits for its caller ends
                case Replied(reply): ...       # the last event; `reply.failure` is set for a failure

The events are defined in `events/call_events.py`. Leaving the block before `Replied` cancels the call with its LLM
request, tools and peers. So code that waits for a client must leave the block when the client disconnects.

`hosting.answering.serve_call` makes the call and handles the errors that are raised here.
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.events.call_events import EventChannel

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, AsyncIterator

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.events.call_events import Event
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.hosting.running_calls import RunningCalls


@asynccontextmanager
async def begun(  # noqa: PLR0913  options are keywords
    agent: HostedAgent,
    call: Call,
    running: RunningCalls,
    *,
    live: bool,
    asks: bool = False,
    payloads: bool = False,
) -> AsyncIterator[AsyncIterator[Event]]:
    """Begin `call`. Its events are read once, inside the block.

    Args:
        agent: answers the call.
        call: the request.
        running: the calls of this process.
        live: text comes while the model produces it; otherwise at the end of each turn, which costs less.
        asks: questions of the call are events; otherwise the caller cannot be asked.
        payloads: payloads of the assistant stream are events, too.

    Raises:
        CallRefusedError: before the first event: `busy`, `images_unsupported`, …
        AgentUnavailableError: before the first event: the agent is not ready.
        CallFailedError: between events: the call was cut off, `stopped` or `cancelled`.
    """
    channel = EventChannel(live=live, asks=asks, payloads=payloads)
    work = agent.begin(call, channel)
    work.add_done_callback(lambda _: channel.close())
    try:
        async with aclosing(_events(channel, work, running)) as events:
            with running.ended_by_drain(channel.drain) if asks else nullcontext():
                yield events
    finally:
        work.cancel()


async def _events(channel: EventChannel, work: asyncio.Task[Reply], running: RunningCalls) -> AsyncGenerator[Event]:
    async for event in channel.events():
        yield event
    if work.cancelled():
        raise cut_off(stopping=running.draining)
    for event in channel.ending(work.result()):
        yield event
