"""The parent of several workers: starts them on the same sockets, replaces those that end, and stops them together.

It imports nothing of agents and serves nothing itself, so that there is next to nothing in it that could fail.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.errors import GatewayError
from pallas_gateway.serving.sockets import CLOSE_SECONDS, give_up
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.workers_metrics import forget_gauges
from pallas_gateway.workers.messages import Cancelled, Close, Closed, NotReloaded, Ready, Stopped
from pallas_gateway.workers.process import Ended, WorkerProcess
from pallas_gateway.workers.restarts import restart_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.workers.plan import Plan

STOP_SECONDS = 60.0
"""How long beyond the drain workers get to leave their agents and end."""
FAILED_START_SECONDS = 5.0
"""How long the others get where one could not start at all."""
_log = logging.getLogger("pallas.workers")


class WorkersError(GatewayError):
    """The workers cannot serve; says why."""

    reason = "workers_failed"


class WorkerManager:
    """Several workers on the same sockets.

    Args:
        plan: what it is made of.
        on_ready: called once, when every worker has been ready once, with the announcement.
        on_stop: called when the workers are about to be stopped.
        hang_seconds: how long a worker that was ready may say nothing before it is replaced; None for ever.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        on_ready: Callable[[str], None],
        on_stop: Callable[[], None],
        hang_seconds: float | None = None,
    ) -> None:
        self._plan = plan
        self._start = plan.start
        self._on_ready = on_ready
        self._on_stop = on_stop
        self.before_replacing: Callable[[], object] = lambda: None
        self._hang_seconds = hang_seconds
        self._workers: dict[int, WorkerProcess] = {}
        self._ready: set[int] = set()
        self._uncounted_restarts = 0
        self._stop = asyncio.Event()
        self._failure: WorkersError | None = None
        self._tasks = TaskOwner(close_seconds=FAILED_START_SECONDS)
        self._late_connections = TaskOwner(close_seconds=CLOSE_SECONDS)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the workers running until `stop` is set, and return when all have ended.

        Raises:
            WorkersError: one could not start at all, while none has been ready yet.
        """
        self._stop = stop
        keeping = [
            self._tasks.spawn(self._keep(number), name=f"worker {number}", report=True)
            for number in range(1, self._plan.count + 1)
        ]
        if self._hang_seconds is not None:
            self._tasks.spawn(self._watch(self._hang_seconds), name="watch", report=True)
        try:
            await stop.wait()
            _call_back(self._on_stop)
            for worker in self._workers.values():
                worker.signal(signal.SIGTERM)
            await self._until_ended(keeping)
        finally:
            await self._tasks.cancel_all()
            await self._late_connections.__aexit__()
        if self._failure is not None:
            raise self._failure

    @property
    def summary(self) -> str:
        """How they are, in one line."""
        if self._stop.is_set():
            return f"stopping, workers still running: {len(self._workers)}"
        told = {f"worker {worker.number}": worker.summary for worker in self._workers.values()}
        if len(told) == self._plan.count and len(set(told.values())) == 1:
            return f"{self._plan.count} workers, each: {next(iter(told.values()))}"
        return "; ".join(f"{name}: {summary}" for name, summary in sorted(told.items())) or "no worker is running"

    @property
    def was_complete(self) -> bool:
        """Whether every worker has been ready once."""
        return len(self._ready) == self._plan.count

    @property
    def configuration(self) -> Configuration:
        """What the next worker is given."""
        return self._start.configuration

    @configuration.setter
    def configuration(self, configuration: Configuration) -> None:
        self._start = replace(self._start, configuration=configuration)

    def reload(self) -> None:
        """Have the workers that run read the configuration again."""
        for worker in self._workers.values():
            if worker.was_ready:  # one that starts does not listen for it yet
                worker.signal(signal.SIGHUP)

    def note_not_reloaded(self) -> None:
        """Have the workers that run count a reload that came to nothing."""
        for worker in self._workers.values():
            if worker.was_ready:
                worker.tell(NotReloaded())

    def kill(self) -> None:
        """End every worker at once."""
        for worker in self._workers.values():
            worker.kill()

    async def _keep(self, number: int) -> None:
        """Have a worker with this number until the fleet stops; a failure of this very function stops it."""
        deaths = 0
        try:
            while not self._stop.is_set():
                ended = await self._attempt(number)
                if self._stop.is_set():
                    return
                if not self._ready and ended.signal is None:
                    raise WorkersError(f"worker {number} could not start: {ended}")
                deaths, pause = restart_seconds(deaths, ended.seconds)
                self._note_end(number, ended, pause)
                await _until(self._stop, pause)
                _call_back(self.before_replacing)
        except GatewayError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"worker {number} could not be kept running: {error}")
            raise

    async def _attempt(self, number: int) -> Ended:
        """How it ended; not being able to start another process, for want of memory or files, may pass."""
        try:
            return await self._run_one(number)
        except OSError as error:
            return Ended(None, None, was_ready=False, seconds=0.0, why=str(error))

    def _note_end(self, number: int, ended: Ended, pause: float) -> None:
        fields = {"worker": number, **ended.fields, "pause": pause}
        if ended.code is None and ended.signal is None:
            _log.error("worker could not be started, it is tried again", extra=fields)
            return
        self._uncounted_restarts += 1
        _log.error("worker ended, another takes its place", extra={**fields, "seconds": round(ended.seconds, 1)})

    async def _run_one(self, number: int) -> Ended:
        carried, self._uncounted_restarts = self._uncounted_restarts, 0
        start = replace(self._start, worker=number, restarts=carried)
        worker = WorkerProcess(self._plan.command, self._plan.environ(), start)
        try:
            async with worker:
                return await self._follow(worker)
        finally:
            if not worker.was_ready:  # nobody has counted them
                self._uncounted_restarts += carried

    async def _follow(self, worker: WorkerProcess) -> Ended:
        self._workers[worker.number] = worker
        if self._stop.is_set():
            worker.signal(signal.SIGTERM)
        try:
            async for message in worker.messages():
                self._take(worker, message)
            return await worker.ended()
        finally:
            del self._workers[worker.number]
            forget_gauges(self._start.metrics, worker.number)
            self._close_together()

    def _take(self, worker: WorkerProcess, message: object) -> None:
        match message:
            case Ready(announcement):
                self._note_ready(worker, announcement)
            case Cancelled():
                for other in self._workers.values():
                    if other is not worker:
                        other.tell(message)
            case Stopped():
                if not self._stop.is_set():
                    worker.tell(Close())  # somebody stops this one alone
                self._close_together()
            case Closed():
                self._close_together()

    def _note_ready(self, worker: WorkerProcess, announcement: str) -> None:
        if worker.configuration is not self.configuration:  # which came while it started
            worker.signal(signal.SIGHUP)
        was_complete = self.was_complete
        self._ready.add(worker.number)
        if self.was_complete and not was_complete:
            _call_back(self._on_ready, announcement)

    def _close_together(self) -> None:
        """Go on with closing as far as all workers are.

        One that has answered everything goes on refusing calls while others still answer theirs. And a socket that is
        shut is shut for all, so that is left until none of them accepts any more.
        """
        if not self._stop.is_set() or not all(worker.has_stopped for worker in self._workers.values()):
            return
        if all(worker.has_closed for worker in self._workers.values()):
            encrypted = self._start.configuration.tls_files is not None
            for listener in self._plan.sockets:
                give_up(listener, self._late_connections, encrypted=encrypted)
            return
        for worker in self._workers.values():
            worker.tell(Close())

    async def _until_ended(self, keeping: Iterable[asyncio.Task[None]]) -> None:
        begun, late = monotonic(), set(keeping)
        while late and (left := begun + self._stop_seconds - monotonic()) > 0:  # which workers may still prolong
            _, late = await asyncio.wait(late, timeout=left)
        self._kill([worker for worker in self._workers.values() if not worker.has_stopped])
        if late:  # the others wait for those to close with them
            _, late = await asyncio.wait(late, timeout=FAILED_START_SECONDS)
            self._kill(list(self._workers.values()))
        if late:
            await asyncio.wait(late)

    @property
    def _stop_seconds(self) -> float:
        """How long they get to end: as long as the longest drain that any of them knows of, which may reload alone."""
        if self._failure is not None:
            return FAILED_START_SECONDS
        own = self._start.configuration.deployment.gateway.drain_seconds
        return max(own, *(worker.drain_seconds for worker in self._workers.values()), 0.0) + STOP_SECONDS

    def _kill(self, workers: Iterable[WorkerProcess]) -> None:
        for worker in workers:
            _log.error("worker does not end, it is killed", extra={"worker": worker.number, "pid": worker.pid})
            worker.kill()

    def _fail(self, why: str) -> None:
        if self._failure is None:  # the others' failures are the same, or follow from it
            self._failure = WorkersError(why)
        self._stop.set()

    async def _watch(self, seconds: float) -> None:
        """Replace a worker whose event loop has not turned for so long."""
        while True:
            for worker in self._workers.values():
                if worker.was_ready and monotonic() - worker.heard_at > seconds:
                    _log.error("worker hangs, it is killed", extra={"worker": worker.number, "pid": worker.pid})
                    worker.kill()
            await asyncio.sleep(seconds / 4)


def _call_back[*T](callback: Callable[[*T], object], *arguments: *T) -> None:
    """Nothing that others do with the news is a reason to end workers that serve."""
    try:
        callback(*arguments)
    except Exception:  # noqa: BLE001  whatever it is
        _log.exception("parent of workers failed beside its task")


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
