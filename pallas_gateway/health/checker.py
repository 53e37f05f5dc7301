"""Health of one agent: one shared round of probes for everybody who asks at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.health.probe import ProbeResult, probe
from pallas_gateway.health.verdict import WORTH, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import httpx

    from pallas_gateway.health.verdict import Life, LlmResult, Verdict
    from pallas_gateway.runtime.protocols import Downstream
    from pallas_gateway.tasks import TaskOwner
    from pallas_gateway.telemetry.metrics import Metrics

    type Round = asyncio.Task[tuple[ProbeResult, ...]]

FRESH_SECONDS = 5.0
"""How long a round's result answers later askers."""
PROGRAM_FRESH_SECONDS = 60.0
"""How long a program that answered counts as well: starting it again for each round would cost more than the calls."""


class HealthChecker:
    """Answers "is this agent well?" and keeps the health gauges."""

    def __init__(
        self,
        agent: str,
        *,
        client: httpx.AsyncClient,
        tasks: TaskOwner,
        metrics: Metrics,
        peer_problem: Callable[[str], str | None],
    ) -> None:
        self._agent = agent
        self._client = client
        self._peer_problem = peer_problem
        self._tasks = tasks
        self._metrics = metrics
        self._round: Round | None = None
        self._began = 0.0
        self._latest: dict[str, ProbeResult] = {}
        self._program_answered: dict[str, float] = {}
        self._is_over = False

    async def check(self, downstreams: tuple[Downstream, ...] | None, life: Life, llm: LlmResult | None) -> Verdict:
        """The verdict now; `downstreams` is None for an agent that was not started, which is not probed."""
        if life.not_ready is not None or downstreams is None:
            return self._counted(judge(life, (), llm))
        return self._counted(judge(life, await asyncio.shield(self._current_round(downstreams)), llm))

    def note(self, life: Life, llm: LlmResult | None) -> None:
        """Set the agent's gauge after a change of its state, from what is known without asking anybody."""
        self._counted(judge(life, tuple(self._latest.values()), llm))

    def forget(self, still_used: Collection[str]) -> None:
        """The agent is another version from here on: look anew, and keep only what is known of servers it still uses.

        A server that is gone has no gauge any more.
        """
        for server in self._latest.keys() - set(still_used):
            del self._latest[server]
            self._program_answered.pop(server, None)
            self._metrics.forget_downstream(self._agent, server)
        self._round = None

    def end(self) -> None:
        """The agent is hosted no more, its gauges end; who waits for an answer gets it all the same."""
        self.forget(())
        self._is_over = True
        self._metrics.forget_health(self._agent)

    def _counted(self, verdict: Verdict) -> Verdict:
        if not self._is_over:
            self._metrics.health_status.labels(self._agent).set(WORTH[verdict.status])
        return verdict

    def _current_round(self, downstreams: tuple[Downstream, ...]) -> Round:
        stale = self._round is not None and self._round.done() and monotonic() - self._began > FRESH_SECONDS
        if self._round is None or stale or self._round.cancelled():
            self._began = monotonic()
            self._round = self._tasks.spawn(self._probe_all(downstreams), name=f"health {self._agent}")
        return self._round

    async def _probe_all(self, downstreams: tuple[Downstream, ...]) -> tuple[ProbeResult, ...]:
        results = tuple(await asyncio.gather(*(self._look_at(downstream) for downstream in downstreams)))
        if asyncio.current_task() is not self._round:  # the agent has become another version meanwhile
            return results
        now = datetime.now(UTC)
        self._latest = {result.server: self._dated(result, now) for result in results}
        for result in results:
            self._metrics.downstream_up.labels(self._agent, result.server).set(result.error is None)
        return tuple(self._latest.values())

    async def _look_at(self, downstream: Downstream) -> ProbeResult:
        """A peer is judged by its state: its endpoint answers in every state, so a probe would find it well."""
        if downstream.peer is not None:
            return ProbeResult(downstream.name, 0.0, self._peer_problem(downstream.peer))
        if downstream.url is None:
            return await self._look_at_program(downstream)
        return await probe(downstream, self._client, self._tasks)

    async def _look_at_program(self, downstream: Downstream) -> ProbeResult:
        before = self._latest.get(downstream.name)
        answered = self._program_answered.get(downstream.name, float("-inf"))
        if before is not None and monotonic() - answered < PROGRAM_FRESH_SECONDS:
            return before
        result = await probe(downstream, self._client, self._tasks)
        if result.error is None:
            self._program_answered[downstream.name] = monotonic()
        else:
            self._program_answered.pop(downstream.name, None)
        return result

    def _dated(self, result: ProbeResult, now: datetime) -> ProbeResult:
        """The result with the moment from which on it was so: an earlier round's, while nothing changed."""
        before = self._latest.get(result.server)
        unchanged = before is not None and (before.error is None) == (result.error is None)
        return replace(result, since=before.since if before is not None and unchanged else now)
