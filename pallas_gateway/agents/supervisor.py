"""Starts agents in dependency order, retries those that fail, and leaves them all in the end.

One task per agent holds its runtime from start to end, so whatever must be left by the task that entered it is.
"""

from __future__ import annotations

import asyncio
import logging
import random
from time import monotonic
from typing import TYPE_CHECKING, Self

from pallas_gateway.agents.hosted_agent import HostedAgent, State
from pallas_gateway.errors import AgentStartError
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.redaction import cleaned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pallas_gateway.runtime.ports import AgentPlan, Runtime

DEPENDENCY_SECONDS = 60.0
"""How long an agent waits for those it depends on before it starts without them."""
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 15.0
WATCH_SECONDS = 0.5
"""How often the files behind a failed agent are looked at."""

_log = logging.getLogger("pallas.supervisor")


class Supervisor:
    """Owns the lives of all hosted agents; an async context manager that returns before the first one is started.

    None is started before `after` is done.
    """

    def __init__(
        self,
        agents: Mapping[str, HostedAgent],
        runtime: Runtime,
        plan_for: Callable[[str], AgentPlan],
        *,
        after: asyncio.Task[None] | None = None,
    ) -> None:
        self._after = after
        self._agents = agents
        self._runtime = runtime
        self._plan_for = plan_for
        self._tried = {name: asyncio.Event() for name in agents}
        self._stopping = asyncio.Event()
        self._lives = TaskOwner(close_seconds=30.0)
        self._tasks: Mapping[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        """Begin starting the agents."""
        self._tasks = {
            name: self._lives.spawn(self._live(agent), name=f"agent {name}", report=True)
            for name, agent in self._agents.items()
        }
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave every agent; one that is not up is not waited for, its import may hang."""
        self._stopping.set()
        for name, task in self._tasks.items():
            if self._agents[name].runtime is None:
                task.cancel()
        await self._lives.__aexit__()

    @property
    def all_tried(self) -> bool:
        """Whether every agent has been ready or failed once."""
        return all(tried.is_set() for tried in self._tried.values())

    async def wait_until_tried(self) -> None:
        """Return once every agent has been ready or failed once."""
        for tried in self._tried.values():
            await tried.wait()

    async def _live(self, agent: HostedAgent) -> None:
        if self._after is not None:
            await asyncio.wait({self._after})  # however it ends
        await self._wait_for_dependencies(agent)
        failures = 0
        while not self._stopping.is_set():
            may_be_mended = _never
            try:
                await self._start_and_stay(agent)
            except AgentStartError as error:
                agent.enter(State.FAILED, reason=str(error))
                may_be_mended = error.may_be_mended
            except Exception as error:  # noqa: BLE001  one agent's surprise is never another's
                reason = cleaned(f"unexpected {type(error).__name__}: {error}")
                if agent.status.reason != reason:  # the same again at each retry is not worth its traceback
                    _log.exception("agent left unexpectedly", extra={"agent": agent.name})
                agent.enter(State.FAILED, reason=reason)
            finally:
                self._tried[agent.name].set()
            failures += 1
            if await self._pause(retry_seconds(failures), may_be_mended):
                _log.info("files of a failed agent changed, it is tried again", extra={"agent": agent.name})
                failures = 0

    async def _start_and_stay(self, agent: HostedAgent) -> None:
        if agent.status.state is not State.FAILED:  # a retry that fails again is not a change worth a line
            agent.enter(State.STARTING)
        async with self._runtime.start(self._plan_for(agent.name)) as runtime:
            agent.enter(State.READY, runtime=runtime)
            self._tried[agent.name].set()
            await self._stopping.wait()
            agent.leave()

    async def _wait_for_dependencies(self, agent: HostedAgent) -> None:
        """Until each dependency was tried; one that failed is retried beside this agent, not waited for."""
        needed = [self._tried[name].wait() for name in agent.settings.depends_on if name in self._tried]
        try:
            async with asyncio.timeout(DEPENDENCY_SECONDS):
                await asyncio.gather(*needed)
        except TimeoutError:
            _log.warning("starting without waiting longer for dependencies", extra={"agent": agent.name})

    async def _pause(self, seconds: float, may_be_mended: Callable[[], bool]) -> bool:
        """Until the time is up, the gateway stops, or what failed may be mended; returns whether it was that."""
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0 and not self._stopping.is_set():
            if may_be_mended():
                return True
            try:
                async with asyncio.timeout(min(left, WATCH_SECONDS)):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        return False


def _never() -> bool:
    return False


def retry_seconds(failures: int) -> float:
    """Doubling from 1 s to 15 s, less up to a quarter at random so that agents do not retry in step."""
    # Retries go on for ever: unbounded, the power would overflow after four hours of them.
    pause = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 10))
    return pause * float(random.uniform(0.75, 1.0))  # noqa: S311  not a secret
