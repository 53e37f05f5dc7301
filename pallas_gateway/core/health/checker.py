"""Health of one agent, whose concurrent requests share one round of probes; and the regular rounds of all agents."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.core.health.probe import ProbeResult, probe
from pallas_gateway.core.health.verdict import WORTH, judge
from pallas_gateway.runtime.protocols import CANNOT_LIST, ProgramState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    import httpx

    from pallas_gateway.core.health.verdict import Life, LlmResult, Verdict
    from pallas_gateway.limits import HealthLimits
    from pallas_gateway.runtime.protocols import Downstream
    from pallas_gateway.tasks import TaskOwner
    from pallas_gateway.telemetry.metrics import Metrics

    type HealthRound = asyncio.Task[tuple[ProbeResult, ...]]


_log = logging.getLogger("pallas.health")
AGENTS_AT_ONCE = 10
REFUSED_CALLS = 3
"""A server that receives callers' tokens is reported after it has refused so many calls in a row."""


@dataclass(frozen=True, slots=True)
class _Refusals:
    """Calls that a server has refused in a row, why, and when the last of them was."""

    calls: int
    error: str
    latest: float


class HealthChecker:
    """Probes an agent's downstreams, judges its health and updates the health gauges."""

    def __init__(  # noqa: PLR0913  what all checkers share is apart from what is the agent's
        self,
        agent: str,
        *,
        client: httpx.AsyncClient,
        tasks: TaskOwner,
        metrics: Metrics,
        peer_problem: Callable[[str], str | None],
        limits: HealthLimits,
    ) -> None:
        self._agent = agent
        self._client = client
        self._peer_problem = peer_problem
        self._tasks = tasks
        self._metrics = metrics
        self._limits = limits
        self._round: HealthRound | None = None
        self._began = 0.0
        self._latest: dict[str, ProbeResult] = {}
        self._program_answered: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._refused: dict[str, _Refusals] = {}
        self._unlisted: dict[str, tuple[str, float]] = {}
        self._is_over = False

    async def check(
        self, downstreams: tuple[Downstream, ...] | None, life: Life, asking: Awaitable[LlmResult | None]
    ) -> Verdict:
        """The present verdict, with the result of the provider, which is awaited while the downstreams are probed.

        `downstreams` is None for an agent that was not started, which is not probed.
        """
        if life.not_ready is not None or downstreams is None:
            return self._counted(judge(life, (), await asking))
        probes, llm = await asyncio.gather(asyncio.shield(self._current_round(downstreams)), asking)
        return self._counted(judge(life, probes, llm))

    async def refresh(self, downstreams: tuple[Downstream, ...] | None, life: Life, llm: LlmResult | None) -> None:
        """Update the gauges; see `GatewaySettings.health_seconds` for the servers that are left out."""
        if life.not_ready is None and downstreams is not None:
            due = tuple(one for one in downstreams if self._is_due(one))
            for result in await asyncio.gather(*(self._probe(one) for one in due)):
                self._keep(result)
        self.note(life, llm)

    def report(self, server: str, error: str | None, *, refused: bool) -> None:
        """Take the state of a server from a call that has tried to use it."""
        if refused:
            before = self._refused.get(server, _Refusals(0, "", 0.0))
            self._refused[server] = _Refusals(before.calls + 1, error or "", monotonic())
            return
        if error is None:
            self._refused.pop(server, None)
            self._unlisted.pop(server, None)
        elif error.startswith(CANNOT_LIST):
            self._unlisted[server] = error, monotonic()
        before_that = self._latest.get(server)
        self._keep(ProbeResult(server, 0.0, error, before_that.protocol if before_that else None))

    def note(self, life: Life, llm: LlmResult | None) -> None:
        """Set the agent's gauge after a change of its state, from the latest results, without a probe."""
        self._counted(judge(life, tuple(map(self._with_refusals, self._latest.values())), llm))

    def forget(self, still_used: Collection[str]) -> None:
        """Discard the round after a change of the agent's version, with the results and gauges of unused servers."""
        for server in self._latest.keys() - set(still_used):
            del self._latest[server]
            for known in (self._program_answered, self._asked_at, self._refused, self._unlisted):
                known.pop(server, None)
            self._metrics.forget_downstream(self._agent, server)
        self._round = None

    def end(self) -> None:
        """End the gauges of an agent that is no longer hosted; a running check is still answered."""
        self.forget(())
        self._is_over = True
        self._metrics.forget_health(self._agent)

    def _counted(self, verdict: Verdict) -> Verdict:
        if not self._is_over:
            self._metrics.health_status.labels(self._agent).set(WORTH[verdict.status])
        return verdict

    def _current_round(self, downstreams: tuple[Downstream, ...]) -> HealthRound:
        is_old = monotonic() - self._began > self._limits.fresh_seconds
        stale = self._round is not None and self._round.done() and is_old
        if self._round is None or stale or self._round.cancelled():
            self._began = monotonic()
            self._round = self._tasks.spawn(self._probe_all(downstreams), name=f"health {self._agent}")
        return self._round

    async def _probe_all(self, downstreams: tuple[Downstream, ...]) -> tuple[ProbeResult, ...]:
        results = tuple(await asyncio.gather(*(self._probe(downstream) for downstream in downstreams)))
        if asyncio.current_task() is not self._round:  # `forget` has discarded this round
            return results
        for result in results:
            self._keep(result)
        return tuple(self._with_refusals(self._latest[result.server]) for result in results)

    def _is_due(self, downstream: Downstream) -> bool:
        """False for servers that the gateway's own rounds leave out: they would start a program, or ask too often."""
        if downstream.peer is None and downstream.url is None:
            return downstream.program_state is not None and downstream.program_state() is not None
        asked = self._asked_at.get(downstream.name, float("-inf"))
        return not downstream.forwards_bearer or monotonic() - asked > self._limits.callers_seconds

    def _keep(self, result: ProbeResult) -> None:
        if not self._is_over:
            before = self._latest.get(result.server)
            is_unchanged = before is not None and (before.error is None) == (result.error is None)
            since = before.since if before is not None and is_unchanged else datetime.now(UTC)
            self._latest[result.server] = replace(result, since=since)
            self._metrics.downstream_up.labels(self._agent, result.server).set(result.error is None)

    def _with_refusals(self, result: ProbeResult) -> ProbeResult:
        refused = self._refused.get(result.server)
        if refused is None or result.error is not None or refused.calls < REFUSED_CALLS:
            return result
        if monotonic() - refused.latest > self._limits.refused_seconds:
            return result
        return replace(result, refuses=f"the last {refused.calls} calls: {refused.error}")

    async def _probe(self, downstream: Downstream) -> ProbeResult:
        result = await self._reached(downstream)
        why = await self._why_unlisted(downstream) if result.error is None else None
        return replace(result, error=why) if why is not None else result

    async def _why_unlisted(self, downstream: Downstream) -> str | None:
        """Why the tools of a reachable server cannot be listed; they are listed again, if that needs no call."""
        name = downstream.name
        if name in self._unlisted:
            await self._list_again(downstream)
        why, seen_at = self._unlisted.get(name, (None, 0.0))
        is_old = downstream.list_again is None and monotonic() - seen_at > self._limits.refused_seconds
        return None if is_old else why

    async def _list_again(self, downstream: Downstream) -> None:
        if downstream.list_again is not None:
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(self._limits.probe_seconds):
                    await downstream.list_again()

    async def _reached(self, downstream: Downstream) -> ProbeResult:
        name = downstream.name
        self._asked_at[name] = monotonic()
        if downstream.peer is not None:  # judged by its state: a peer's endpoint answers in every state
            return ProbeResult(name, 0.0, self._peer_problem(downstream.peer))
        if downstream.program_state is not None and downstream.program_state() == ProgramState():
            await self._list_again(downstream)  # it starts
        if downstream.program_state is not None and (known := downstream.program_state()) is not None:
            return ProbeResult(name, 0.0, known.error, known.protocol)
        answered, before = self._program_answered.pop(name, float("-inf")), self._latest.get(name)
        is_fresh = before is not None and monotonic() - answered < self._limits.program_fresh_seconds
        result = before if is_fresh and before else await probe(downstream, self._client, self._tasks, self._limits)
        if downstream.url is None and result.error is None:
            self._program_answered[name] = answered if is_fresh else monotonic()
        return result


class HealthRounds:
    """Checks each agent every `gateway.health_seconds`, and once after its start."""

    def __init__(
        self,
        check: Callable[[str], Awaitable[None]],
        agents: Callable[[], Collection[str]],
        seconds: Callable[[], float],
    ) -> None:
        """`agents` returns the hosted agents, `seconds` the time between two rounds; 0 is no rounds."""
        self._check = check
        self._agents = agents
        self._seconds = seconds
        self._due: set[str] = set()
        self._wake = asyncio.Event()

    def soon(self, agent: str) -> None:
        """Check an agent without waiting for the next round."""
        self._due.add(agent)
        self._wake.set()

    def wake(self) -> None:
        """Read the settings again."""
        self._wake.set()

    async def run(self) -> None:
        """Check until cancelled."""
        loop = asyncio.get_running_loop()
        last_round = loop.time()
        while True:
            seconds = self._seconds()
            try:
                async with asyncio.timeout_at(last_round + seconds if seconds else None):
                    await self._wake.wait()
                due = {*self._due}
            except TimeoutError:
                last_round, due = loop.time(), {*self._agents()}
            self._wake.clear()
            self._due.clear()
            if seconds:
                await self._round(due & {*self._agents()})

    async def _round(self, due: Collection[str]) -> None:
        at_once = asyncio.Semaphore(AGENTS_AT_ONCE)

        async def check(agent: str) -> None:
            async with at_once:
                await self._check(agent)

        for result in await asyncio.gather(*map(check, sorted(due)), return_exceptions=True):
            if isinstance(result, Exception):
                _log.error("health round failed", exc_info=result)
