"""The parent of several workers: starts them on the same sockets, replaces those that end, and stops them together.

It imports no agents and serves nothing itself, so that little in it can fail.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import ExitStack, closing
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from pallas_gateway.config.problems import ConfigurationError
from pallas_gateway.errors import GatewayError
from pallas_gateway.process.sockets import CLOSE_SECONDS, close_listener
from pallas_gateway.process.workers.forwarding import socket_of
from pallas_gateway.process.workers.worker_process import WorkerEnd, WorkerProcess, restart_seconds
from pallas_gateway.shared.memory import MemoryState
from pallas_gateway.shared.remote import SharedOfWorker
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.workers_metrics import forget_gauges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.feature import InParent
    from pallas_gateway.process.workers.start import Plan

STOP_SECONDS = 60.0
"""Time after the drain in which workers close their agents and end."""
FAILED_START_SECONDS = 5.0
"""Time in which the other workers end if one could not start."""
_log = logging.getLogger("pallas.workers")


class WorkersError(GatewayError):
    """The workers cannot serve; the message has the reason, and the exit code is that of the worker."""

    reason = "workers_failed"

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = 2 if exit_code == ConfigurationError.exit_code else 1


class WorkerManager:
    """Several workers on the same sockets.

    Args:
        plan: how workers are started.
        in_parent: what it runs for features.
        on_ready: called once, when every worker has been ready once, with the announcement.
        on_stop: called when the workers are about to be stopped.
        hang_seconds: silence after which a worker that was ready is replaced; None for no limit.
        stop_seconds: time beyond the drain in which workers leave their agents and end.
        restart: as `restart_seconds`.
    """

    def __init__(  # noqa: PLR0913  limits are keywords with defaults
        self,
        plan: Plan,
        in_parent: Sequence[InParent],
        *,
        on_ready: Callable[[str], None],
        on_stop: Callable[[], None],
        hang_seconds: float | None = None,
        stop_seconds: float = STOP_SECONDS,
        restart: Callable[[int, float], tuple[int, float]] = restart_seconds,
    ) -> None:
        self._leaving_seconds = stop_seconds
        self._restart = restart
        self._plan = plan
        self._in_parent = in_parent
        self.use(plan.start.configuration)
        self.problems: Sequence[str] = ()
        """Why the present files cannot be used; then that configuration is an earlier one."""
        self._on_ready = on_ready
        self._on_stop = on_stop
        self.reread: Callable[[], object] = lambda: None
        """Called when the present files may differ from the configuration: either `use` it, or set `problems`."""
        self._hang_seconds = hang_seconds
        self._workers: dict[int, WorkerProcess] = {}
        self._ready: set[int] = set()
        self._state = MemoryState()
        self._uncounted_restarts = 0
        self._ended: list[str] = []
        self._stop = asyncio.Event()
        self._failure: WorkersError | None = None
        self._tasks = TaskOwner(close_seconds=FAILED_START_SECONDS)
        self._late_connections = TaskOwner(close_seconds=CLOSE_SECONDS)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the workers running until `stop` is set; return when all have ended.

        Raises:
            WorkersError: one could not start, and none has been ready yet.
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
            if self._plan.start.rereading.watch:  # workers have reloaded by themselves, perhaps a longer drain
                self._reread()
            await self._until_ended(keeping)
        finally:
            await self._tasks.cancel_all()
            await self._late_connections.__aexit__()
        if self._failure is not None:
            raise self._failure

    def use(self, configuration: Configuration) -> None:
        """Use another configuration for the next worker that starts, and for what the parent runs for features."""
        self.configuration = configuration
        for one in self._in_parent:
            one.use(configuration)

    @property
    def workers(self) -> Collection[WorkerProcess]:
        """Those that run."""
        return self._workers.values()

    @property
    def summary(self) -> str:
        """The state of the workers in one line."""
        if self._stop.is_set():
            return f"stopping, workers still running: {len(self._workers)}"
        summaries = {f"worker {worker.number}": worker.summary for worker in self._workers.values()}
        if len(summaries) == self._plan.count and len(set(summaries.values())) == 1:
            return f"{self._plan.count} workers, each: {next(iter(summaries.values()))}"
        return "; ".join(f"{name}: {summary}" for name, summary in sorted(summaries.items())) or "no worker is running"

    @property
    def was_complete(self) -> bool:
        """True if every worker has been ready once."""
        return len(self._ready) == self._plan.count

    def reload(self) -> None:
        for worker in self._up():  # a starting one has no handler for the signal yet
            worker.signal(signal.SIGHUP)

    def note_not_reloaded(self) -> None:
        """Have the running workers count a failed reload, and show its problems."""
        for worker in self._up():
            worker.tell("worker", "not_reloaded", [*self.problems], False)

    def kill(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    def _up(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers.values() if worker.was_ready]

    async def _keep(self, number: int) -> None:
        """Run workers of this number, one after the other, until all stop. An unexpected error stops all."""
        deaths = 0
        try:
            while not self._stop.is_set():
                try:
                    ended = await self._run_one(number)
                except OSError as error:  # no memory, processes or files for another process: this may pass
                    ended = WorkerEnd(None, None, was_ready=False, seconds=0.0, why=str(error))
                if self._stop.is_set():
                    return
                if not self._ready and ended.signal is None:
                    raise WorkersError(f"worker {number} could not start: {ended}", ended.code)
                deaths, pause = self._restart(deaths, ended.seconds)
                self._note_end(number, ended, pause)
                await _until(self._stop, pause)
                if self._plan.start.rereading.watch:  # workers have reloaded by themselves
                    self._reread()
        except GatewayError as error:
            self._fail(str(error), error.exit_code)
        except Exception as error:
            self._fail(f"worker {number} could not be kept running: {error}")
            raise

    def _note_end(self, number: int, ended: WorkerEnd, pause: float) -> None:
        fields = {"worker": number, **ended.fields, "pause": pause}
        if ended.code is None and ended.signal is None:
            # The machine lacks memory, processes or files.
            _log.error("worker start failed", extra=fields)
            return
        self._uncounted_restarts += 1
        # With `exit_code` or `signal`, and `error`; `seconds` is its life, `pause` the time until the next start.
        _log.error("worker ended", extra={**fields, "seconds": round(ended.seconds, 1)})

    async def _run_one(self, number: int) -> WorkerEnd:
        carried, self._uncounted_restarts = self._uncounted_restarts, 0
        start = replace(self._plan.start, configuration=self.configuration, worker=number, restarts=carried)
        worker = WorkerProcess(self._plan.command, self._plan.environ(), start)
        try:
            async with worker:
                return await self._follow(worker)
        finally:
            if not worker.was_ready:  # it has not counted them
                self._uncounted_restarts += carried
            self._ended.append(worker.name)
            self._tell_of_ended()

    def _tell_of_ended(self) -> None:
        """Have one worker note which others have ended: their tasks go on at once then, not after their leases."""
        if not self._stop.is_set() and (workers := self._up()):
            for name in self._ended:
                workers[0].tell("worker", "note_end_of", name)
            self._ended.clear()

    async def _follow(self, worker: WorkerProcess) -> WorkerEnd:
        self._workers[worker.number] = worker
        if self._stop.is_set():
            worker.signal(signal.SIGTERM)
        try:
            with ExitStack() as stack:
                services = {one.service: stack.enter_context(one.of_worker(self._reread)) for one in self._in_parent}
                services |= {"parent": _Parent(self, worker)}
                services |= {"shared": stack.enter_context(closing(SharedOfWorker(self._state)))}
                await worker.listen(services)
            return await worker.ended(self._stop_seconds)
        finally:
            del self._workers[worker.number]
            forget_gauges(self._plan.start.folder, worker.number)
            socket_of(self._plan.start.folder, worker.name).unlink(missing_ok=True)
            self.close_together()

    def _reread(self) -> None:
        _call_back(self.reread)

    def note_ready(self, worker: WorkerProcess, announcement: str) -> None:
        if worker.configuration is not self.configuration:  # it changed while the worker started
            worker.signal(signal.SIGHUP)
        elif self.problems:
            worker.tell("worker", "not_reloaded", [*self.problems], True)
        self._tell_of_ended()
        was_complete = self.was_complete
        self._ready.add(worker.number)
        if self.was_complete and not was_complete:
            _call_back(self._on_ready, announcement)

    def note_stopped(self, worker: WorkerProcess) -> None:
        if not self._stop.is_set():
            worker.tell("worker", "close")  # only this one was stopped
        self.close_together()

    def close_together(self) -> None:
        """Take the next step of closing once all workers have taken the last.

        A worker that has answered its calls refuses new ones while others still answer theirs. A shared socket that is
        shut down is shut down for all, so the parent does it once no worker accepts connections.
        """
        if not self._stop.is_set() or not all(worker.has_stopped for worker in self._workers.values()):
            return
        if all(worker.has_closed for worker in self._workers.values()):
            encrypted = self.configuration.tls_files is not None
            for listener in self._plan.sockets:
                close_listener(listener, self._late_connections, encrypted=encrypted)
            return
        for worker in self._workers.values():
            worker.tell("worker", "close")

    async def _until_ended(self, keeping: Collection[asyncio.Task[None]]) -> None:
        _, late = await asyncio.wait(keeping, timeout=self._stop_seconds)
        self._kill([worker for worker in self._workers.values() if not worker.has_stopped])
        if late:  # the others wait to close with those
            _, late = await asyncio.wait(late, timeout=FAILED_START_SECONDS)
            self._kill(list(self._workers.values()))
        if late:
            await asyncio.wait(late)

    @property
    def _stop_seconds(self) -> float:
        """Time limit of the stop."""
        if self._failure is not None:
            return FAILED_START_SECONDS
        return self.configuration.deployment.gateway.drain_seconds + self._leaving_seconds

    def _kill(self, workers: Iterable[WorkerProcess]) -> None:
        for worker in workers:
            _log.error("worker killed at stop", extra={"worker": worker.number, "pid": worker.pid})
            worker.kill()

    def _fail(self, why: str, exit_code: int | None = None) -> None:
        if self._failure is None:  # later failures are the same, or follow from it
            self._failure = WorkersError(why, exit_code)
        self._stop.set()

    async def _watch(self, seconds: float) -> None:
        """Kill workers that have been silent for too long; they are replaced."""
        while True:
            for worker in self._up():
                if monotonic() - worker.heard_at > seconds:
                    # It has not answered for as long as systemd's watchdog allows.
                    _log.error("hanging worker killed", extra={"worker": worker.number, "pid": worker.pid})
                    worker.kill()
            await asyncio.sleep(seconds / 4)


class _Parent:
    """The methods that one worker calls of its parent."""

    def __init__(self, manager: WorkerManager, worker: WorkerProcess) -> None:
        self._manager = manager
        self._worker = worker

    def ready(self, announcement: str) -> None:
        """Every agent was tried; `announcement` is the text that `serve` prints."""
        self._worker.was_ready = True
        self._worker.heard_at = monotonic()
        self._manager.note_ready(self._worker, announcement)

    def alive(self, summary: str) -> None:
        """Every few seconds: its event loop responds."""
        self._worker.heard_at = monotonic()
        self._worker.summary = summary

    def failed(self, why: str) -> None:
        """It cannot serve, and ends."""
        self._worker.why = why

    def tell_others(self, method: str, values: Sequence[Any]) -> None:
        """Call a method of all other workers."""
        for other in self._manager.workers:
            if other is not self._worker:
                other.tell("worker", method, *values)

    def stopped(self) -> None:
        """Its calls have ended and its agents are closed."""
        self._worker.has_stopped = True
        self._manager.note_stopped(self._worker)

    def closed(self) -> None:
        """It accepts no more connections."""
        self._worker.has_closed = True
        self._manager.close_together()


def _call_back[*T](callback: Callable[[*T], object], *arguments: *T) -> None:
    """Call, and log an exception: it must not end workers that serve."""
    try:
        callback(*arguments)
    except Exception:  # noqa: BLE001  of any kind
        _log.exception("worker manager callback failed")


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
