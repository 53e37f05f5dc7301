"""A call of a hosted agent as a stream of events, for the APIs other than MCP.

    async with begun(agent, call, gateway.running, live=True) as events:
        async for event in events:
            match event:
                case Admitted(): ...           # the first one; what is refused raises instead
                case TextDelta(text): ...      # joined as they are: all that the served agent says
                case ToolCalled(): ...         # id, agent, server, name, arguments
                case ToolResulted(): ...       # the same id, and whether it went well
                case Streamed(payload): ...    # only with `payloads`: the assistant stream, also of peers
                case Asked(): ...              # only with `asks`: set its answer
                case QuestionClosed(): ...     # the id of that question
                case DrainBegun(): ...         # the gateway is stopping: a call that waits for its caller ends
                case Replied(reply): ...       # always the last one; look at `reply.failure`

The events are those of `calls/events.py`. Leaving the block before `Replied` cancels the call: its LLM request, its
tools, its peers. So code that waits for a client must leave the block when the client disconnects.

`agents.answering.serve_call` has made the call and handles what is raised here.
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.events import EventChannel

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, AsyncIterator

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.events import Event
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.hosting.hosted_agent import HostedAgent


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
    """Begin `call`; its events may be read once, inside the block.

    Args:
        agent: answers it.
        call: what was asked.
        running: the gateway's, to say why a call was cut off.
        live: text comes as the model produces it; otherwise turn by turn, which costs less.
        asks: questions of the call are events; otherwise the caller cannot be asked.
        payloads: payloads of the assistant stream are events, too.

    Raises:
        CallRefusedError: while events are read, before the first one: `busy`, `images_unsupported`, …
        AgentUnavailableError: likewise; the agent is not ready.
        CallFailedError: while events are read: the call was cut off, `stopped` or `cancelled`.
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
