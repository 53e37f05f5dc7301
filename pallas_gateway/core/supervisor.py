"""Starts agents in the order of their dependencies, retries failed starts, and leaves all agents at the end.

One task for each started version of an agent enters and leaves its runtime, because some libraries require the same
task for both. A reload starts a new version while the present one is in use; the earlier one is left after its last
call.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from pallas_gateway.core.agent_state import LONGEST_REASON, State
from pallas_gateway.core.hosted_agent import HostedAgent
from pallas_gateway.errors import AgentStartError
from pallas_gateway.limits import LifeLimits
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.redaction import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from pallas_gateway.runtime.protocols import AgentRuntime, AgentSpec, Runtime

_log = logging.getLogger("pallas.supervisor")


@dataclass(eq=False)
class _Life:
    """The task that starts one version of an agent, and holds its runtime until it is left.

    Attributes:
        reread: read the agent's files again, although they were read before.
        stop_requested: the runtime is left after its last call.
        tried: the start has succeeded or failed.
    """

    agent: HostedAgent
    reread: bool = False
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    runtime: AgentRuntime | None = None
    task: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Leave the runtime after its last call. A start that has not finished is cancelled, because it may hang."""
        self.stop_requested.set()
        self.tried.set()  # otherwise its waiters would never return
        if self.runtime is None and self.task is not None:
            self.task.cancel()

    def failed(self, reason: str) -> None:
        """Record the failure, unless a newer start has replaced this one."""
        if not self.stop_requested.is_set():
            self.agent.set_state(State.FAILED, reason=reason)

    def on_left(self) -> None:
        if self.runtime is not None:
            self.agent.release(self.runtime)
        self.runtime = None


class Supervisor:
    """Owns the lives of all hosted agents; an async context manager that does not wait for their starts.

    Args:
        agents: the hosted agents by name.
        runtime: starts them.
        spec_for: returns the present spec of an agent.
        after: the first start waits for this task.
        limits: of starts and retries, if not the usual ones.
    """

    def __init__(
        self,
        agents: Mapping[str, HostedAgent],
        runtime: Runtime,
        spec_for: Callable[[str], AgentSpec],
        *,
        after: asyncio.Task[None] | None = None,
        limits: LifeLimits | None = None,
    ) -> None:
        self._after = after
        self._limits = limits or LifeLimits()
        self._runtime = runtime
        self._spec_for = spec_for
        self._lives = {name: _Life(agent) for name, agent in agents.items() if not agent.is_refused}
        self._every_life: set[_Life] = set()
        self._all_tried = asyncio.Event()
        self._stopping = asyncio.Event()
        self._tasks = TaskOwner(close_seconds=30.0)

    async def __aenter__(self) -> Self:
        for life in self._lives.values():
            self._spawn(life, self._live(life))
        self._tasks.spawn(self._note_when_all_are_tried(), name="agents tried")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave every agent, also with running calls."""
        self._stopping.set()
        for life in list(self._every_life):
            life.end()
        await self._tasks.__aexit__()

    @property
    def all_tried(self) -> bool:
        """True if every agent of the first configuration has been ready or failed once."""
        return self._all_tried.is_set() or all(life.tried.is_set() for life in self._lives.values())

    async def wait_until_tried(self) -> None:
        """Return once every agent has been ready or failed once."""
        await self._all_tried.wait()

    def begin(self, agent: HostedAgent) -> None:
        """Start an agent from its present files, and retry until it is ready; an earlier attempt ends."""
        if (before := self._lives.get(agent.name)) is not None:
            before.end()
        life = self._lives[agent.name] = _Life(agent, reread=True)
        self._spawn(life, self._live(life))

    def end(self, name: str) -> asyncio.Task[None] | None:
        """Leave an agent after its last call; return the task that leaves it, None if it was not started."""
        if (life := self._lives.pop(name, None)) is None:
            return None
        life.end()
        return life.task

    async def start_beside(self, agent: HostedAgent, spec: AgentSpec) -> StandbyRuntime:
        """Start another version of an agent, whose present version takes the calls until the new one is taken.

        Raises:
            AgentStartError: the new version cannot be started; the message has the reason.
        """
        life = _Life(agent)
        starting = self._spawn(life, self._live_beside(life, spec))
        tried = asyncio.ensure_future(life.tried.wait())
        try:
            await asyncio.wait({starting, tried}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            life.end()  # no caller will take it
            raise
        finally:
            tried.cancel()
        if life.runtime is None:
            raise _failure_of(starting)
        return StandbyRuntime(life.runtime, life, self._lives)

    async def _note_when_all_are_tried(self) -> None:
        while waiting := [life for life in self._lives.values() if not life.tried.is_set()]:
            await waiting[0].tried.wait()
        self._all_tried.set()

    def _spawn(self, life: _Life, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._every_life.add(life)
        life.task = self._tasks.spawn(work, name=f"agent {life.agent.name}")
        life.task.add_done_callback(lambda _: self._every_life.discard(life))
        return life.task

    async def _live(self, life: _Life) -> None:
        if self._after is not None:
            await asyncio.wait({self._after})  # however it ends
        agent = life.agent
        await self._wait_for_dependencies(agent)
        failures = 0
        while not life.stop_requested.is_set():
            may_be_mended: Callable[[], bool] = lambda: False  # noqa: E731
            try:
                await self._start_and_stay(life)
            except AgentStartError as error:
                life.failed(str(error))
                may_be_mended = error.may_be_mended
            except Exception as error:  # noqa: BLE001  an unexpected error of one agent does not stop the others
                reason = shortened(f"unexpected {type(error).__name__}: {error}", LONGEST_REASON)
                if agent.status.reason != reason:  # a retry that fails in the same way needs no other traceback
                    _log.exception("agent left unexpectedly", extra={"agent": agent.name})
                life.failed(reason)
            finally:
                life.tried.set()
            failures += 1
            if await self._pause(life, retry_seconds(failures, self._limits), may_be_mended):
                _log.info("files of failed agent changed", extra={"agent": agent.name})
                failures = 0

    async def _pause(self, life: _Life, seconds: float, may_be_mended: Callable[[], bool]) -> bool:
        """Wait for the next attempt; return True if the cause of the failure may have been corrected meanwhile."""
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0 and not life.stop_requested.is_set():
            if may_be_mended():
                return True
            try:
                async with asyncio.timeout(min(left, self._limits.watch_seconds)):
                    await life.stop_requested.wait()
            except TimeoutError:
                continue
        return False

    async def _start_and_stay(self, life: _Life) -> None:
        agent = life.agent
        if agent.status.state is not State.FAILED:  # a retry that fails again is not a change worth a line
            agent.set_state(State.STARTING)
        try:
            async with self._runtime.start(self._spec_for(agent.name), reread=life.reread) as runtime:
                if life.stop_requested.is_set():  # during a start that ignored its cancellation
                    return
                life.runtime = runtime
                agent.set_state(State.READY, runtime=runtime)
                life.tried.set()
                await self._stay(life, runtime)
        finally:
            life.on_left()

    async def _live_beside(self, life: _Life, spec: AgentSpec) -> None:
        try:
            async with self._runtime.start(spec, reread=True) as runtime:
                life.runtime = runtime
                life.tried.set()
                await self._stay(life, runtime)
        except Exception:
            if not life.tried.is_set():
                raise  # `start_beside` waits for the start
            _log.exception("agent left unexpectedly", extra={"agent": life.agent.name})
        finally:
            life.on_left()

    async def _stay(self, life: _Life, runtime: AgentRuntime) -> None:
        """Return when a stop was requested and the last call has ended. A stopping gateway has waited for its calls."""
        agent = life.agent
        await life.stop_requested.wait()
        if agent.runtime is runtime:
            agent.leave("the gateway is stopping")
        async with TaskOwner(close_seconds=0) as waiting:
            stopping = waiting.spawn(self._stopping.wait(), name="stopping")
            unused = waiting.spawn(agent.wait_until_unused(runtime), name="last calls")
            await asyncio.wait({stopping, unused}, return_when=asyncio.FIRST_COMPLETED)

    async def _wait_for_dependencies(self, agent: HostedAgent) -> None:
        """Wait until each dependency was ready or has failed once."""
        needed = [self._lives[name].tried.wait() for name in agent.settings.peers if name in self._lives]
        try:
            async with asyncio.timeout(self._limits.dependency_seconds):
                await asyncio.gather(*needed)
        except TimeoutError:
            # The agent starts without them.
            _log.warning("dependencies not ready in time", extra={"agent": agent.name})


@dataclass(frozen=True, slots=True)
class StandbyRuntime:
    """A started version of an agent that is not in use yet."""

    runtime: AgentRuntime
    _life: _Life
    _lives: dict[str, _Life]

    def adopt(self) -> None:
        """Make it the agent's version; the earlier one ends with its last call."""
        name = self._life.agent.name
        before, self._lives[name] = self._lives[name], self._life
        before.end()

    def drop(self) -> None:
        self._life.end()


def _failure_of(starting: asyncio.Task[None]) -> AgentStartError:
    if not starting.done() or starting.cancelled() or (error := starting.exception()) is None:
        return AgentStartError("the gateway is stopping")
    if isinstance(error, AgentStartError):
        return error
    _log.error("agent left unexpectedly", exc_info=error)
    return AgentStartError(shortened(f"unexpected {type(error).__name__}: {error}", LONGEST_REASON))


def retry_seconds(failures: int, limits: LifeLimits) -> float:
    """Return the pause before the next start: doubled each time, less up to a quarter at random."""
    # Retries go on without end; an unbounded power would overflow after four hours.
    pause = min(limits.last_retry_seconds, limits.first_retry_seconds * 2.0 ** min(failures - 1, 10))
    return pause * float(random.uniform(0.75, 1.0))  # noqa: S311  not a secret
