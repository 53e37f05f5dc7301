"""One call's instance: a fresh harness session, its connections, the answer, and its disposal.

A downstream that cannot be reached costs its tools, never the call. Disposal runs in a task of its own, off the path
of the call that ended and of any other.
"""

from __future__ import annotations

import asyncio
import logging
from traceback import walk_tb
from typing import TYPE_CHECKING, cast

import httpx2
from fast_agent.core.exceptions import FastAgentError, walk_exception_chain
from fast_agent.core.instruction_refresh import rebuild_agent_instruction
from fast_agent.mcp.mcp_aggregator import MCPAttachOptions

from pallas_gateway.errors import CallFailedError
from pallas_gateway.runtime.messages import deadline_reply, to_fast_agent, to_reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fast_agent.core.harness import HarnessSession
    from fast_agent.interfaces import AgentProtocol, MessageHistoryAgentProtocol
    from fast_agent.mcp.mcp_aggregator import MCPAggregator
    from fast_agent.types import PromptMessageExtended

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.tasks import TaskOwner

ATTACH_SECONDS = 5.0
"""How long a call waits for one downstream before it runs without that server's tools."""
ATTACH_SECONDS_AFTER_TIMEOUT = 1.0
"""The same for a downstream that made the last call wait in vain: it should not cost every call the full time."""
DISPOSE_SECONDS = 10.0
"""A hung MCP child must not be waited for for ever."""

_log = logging.getLogger("pallas.runtime")
_options = MCPAttachOptions(startup_timeout_seconds=None)  # type: ignore[arg-type]  # None is taken, and does not poll


class Connections:
    """Connects the aggregators of one hosted agent and remembers which downstreams are down, to say so once."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._down: dict[str, str] = {}

    async def connect(self, aggregator: MCPAggregator) -> None:
        """Attach every server of `aggregator` that wants to be loaded; go on without those that fail."""
        config = aggregator.context.config
        servers = config.mcp.servers if config and config.mcp else {}
        for name in list(aggregator.server_names):
            if (server := servers.get(name)) is None or server.load_on_start:
                await self._attach(aggregator, name)

    async def _attach(self, aggregator: MCPAggregator, name: str) -> None:
        seconds = ATTACH_SECONDS_AFTER_TIMEOUT if self._down.get(name) == "timeout" else ATTACH_SECONDS
        try:
            async with asyncio.timeout(seconds):
                await aggregator.attach_server(server_name=name, options=_options)
        except TimeoutError:
            self._went_down(name, "timeout", f"no answer within {seconds:g} s")
        except Exception as error:  # noqa: BLE001  whatever a downstream does wrong, the call goes on without it
            self._went_down(name, "error", _one_line(error))
        else:
            if self._down.pop(name, None) is not None:
                _log.info("downstream is back", extra={"agent": self._agent, "server": name})

    def _went_down(self, name: str, kind: str, why: str) -> None:
        if name not in self._down:
            extra = {"agent": self._agent, "server": name, "error": why}
            _log.warning("downstream unreachable, calls go on without its tools", extra=extra)
        self._down[name] = kind


async def defer_connections(aggregator: MCPAggregator) -> None:
    """Connect nothing yet: the instance is being made under locks that other calls wait for."""
    del aggregator


class FastAgentInstance:
    """The `Instance` of one call."""

    def __init__(self, session: HarnessSession, served: str, connections: Connections, tasks: TaskOwner) -> None:
        self._session = session
        self._served = served
        self._connections = connections
        self._tasks = tasks
        self._generation: asyncio.Task[PromptMessageExtended] | None = None

    @property
    def _agents(self) -> Mapping[str, AgentProtocol]:
        return self._session.agent_app.registered_agents()

    async def connect(self) -> None:
        """Attach the downstreams of every agent of the instance, agents side by side."""
        aggregators = [agent.aggregator for agent in self._agents.values() if hasattr(agent, "aggregator")]
        await asyncio.gather(*(self._connections.connect(aggregator) for aggregator in aggregators))
        for agent in self._agents.values():
            # Instructions with {{serverInstructions}} were built before there was anything to put in.
            if "{{serverInstructions}}" in (getattr(agent, "instruction_template", None) or ""):
                await rebuild_agent_instruction(agent)

    async def generate(self, call: Call, *, timeout_seconds: float) -> Reply:
        """Answer the call; see `Instance.generate`."""
        self._generation = self._tasks.spawn(self._answer(call), name=f"generate {call.call_id}")
        try:
            done, _ = await asyncio.wait({self._generation}, timeout=timeout_seconds)
        except asyncio.CancelledError:
            self._generation.cancel()
            raise
        if not done:
            self._generation.cancel()
            _log.warning(
                "call stopped at its deadline",
                extra={"event": "loop_halt", "reason": "deadline", "agent": call.agent, "call_id": call.call_id},
            )
            return deadline_reply(timeout_seconds, self._agents.values())
        return to_reply(_result(self._generation), self._agents.values())

    async def _answer(self, call: Call) -> PromptMessageExtended:
        messages = [to_fast_agent(message) for message in (*call.history, call.message)]
        agent = self._agents[self._served]
        if getattr(agent, "llm", None) is None:
            # A workflow (chain, parallel, router …) has no model and no history of its own: it hands all of it on.
            return await self._session.generate(messages, agent_name=self._served)
        cast("MessageHistoryAgentProtocol", agent).load_message_history(messages[:-1])
        return await self._session.generate(messages[-1], agent_name=self._served)

    async def dispose(self) -> None:
        """Release everything the call held; bounded, and logged when it does not work."""
        try:
            async with asyncio.timeout(DISPOSE_SECONDS):
                if self._generation is not None:
                    await asyncio.wait({self._generation})
                await self._session.delete()
        except Exception:  # noqa: BLE001  nobody is left to tell but the log
            _log.exception("instance could not be released", extra={"call_id": self._session.id})


def _result(generation: asyncio.Task[PromptMessageExtended]) -> PromptMessageExtended:
    """The answer; whatever fast-agent raises becomes one sentence, its traceback stays in the log."""
    try:
        return generation.result()
    except asyncio.CancelledError:
        raise CallFailedError("The agent stopped by itself before it answered.", reason="runtime_error") from None
    except Exception as error:
        _log.exception("agent failed")
        if _came_from_the_model(error):
            raise CallFailedError(f"The model could not answer: {_one_line(error)}", reason="llm_error") from error
        raise CallFailedError(f"The agent failed: {_one_line(error)}", reason="runtime_error") from error


def _came_from_the_model(error: BaseException) -> bool:
    """Whether it passed through fast-agent's providers, which return most failures of a model but raise some."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__", "").startswith("fast_agent.llm.") for frame in frames)


def _one_line(error: BaseException) -> str:
    """The most telling line of an exception: fast-agent wraps causes, groups and whole tracebacks into its own."""
    chain = list(walk_exception_chain(error))
    telling = [e for e in chain if not isinstance(e, (FastAgentError, BaseExceptionGroup))]
    # The HTTP library's own error only repeats the status, and shows the URL; the provider's around it has the reason.
    reasons = [e for e in telling if not isinstance(e, httpx2.HTTPStatusError)] or telling
    deepest = reasons[-1] if reasons else error
    if type(deepest).__name__ == "LocalProtocolError":  # h11's and its wrappers': their text shows the header
        return "a configured header holds a character that HTTP does not allow"
    lines = [line.strip() for line in str(deepest).splitlines() if line.strip()]
    return (lines[0] if lines else type(deepest).__name__)[:300]
