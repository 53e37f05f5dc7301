"""The instance of one call: a new session of the harness, its connections, the answer, and its disposal.

If a downstream cannot be reached, the call runs without its tools. Disposal runs in a task of its own, which no call
waits for.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic, perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from fast_agent.core.instruction_refresh import rebuild_agent_instruction
from mcp_types import TextContent

from pallas_gateway.calls.asking.pauses import PausableDeadline
from pallas_gateway.calls.current import Unshared, running_call
from pallas_gateway.calls.parameters import NO_PARAMETERS
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.runtime import fast_agent_api
from pallas_gateway.runtime.call.journal import CallJournal
from pallas_gateway.runtime.call.messages import (
    deadline_reply,
    failed,
    stopped_reply,
    to_fast_agent,
    to_reply,
    workflow_failure,
)
from pallas_gateway.runtime.call.parameters import AppliedParameters
from pallas_gateway.runtime.call.requested_tool import run_requested_tool
from pallas_gateway.runtime.call.steps import has_steps, load_contents, replayed
from pallas_gateway.runtime.downstreams.connections.connecting import attach
from pallas_gateway.runtime.downstreams.connections.connection_manager import (
    connections_of,
    faults_of,
    install,
    keep_order,
    tools_of,
)
from pallas_gateway.runtime.downstreams.credentials import (
    note_refusal,
    refusal_for_others,
    refuses_caller,
    token_endpoint_waited_for,
)
from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog
from pallas_gateway.runtime.downstreams.listings.reading import listing_within
from pallas_gateway.runtime.failures import failure_of, one_line
from pallas_gateway.runtime.scope import current_scope
from pallas_gateway.tasks import give_way, in_parts
from pallas_gateway.telemetry import traces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from fast_agent.core.harness import HarnessSession
    from fast_agent.interfaces import AgentProtocol, MessageHistoryAgentProtocol
    from fast_agent.mcp.mcp_aggregator import MCPAggregator
    from fast_agent.types import PromptMessageExtended

    from pallas_gateway.calls.asking.asking import Questions
    from pallas_gateway.calls.call import Call, Reply, TurnUsage
    from pallas_gateway.limits import RuntimeLimits
    from pallas_gateway.runtime.call.observer import Observer
    from pallas_gateway.runtime.call.peers import PeerConnection
    from pallas_gateway.runtime.call.turn_meter import TurnMeter
    from pallas_gateway.runtime.downstreams.listings.catalog import ToolCatalog
    from pallas_gateway.runtime.downstreams.listings.server_listing import Listing
    from pallas_gateway.runtime.downstreams.programs.program_listings import ProgramListings
    from pallas_gateway.tasks import TaskOwner

ATTACH_SECONDS_STDIO = 20.0
"""Longest wait of a call for a server that is a child process, which starts slowly on a busy machine."""
IMPATIENT_SECONDS = 30.0
"""Period after a time-out in which calls wait only `attach_seconds_after_timeout`."""

NO_PEERS: Mapping[str, PeerConnection] = MappingProxyType({})
_log = logging.getLogger("pallas.runtime")
_guard_log = logging.getLogger("pallas.loop_guard")


class Connections:
    """Connects the aggregators of one hosted agent, and logs when a downstream goes down or comes back."""

    def __init__(
        self,
        listings: ToolCatalog,
        log: DownstreamLog,
        limits: RuntimeLimits,
        *,
        programs: ProgramListings | None = None,
    ) -> None:
        self._offers = listings
        self._programs = programs
        self._log = log
        self.limits = limits
        self._timed_out_at: dict[str, float] = {}

    async def connect(
        self, aggregator: MCPAggregator, only: str | None = None, *, peers: Mapping[str, PeerConnection] = NO_PEERS
    ) -> None:
        """Connect `aggregator` to those of its servers that load at the start; leave out those that fail.

        `only`: connect it to this server, and to no other.
        """
        if peers:
            connections_of(aggregator).peers = peers
        config = aggregator.context.config
        servers = config.mcp.servers if config and config.mcp else {}
        unknown = []
        for name in aggregator.server_names if only is None else (only,):
            if (known := self._known(name)) is not None:
                install(known, aggregator, name)
                self._is_there(name)
            elif only is None and (server := servers.get(name)) is not None and not server.load_on_start:
                continue
            elif name not in peers:
                unknown.append(name)
            elif (listing := peers[name].listing) is not None:
                install(listing, aggregator, name)
        await asyncio.gather(*(self._attach(aggregator, name) for name in unknown))
        if unknown:
            keep_order(aggregator)

    async def _attach(self, aggregator: MCPAggregator, name: str) -> None:
        seconds = self._patience(aggregator, name)
        try:
            with traces.connecting(name), self._offers.receiving(name, aggregator):
                async with listing_within(seconds):
                    await self._connect_one(aggregator, name)
        except TimeoutError as error:
            if seconds > self.limits.attach_seconds_after_timeout:
                self._timed_out_at[name] = monotonic()
            slow = token_endpoint_waited_for(name)
            why = f"{error}{f' from {slow}' if slow else ''}"
            self._log.went_down(name, why, of_caller=bool(slow))
        except Exception as error:  # noqa: BLE001  the call goes on without a downstream that fails
            is_refused, for_others = refuses_caller(name, error), refusal_for_others(name, error)
            self._log.went_down(name, one_line(error), of_caller=is_refused, for_others=for_others)
            if is_refused:
                note_refusal(name, error)
        else:
            self._is_there(name)
            self._log.on_listed(name, tools_of(aggregator, name), faults_of(aggregator, name))

    def _known(self, name: str) -> Listing | None:
        return self._offers.of(name) or (self._programs.of(name) if self._programs is not None else None)

    async def _connect_one(self, aggregator: MCPAggregator, name: str) -> None:
        if self._programs is not None and name in self._programs.names:
            install(await self._programs.request(name), aggregator, name)
        else:
            await attach(aggregator, name)

    def _is_there(self, name: str) -> None:
        self._timed_out_at.pop(name, None)
        self._log.is_up(name)

    def _patience(self, aggregator: MCPAggregator, name: str) -> float:
        config = aggregator.context.config
        server = config.mcp.servers.get(name) if config and config.mcp else None
        if server is not None and server.transport == "stdio":
            return ATTACH_SECONDS_STDIO
        just_now = monotonic() - self._timed_out_at.get(name, float("-inf")) < IMPATIENT_SECONDS
        return self.limits.attach_seconds_after_timeout if just_now else self.limits.attach_seconds


class FastAgentInstance:
    """The `Instance` of one call."""

    def __init__(  # noqa: PLR0913  the parts of an instance
        self,
        session: HarnessSession,
        served: str,
        connect: Callable[[MCPAggregator, str | None], Awaitable[None]],
        observer: Observer,
        tasks: TaskOwner,
        *,
        meter: TurnMeter,
        limits: RuntimeLimits,
    ) -> None:
        self._session = session
        self._agents = session.agent_app.registered_agents()
        self._served = served
        self._connect_to_servers = connect
        self._limits = limits
        self._observer = observer
        self.tool_uses = observer.tool_uses
        self._meter = meter
        self._tasks = tasks
        self._work: asyncio.Task[Any] | None = None
        self._parameters: AppliedParameters | None = None
        self._journal: CallJournal | None = None
        self._deadline: asyncio.Timeout | None = None
        self._seconds = 0.0
        observer.watch_agents(self._agents.values())

    @property
    def turns(self) -> tuple[TurnUsage, ...]:
        return self._meter.spent.turns

    @property
    def iterations(self) -> int:
        return self._observer.iterations

    def keep_journal(self, questions: Questions, call: Call) -> CallJournal | None:
        """Return the journal of the call; None for one that never waits for its caller, or cannot be resumed.

        Raises:
            CallRefusedError: `call_again`, because the call cannot go on from where another process has left it.
        """
        checkpoint, recorder = call.checkpoint, call.recorder
        if not (questions.modes or call.may_become_task) and checkpoint is None and recorder is None:
            return None
        if has_journal(self._agents, self._served):
            agent = self._agents[self._served]
            self._journal = CallJournal(agent, questions, self._meter.spending, checkpoint, recorder)
        elif checkpoint is not None or (recorder is not None and recorder.rows):
            raise CallRefusedError("The agent has changed. Call the tool again.", reason="call_again")
        return self._journal

    @property
    def journal(self) -> CallJournal | None:
        return self._journal

    async def connect_one(self, aggregator: MCPAggregator, only: str | None = None) -> None:
        """Watch and connect one aggregator, of an agent or of a clone that is made during the call."""
        self._observer.watch_connections(aggregator)
        await self._connect_to_servers(aggregator, only)

    async def _connect(self) -> None:
        """Connect all agents of the instance concurrently."""
        aggregators = [agent.aggregator for agent in self._agents.values() if hasattr(agent, "aggregator")]
        if len(aggregators) == 1:
            await self.connect_one(aggregators[0])  # without another task
        else:
            await asyncio.gather(*map(self.connect_one, aggregators))
        for agent in self._agents.values():
            # Instructions with {{serverInstructions}} were built before the servers were connected.
            if "{{serverInstructions}}" in (getattr(agent, "instruction_template", None) or ""):
                await rebuild_agent_instruction(agent)

    async def generate(self, call: Call, *, timeout_seconds: float) -> Reply:
        self._work = generation = self._tasks.spawn(self._answer(call), name=f"generate {call.call_id}")
        is_over = await self._ends_within(generation, timeout_seconds)
        if is_over and (ended := self._meter.spending.ended) is not None:
            extra = {"event": "loop_halt", "reason": ended.stop, "agent": call.agent, "call_id": call.call_id}
            _guard_log.warning("call stopped by its budget", extra=extra)
            reply = stopped_reply(ended, self._observer.latest_texts)
        elif is_over:
            reply = _reply_of(generation)
            is_of_workflow = reply.failure is None and _is_workflow(self._agents[self._served])
            if is_of_workflow and self._observer.failed_turn is not None:
                reply = workflow_failure(self._observer.failed_turn)
        else:
            self._abandon(call)
            reply = deadline_reply(self._seconds, self._observer.latest_texts)
        seen = self._observer
        seen.end_spans(reply.failure or "cancelled")
        return replace(
            reply,
            iterations=self.iterations,
            turns=self.turns,
            halted=(*seen.halted, *reply.halted),
            stopped=reply.stopped or (seen.stopped if reply.failure is None else None),
            tools=tuple(one.name for one in self.tool_uses),
            **(self._parameters.outcome() if self._parameters is not None else {}),
        )

    async def run_tool(self, call: Call, *, timeout_seconds: float) -> Reply:
        work = run_requested_tool(call, self._agents, self._served, self.connect_one, self._observer)
        self._work = running = self._tasks.spawn(work, name=f"run a tool {call.call_id}")
        if await self._ends_within(running, timeout_seconds):
            reply = _ended_by_itself() if running.cancelled() else running.result()
        else:
            self._abandon(call)
            reply = failed("deadline", f"The tool did not answer within the {self._seconds:g} s for one call.")
        self._observer.end_spans(reply.failure or "cancelled")
        return replace(reply, turns=self.turns, tools=tuple(one.name for one in self.tool_uses))

    async def _ends_within(self, work: asyncio.Task[Any], seconds: float) -> bool:
        """Wait for the work of the call until its deadline; return False if it has not ended."""
        self._seconds = seconds
        try:
            return await self._limits.ends_within(work, seconds, self._suspended_while_asking)
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            self._meter.cut_off()
            self._observer.close_steps()

    @contextmanager
    def _suspended_while_asking(self, deadline: asyncio.Timeout) -> Iterator[None]:
        self._deadline = deadline
        try:
            with current_scope.get().questions.pauses.including(PausableDeadline(deadline)):
                yield
        finally:
            self._deadline = None  # it has the task, whose context refers to this instance

    def extend(self, seconds: float) -> None:
        if self._deadline is not None and not self._deadline.expired():
            self._seconds = seconds
            self._deadline.reschedule(asyncio.get_running_loop().time() + seconds)

    def _abandon(self, call: Call) -> None:
        """Cancel the work of a call at its deadline."""
        if self._work is not None:
            self._work.cancel()
        self._observer.abandon_tools()
        extra = {"event": "loop_halt", "reason": "deadline", "agent": call.agent, "call_id": call.call_id}
        _guard_log.warning("call stopped at its deadline", extra={**extra, "seconds": self._seconds})

    async def _answer(self, call: Call) -> PromptMessageExtended:
        if call.parameters != NO_PARAMETERS:
            self._parameters = AppliedParameters(call.parameters)
            await self._parameters.choose_model(self._agents, self._served)
        await self._connect()
        if self._parameters is not None:
            self._parameters.apply(self._agents, self._served)
        turns = (*call.history, call.message)
        if images := [image.data for turn in turns for image in turn.images]:
            running_call.set(replace(running_call.get(), images=images))  # for the rest of this task
        agent, message = self._agents[self._served], to_fast_agent(call.message)
        presented = current_scope.get().presented
        refusals = presented.refusals.values() if presented is not None else ()
        message.content = [*message.content, *(TextContent(type="text", text=f"[{one}]") for one in refusals)]
        for one in refusals:
            self._observer.report(one)
        if _is_workflow(agent):
            history = await in_parts(replayed(call.history, None, offers_tools=False))
            return await self._session.generate([*history, message], agent_name=self._served)
        llm = getattr(agent, "llm", None)
        offers_tools = has_steps(call.history) and bool((await agent.list_tools()).tools)
        with_history = cast("MessageHistoryAgentProtocol", agent)
        before = with_history.message_history  # of the agent's card
        history = [*before, *await in_parts(replayed(call.history, llm, offers_tools=offers_tools))]
        if offers_tools:
            load_contents(llm, history)
        began = perf_counter()
        with_history.load_message_history(Unshared(history))
        await give_way(began)
        return await self._session.generate(message, agent_name=self._served)

    async def dispose(self) -> None:
        """Release all resources of the call after its work has ended.

        Raises:
            Exception: any of fast-agent; the instance then still counts as live.
        """
        if self._work is not None:
            _, running = await asyncio.wait({self._work}, timeout=self._limits.dispose_seconds)
            if running:
                # Its instance is kept until it has stopped.
                _log.warning("call slow to stop")
                await asyncio.wait(running)
        loop = asyncio.get_running_loop()
        slow = loop.call_later(self._limits.dispose_seconds, _log.warning, "instance slow to release")
        try:
            async with asyncio.timeout(self._limits.give_up_seconds):
                await self._session.delete()
        except Exception:
            _log.exception("instance not released")
            raise
        finally:
            slow.cancel()
        fast_agent_api.break_cycles(self._session)
        self._work = None  # whose context refers to this instance


def has_journal(agents: Mapping[str, AgentProtocol], served: str) -> bool:
    """Return True for a single loop without agents of its own: the course of its calls can be recorded."""
    return len(agents) == 1 and not _is_workflow(agents[served])


def _is_workflow(agent: AgentProtocol) -> bool:
    """Return True for a chain, parallel, router …: it has no model and no history; its agents get its messages."""
    return getattr(agent, "llm", None) is None


def _ended_by_itself() -> Reply:
    return failed("runtime_error", "The agent stopped by itself before it answered.")


def _reply_of(generation: asyncio.Task[PromptMessageExtended]) -> Reply:
    """The answer. An exception of fast-agent becomes one sentence; its traceback is in the log."""
    if generation.cancelled():
        return _ended_by_itself()
    error = generation.exception()
    if error is None:
        return to_reply(generation.result())
    _log.error("generation failed", exc_info=error)
    return failed(*failure_of(error))
