"""One call's instance: a fresh harness session, its connections, the answer, and its disposal.

A downstream that cannot be reached costs its tools, never the call. Disposal runs in a task of its own, off the path
of the call that ended and of any other.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from fast_agent.core.instruction_refresh import rebuild_agent_instruction

from pallas_gateway.calls.pauses import PausableDeadline
from pallas_gateway.runtime.call.messages import (
    deadline_reply,
    failed,
    to_fast_agent,
    to_reply,
    turns_of,
    workflow_failure,
)
from pallas_gateway.runtime.call.parameters import AppliedParameters
from pallas_gateway.runtime.call_scope import current_scope
from pallas_gateway.runtime.downstreams.connecting import attach
from pallas_gateway.runtime.downstreams.credentials import token_endpoint_waited_for
from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog
from pallas_gateway.runtime.downstreams.manager import connections_of, keep_order, tools_of
from pallas_gateway.runtime.failures import failure_of, one_line
from pallas_gateway.telemetry import traces

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from fast_agent.core.harness import HarnessSession
    from fast_agent.interfaces import AgentProtocol, MessageHistoryAgentProtocol
    from fast_agent.mcp.mcp_aggregator import MCPAggregator
    from fast_agent.types import PromptMessageExtended

    from pallas_gateway.calls.call import Call, Reply, TurnUsage
    from pallas_gateway.limits import RuntimeLimits
    from pallas_gateway.runtime.call.observer import Observer
    from pallas_gateway.runtime.call.peers import PeerConnection
    from pallas_gateway.runtime.call_scope import Connect
    from pallas_gateway.runtime.downstreams.catalog import ToolCatalog
    from pallas_gateway.tasks import TaskOwner

ATTACH_SECONDS_STDIO = 20.0
"""A call waits so long for a server that is a child process: a busy machine takes its time to start one."""
IMPATIENT_SECONDS = 30.0
"""For how long after a time-out calls wait `attach_seconds_after_timeout` only."""

NO_PEERS: Mapping[str, PeerConnection] = MappingProxyType({})
_log = logging.getLogger("pallas.runtime")
_guard_log = logging.getLogger("pallas.loop_guard")


class Connections:
    """Connects the aggregators of one hosted agent and logs which downstreams are down, on the change."""

    def __init__(self, listings: ToolCatalog, log: DownstreamLog, limits: RuntimeLimits) -> None:
        self._offers = listings
        self._log = log
        self.limits = limits
        self._timed_out_at: dict[str, float] = {}

    async def connect(self, aggregator: MCPAggregator, *, peers: Mapping[str, PeerConnection] = NO_PEERS) -> None:
        """Have `aggregator` know what its servers offer: all that want to be loaded, without those that fail."""
        if peers:
            connections_of(aggregator).peers = peers
        config = aggregator.context.config
        servers = config.mcp.servers if config and config.mcp else {}
        unknown = []
        for name in aggregator.server_names:
            if (known := self._offers.of(name)) is not None:
                known.install(aggregator, name)
                self._is_there(name)
            elif (server := servers.get(name)) is not None and not server.load_on_start:
                continue
            elif name not in peers:
                unknown.append(name)
            elif (listing := peers[name].listing) is not None:
                listing.install(aggregator, name)
        await asyncio.gather(*(self._attach(aggregator, name) for name in unknown))
        if unknown:
            keep_order(aggregator)

    async def _attach(self, aggregator: MCPAggregator, name: str) -> None:
        seconds = self._patience(aggregator, name)
        try:
            with traces.connecting(name):
                async with asyncio.timeout(seconds):
                    await attach(aggregator, name)
        except TimeoutError:
            if seconds > self.limits.attach_seconds_after_timeout:
                self._timed_out_at[name] = monotonic()
            slow = token_endpoint_waited_for(name)
            self._log.went_down(name, f"no answer within {seconds:g} s{f' from {slow}' if slow else ''}")
        except Exception as error:  # noqa: BLE001  whatever a downstream does wrong, the call goes on without it
            self._log.went_down(name, one_line(error))
        else:
            self._is_there(name)
            self._log.listed(name, tools_of(aggregator, name))

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


async def defer_connections(aggregator: MCPAggregator) -> None:
    """Connect nothing yet: the instance is being made under locks that other calls wait for."""
    del aggregator


class FastAgentInstance:
    """The `Instance` of one call."""

    def __init__(  # noqa: PLR0913  what an instance works with
        self,
        session: HarnessSession,
        served: str,
        connect: Connect,
        observer: Observer,
        tasks: TaskOwner,
        *,
        limits: RuntimeLimits,
    ) -> None:
        self._session = session
        self._served = served
        self._connect_to_servers = connect
        self._limits = limits
        self._observer = observer
        self._tasks = tasks
        self._generation: asyncio.Task[PromptMessageExtended] | None = None
        self._parameters: AppliedParameters | None = None
        observer.watch_agents(self._agents.values())

    @property
    def turns(self) -> tuple[TurnUsage, ...]:
        """The LLM turns so far."""
        return turns_of(self._agents.values(), self._observer.accumulators)

    @property
    def iterations(self) -> int:
        """LLM turns begun so far, as the hooks have counted them."""
        return self._observer.iterations

    @property
    def tools(self) -> tuple[str, ...]:
        """Uses of tools so far."""
        return tuple(self._observer.tools)

    @property
    def _agents(self) -> Mapping[str, AgentProtocol]:
        return self._session.agent_app.registered_agents()

    @property
    def _is_workflow(self) -> bool:
        """A chain, parallel and the like: no model and no history of its own, it hands all of it on."""
        return getattr(self._agents[self._served], "llm", None) is None

    async def connect_one(self, aggregator: MCPAggregator) -> None:
        """Watch and connect one aggregator: an agent's own, or that of a clone made while the call runs."""
        self._observer.watch_connections(aggregator)
        await self._connect_to_servers(aggregator)

    async def _connect(self) -> None:
        """Connect every agent of the instance, agents side by side."""
        aggregators = [agent.aggregator for agent in self._agents.values() if hasattr(agent, "aggregator")]
        if len(aggregators) == 1:
            await self.connect_one(aggregators[0])  # a task less
        else:
            await asyncio.gather(*map(self.connect_one, aggregators))
        for agent in self._agents.values():
            # Instructions with {{serverInstructions}} were built before there was anything to put in.
            if "{{serverInstructions}}" in (getattr(agent, "instruction_template", None) or ""):
                await rebuild_agent_instruction(agent)

    async def generate(self, call: Call, *, timeout_seconds: float) -> Reply:
        """Answer the call; see `Instance.generate`."""
        self._generation = self._tasks.spawn(self._answer(call), name=f"generate {call.call_id}")
        try:
            is_over = await self._limits.ends_within(self._generation, timeout_seconds, _suspended_while_asking)
        except asyncio.CancelledError:
            self._generation.cancel()
            raise
        if is_over:
            reply = _reply_of(self._generation)
            if self._is_workflow and reply.failure is None and self._observer.failed_turn is not None:
                reply = workflow_failure(self._observer.failed_turn)
        else:
            self._generation.cancel()
            self._observer.abandon_tools()
            extra = {"event": "loop_halt", "reason": "deadline", "agent": call.agent, "call_id": call.call_id}
            _guard_log.warning("call stopped at its deadline", extra={**extra, "seconds": timeout_seconds})
            reply = deadline_reply(timeout_seconds, self._observer.latest_text)
        seen = self._observer
        seen.end_spans(reply.failure or "cancelled")
        return replace(
            reply,
            iterations=self.iterations,
            turns=self.turns,
            halted=(*seen.halted, *reply.halted),
            tools=self.tools,
            **(self._parameters.outcome() if self._parameters is not None else {}),
        )

    async def _answer(self, call: Call) -> PromptMessageExtended:
        self._parameters = parameters = AppliedParameters(call.parameters)
        await parameters.choose_model(self._agents, self._served)
        await self._connect()
        parameters.apply(self._agents, self._served)
        messages = [to_fast_agent(message) for message in (*call.history, call.message)]
        agent = self._agents[self._served]
        if self._is_workflow:
            return await self._session.generate(messages, agent_name=self._served)
        with_history = cast("MessageHistoryAgentProtocol", agent)
        with_history.load_message_history([*with_history.message_history, *messages[:-1]])  # a card may bring some
        return await self._session.generate(messages[-1], agent_name=self._served)

    async def dispose(self) -> None:
        """Release everything the call held, once its work has really ended.

        Raises:
            Exception: whatever fast-agent raises; the instance then counts as live, as it may well be.
        """
        if self._generation is not None:
            _, running = await asyncio.wait({self._generation}, timeout=self._limits.dispose_seconds)
            if running:
                _log.warning("call is slow to stop, its instance is kept until it does")
                await asyncio.wait(running)
        slow = asyncio.get_running_loop().call_later(self._limits.dispose_seconds, _say_slow)
        try:
            async with asyncio.timeout(self._limits.give_up_seconds):
                await self._session.delete()
        except Exception:
            _log.exception("instance could not be released")
            raise
        finally:
            slow.cancel()


def _suspended_while_asking(deadline: asyncio.Timeout) -> AbstractContextManager[None]:
    return current_scope.get().questions.pauses.including(PausableDeadline(deadline))


def _say_slow() -> None:
    _log.warning("instance is slow to be released")


def _reply_of(generation: asyncio.Task[PromptMessageExtended]) -> Reply:
    """The answer; whatever fast-agent raises becomes one sentence, its traceback stays in the log."""
    if generation.cancelled():
        return failed("runtime_error", "The agent stopped by itself before it answered.")
    error = generation.exception()
    if error is None:
        return to_reply(generation.result())
    _log.error("generation failed", exc_info=error)
    return failed(*failure_of(error))
