"""Starts agents in dependency order, retries those that fail, and leaves them all in the end.

One task per started version of an agent holds its runtime from start to end, so whatever must be left by the task that
entered it is. A reload starts another version beside the one in use; that one is left when its last call has ended.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from pallas_gateway.errors import AgentStartError
from pallas_gateway.hosting.agent_state import LONGEST_REASON, State
from pallas_gateway.hosting.hosted_agent import HostedAgent
from pallas_gateway.limits import LifeLimits
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.redaction import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from pallas_gateway.runtime.protocols import AgentRuntime, AgentSpec, Runtime

_log = logging.getLogger("pallas.supervisor")


@dataclass(eq=False)
class _Life:
    """One agent's, or one version's of it: `over` ends it, `tried` says that its start has come out either way.

    With `reread` its files are read again, though they were before.
    """

    agent: HostedAgent
    reread: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    runtime: AgentRuntime | None = None
    task: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Leave the runtime, if it is not in use any more; a start that is not done is not waited for, it may hang."""
        self.over.set()
        self.tried.set()  # otherwise its waiters would wait for ever
        if self.runtime is None and self.task is not None:
            self.task.cancel()

    def failed(self, reason: str) -> None:
        """The start, or what came of it, failed; of interest to the agent only as long as this is its life."""
        if not self.over.is_set():
            self.agent.enter(State.FAILED, reason=reason)

    def left(self) -> None:
        """The runtime, if there was one, has been left."""
        if self.runtime is not None:
            self.agent.forget(self.runtime)
        self.runtime = None


class Supervisor:
    """Owns the lives of all hosted agents; an async context manager that returns before the first one is started.

    None is started before `after` is done.
    """

    def __init__(
        self,
        agents: Mapping[str, HostedAgent],
        runtime: Runtime,
        plan_for: Callable[[str], AgentSpec],
        *,
        after: asyncio.Task[None] | None = None,
        limits: LifeLimits | None = None,
    ) -> None:
        self._after = after
        self._limits = limits or LifeLimits()
        self._runtime = runtime
        self._plan_for = plan_for
        self._lives = {name: _Life(agent) for name, agent in agents.items()}
        self._every_life: set[_Life] = set()
        self._all_tried = asyncio.Event()
        self._stopping = asyncio.Event()
        self._tasks = TaskOwner(close_seconds=30.0)

    async def __aenter__(self) -> Self:
        """Begin starting the agents."""
        for life in self._lives.values():
            self._spawn(life, self._live(life))
        self._tasks.spawn(self._note_when_all_are_tried(), name="agents tried")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave every agent, those as well whose last calls have not ended."""
        self._stopping.set()
        for life in list(self._every_life):
            life.end()
        await self._tasks.__aexit__()

    @property
    def all_tried(self) -> bool:
        """True if every agent of the start has been ready or failed once; one that is added later changes nothing."""
        return self._all_tried.is_set() or all(life.tried.is_set() for life in self._lives.values())

    async def wait_until_tried(self) -> None:
        """Return once every agent has been ready or failed once."""
        await self._all_tried.wait()

    def begin(self, agent: HostedAgent) -> None:
        """Start an agent by its files as they are now, and retry it while that fails.

        Instead of a life of the same agent that did not come up.
        """
        if (before := self._lives.get(agent.name)) is not None:
            before.end()
        life = self._lives[agent.name] = _Life(agent, reread=True)
        self._spawn(life, self._live(life))

    def end(self, name: str) -> asyncio.Task[None] | None:
        """Leave an agent once its last call has ended; returns the task that does."""
        life = self._lives.pop(name)
        life.end()
        return life.task

    async def start_beside(self, agent: HostedAgent, spec: AgentSpec) -> StandbyRuntime:
        """Start another version of an agent that is up; the present one goes on until the new one is taken.

        Raises:
            AgentStartError: it cannot be started; says why.
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
        while not life.over.is_set():
            may_be_mended = _never
            try:
                await self._start_and_stay(life)
            except AgentStartError as error:
                life.failed(str(error))
                may_be_mended = error.may_be_mended
            except Exception as error:  # noqa: BLE001  one agent's surprise is never another's
                reason = shortened(f"unexpected {type(error).__name__}: {error}", LONGEST_REASON)
                if agent.status.reason != reason:  # the same again at each retry is not worth its traceback
                    _log.exception("agent left unexpectedly", extra={"agent": agent.name})
                life.failed(reason)
            finally:
                life.tried.set()
            failures += 1
            if await self._pause(life, retry_seconds(failures, self._limits), may_be_mended):
                _log.info("files of failed agent changed", extra={"agent": agent.name})
                failures = 0

    async def _pause(self, life: _Life, seconds: float, may_be_mended: Callable[[], bool]) -> bool:
        """Until the time is up, the life is over, or what failed may be mended; returns whether it was that."""
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0 and not life.over.is_set():
            if may_be_mended():
                return True
            try:
                async with asyncio.timeout(min(left, self._limits.watch_seconds)):
                    await life.over.wait()
            except TimeoutError:
                continue
        return False

    async def _start_and_stay(self, life: _Life) -> None:
        agent = life.agent
        if agent.status.state is not State.FAILED:  # a retry that fails again is not a change worth a line
            agent.enter(State.STARTING)
        try:
            async with self._runtime.start(self._plan_for(agent.name), reread=life.reread) as runtime:
                if life.over.is_set():  # ended while it started, and would not be interrupted
                    return
                life.runtime = runtime
                agent.enter(State.READY, runtime=runtime)
                life.tried.set()
                await self._stay(life, runtime)
        finally:
            life.left()

    async def _live_beside(self, life: _Life, spec: AgentSpec) -> None:
        try:
            async with self._runtime.start(spec, reread=True) as runtime:
                life.runtime = runtime
                life.tried.set()
                await self._stay(life, runtime)
        except Exception:
            if not life.tried.is_set():
                raise  # to who waits for the start
            _log.exception("agent left unexpectedly", extra={"agent": life.agent.name})
        finally:
            life.left()

    async def _stay(self, life: _Life, runtime: AgentRuntime) -> None:
        """Until the version's life is over and its last call has ended; a gateway that stops has waited for those."""
        agent = life.agent
        await life.over.wait()
        if agent.runtime is runtime:
            agent.leave("the gateway is stopping")
        async with TaskOwner(close_seconds=0) as waiting:
            stopping = waiting.spawn(self._stopping.wait(), name="stopping")
            unused = waiting.spawn(agent.wait_until_unused(runtime), name="last calls")
            await asyncio.wait({stopping, unused}, return_when=asyncio.FIRST_COMPLETED)

    async def _wait_for_dependencies(self, agent: HostedAgent) -> None:
        """Until each dependency was tried; one that failed is retried beside this agent, not waited for."""
        needed = [self._lives[name].tried.wait() for name in agent.settings.peers if name in self._lives]
        try:
            async with asyncio.timeout(self._limits.dependency_seconds):
                await asyncio.gather(*needed)
        except TimeoutError:
            _log.warning("dependencies not ready in time", extra={"agent": agent.name})


@dataclass(frozen=True, slots=True)
class StandbyRuntime:
    """A started version of an agent that is not in use yet."""

    runtime: AgentRuntime
    _life: _Life
    _lives: dict[str, _Life]

    def take(self) -> None:
        """It is the agent's life from here on; the one before ends with its last call."""
        name = self._life.agent.name
        before, self._lives[name] = self._lives[name], self._life
        before.end()

    def drop(self) -> None:
        """It is not wanted after all."""
        self._life.end()


def _failure_of(starting: asyncio.Task[None]) -> AgentStartError:
    if not starting.done() or starting.cancelled() or (error := starting.exception()) is None:
        return AgentStartError("the gateway is stopping")
    if isinstance(error, AgentStartError):
        return error
    _log.error("agent left unexpectedly", exc_info=error)
    return AgentStartError(shortened(f"unexpected {type(error).__name__}: {error}", LONGEST_REASON))


def _never() -> bool:
    return False


def retry_seconds(failures: int, limits: LifeLimits) -> float:
    """Doubling from the first pause to the last, less up to a quarter at random so that agents do not retry in step."""
    # Retries go on for ever: unbounded, the power would overflow after four hours of them.
    pause = min(limits.last_retry_seconds, limits.first_retry_seconds * 2.0 ** min(failures - 1, 10))
    return pause * float(random.uniform(0.75, 1.0))  # noqa: S311  not a secret
