"""Health of one agent: one shared round of probes for everybody who asks at the same time."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.health.probe import ProbeResult, probe
from pallas_gateway.health.verdict import WORTH, Verdict, cannot_take_calls, judge

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from pallas_gateway.runtime.ports import Downstream
    from pallas_gateway.tasks import TaskOwner
    from pallas_gateway.telemetry.metrics import Metrics

FRESH_SECONDS = 5.0
"""How long a round's result answers later askers."""


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
        self._round: asyncio.Task[Verdict] | None = None
        self._began = 0.0

    async def check(self, downstreams: tuple[Downstream, ...] | None, *, not_ready: str | None) -> Verdict:
        """The verdict now; `not_ready` is why the agent cannot take calls, None if it can."""
        if not_ready is not None or downstreams is None:
            verdict = cannot_take_calls(not_ready or "not started")
        else:
            verdict = await asyncio.shield(self._current_round(downstreams))
        self._metrics.health_status.labels(self._agent).set(WORTH[verdict.status])
        return verdict

    def _current_round(self, downstreams: tuple[Downstream, ...]) -> asyncio.Task[Verdict]:
        stale = self._round is not None and self._round.done() and monotonic() - self._began > FRESH_SECONDS
        if self._round is None or stale or self._round.cancelled():
            self._began = monotonic()
            self._round = self._tasks.spawn(self._probe_all(downstreams), name=f"health {self._agent}")
        return self._round

    async def _probe_all(self, downstreams: tuple[Downstream, ...]) -> Verdict:
        remote = [downstream for downstream in downstreams if downstream.url is not None]
        results = await asyncio.gather(*(self._look_at(downstream) for downstream in remote))
        for result in results:
            self._metrics.downstream_up.labels(self._agent, result.server).set(result.error is None)
        return judge(results)

    async def _look_at(self, downstream: Downstream) -> ProbeResult:
        """A peer is judged by its state: its endpoint answers in every state, so a probe would find it well."""
        if downstream.peer is not None:
            return ProbeResult(downstream.name, 0.0, self._peer_problem(downstream.peer))
        return await probe(downstream, self._client)
