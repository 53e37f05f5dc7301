"""The worker's side of its channel to the parent: cancellations, reloads, and closing together."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import threading
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Self

from pallas_gateway.hosting.parts import ProcessParts
from pallas_gateway.mcp_server.envelope import end_cancelled
from pallas_gateway.serving.server import SharedListeners
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.workers.forwarding import Forwarding
from pallas_gateway.workers.ledger_rows import LedgerRows
from pallas_gateway.workers.parent_ledger import ParentLedger
from pallas_gateway.workers.usage_of_worker import UsageOfWorker
from pallas_gateway.workers.usage_rows import UsageAnswer
from pallas_gateway.workers.worker_messages import (
    LONGEST_LINE,
    Alive,
    Cancelled,
    Close,
    Closed,
    GivenBack,
    LedgerState,
    LevelSet,
    NotReloaded,
    Stopped,
    Used,
    UsedBefore,
    WorkerSender,
    receive,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.hosting.gateway import Gateway
    from pallas_gateway.workers.start import Start
    from pallas_gateway.workers.worker_messages import WorkerMessage


class SharedStates:
    """The `StateUses` of workers: asks the parent by `send`, and takes its answers."""

    is_available = True

    def __init__(self, send: Callable[[WorkerMessage], object]) -> None:
        self._send = send
        self._asked: dict[str, asyncio.Future[bool]] = {}
        self._is_over = False

    async def use(self, ticket: str, seconds: float) -> bool:
        if self._is_over or ticket in self._asked:
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = answer
        answer.add_done_callback(lambda _: self._asked.pop(ticket))
        self._send(Used(ticket, seconds))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(lambda given: self._send(GivenBack(ticket)) if given.result() else None)
            raise

    async def give_back(self, ticket: str) -> None:
        self._send(GivenBack(ticket))

    def answered(self, ticket: str, *, is_first: bool) -> None:
        if (answer := self._asked.get(ticket)) is not None and not answer.done():
            answer.set_result(is_first)

    def end(self) -> None:
        """Use no more states: the parent is gone."""
        self._is_over = True
        for ticket in self._asked:
            self.answered(ticket, is_first=False)


ORPHAN_SECONDS = 60.0
"""Time after the drain in which a worker without a parent closes its agents and ends."""
ALIVE_SECONDS = 5.0
REFRESH_SECONDS = 1.0
"""Greatest age of this worker's gauges in another worker's `/metrics`."""


class WorkerSide:
    """One of several workers; an async context manager around its work.

    Args:
        start: from the parent.
        stop: set by SIGTERM, and when the parent is gone.
        reload: set by SIGHUP.
    """

    def __init__(self, start: Start, stop: asyncio.Event, reload: asyncio.Event) -> None:
        self._channel = start.channel
        self.drain_seconds = start.configuration.deployment.gateway.drain_seconds
        self._is_first = start.worker == 1  # also of the process that replaces it
        self._stop = stop
        self._reload = reload
        self._may_close = asyncio.Event()
        self.is_orphan = self._had_calls = False
        self._forwarding = Forwarding(start.folder, start.process, lambda: self._parts.calls.draining)
        self._ledger = ParentLedger(self.send)
        self._forwarding.worker, self._forwarding.workers = start.worker, start.workers
        self._forwarding.started_at = start.started_at
        self._usage = UsageOfWorker(self.send)
        self._parts = ProcessParts(self._forwarding, self._ledger, self._usage, start.state_key)
        self._sessions = self._parts.sessions
        self._gateway: Gateway | None = None
        self._listeners = [socket.socket(fileno=one) for one in start.listeners]
        for descriptor in start.descriptors:  # child processes of agents must not inherit them
            os.set_inheritable(descriptor, False)
        self._sessions.cancellations.hand_on = lambda key: self.send(Cancelled(key))
        self._sessions.log_levels.hand_on = lambda session, shows_info: self.send(LevelSet(session, shows_info))
        self._states = self._sessions.waiting_calls.used = SharedStates(self.send)
        self._tasks = TaskOwner(close_seconds=0)

    async def __aenter__(self) -> Self:
        channel = socket.socket(fileno=self._channel)
        self._reader, self._writer = await asyncio.open_connection(sock=channel, limit=LONGEST_LINE)
        self._sender = WorkerSender(self._writer, {"to": "parent"})
        await self._forwarding.__aenter__()
        self._tasks.spawn(self._listen(), name="parent", report=True)
        self._listen_to_signals()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._forwarding.__aexit__()
        await self._tasks.__aexit__()
        for listener in self._listeners:
            listener.close()
        self._ledger.flush()
        self._usage.send_changes()
        self._writer.close()
        with suppress(ConnectionError):  # the parent is gone
            await self._writer.wait_closed()  # everything was sent

    @property
    def shared(self) -> SharedListeners:
        """The listeners and calls that the server shares with other workers."""
        return SharedListeners(self._listeners, self, self._parts, is_first=self._is_first)

    def keep_reporting(self, gateway: Gateway) -> None:
        """Report the state of this worker every few seconds from now on."""
        self._gateway = gateway
        self._tasks.spawn(self._keep_reporting(gateway), name="alive", report=True)

    def send(self, message: WorkerMessage) -> None:
        self._sender.send(message)

    async def until_all_stopped(self, *, had_calls: bool) -> bool:
        """Return once all workers have ended their calls; whether any had some."""
        self.send(Stopped(had_calls))
        await self._may_close.wait()
        return had_calls or self._had_calls

    def closed(self) -> None:
        """Report that this worker accepts no more connections."""
        self.send(Closed())

    def _listen_to_signals(self) -> None:
        """Stop on SIGTERM, however often it comes; reload on SIGHUP.

        SIGINT is ignored: a terminal sends it to the parent as well, which handles it.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def _listen(self) -> None:
        try:
            await receive(self._reader, self._take)
            self.is_orphan = True
        finally:  # also after an error: without the parent this worker would miss what its calls wait for
            self._states.end()
            self._ledger.end()
            self._usage.end()
            self._stop.set()
            self._may_close.set()

    def _take(self, message: WorkerMessage) -> None:
        match message:
            case LedgerRows() | LedgerState():
                self._ledger.take(message)
            case UsageAnswer():
                self._usage.take(message)
            case UsedBefore(ticket, before):
                self._states.answered(ticket, is_first=not before)
            case Cancelled(key):
                end_cancelled(self._sessions.cancellations, key)
            case LevelSet(session, shows_info):
                self._sessions.log_levels.take(session, shows_info=shows_info)
            case NotReloaded():
                self._note_not_reloaded(message)
            case Close(had_calls):
                self._had_calls = had_calls
                self._may_close.set()

    def _note_not_reloaded(self, message: NotReloaded) -> None:
        if self._gateway is not None:
            note = self._gateway.note_problems if message.was_before else self._gateway.note_reload
            note(message.problems.split("\n"))

    async def _keep_reporting(self, gateway: Gateway) -> None:
        loop = asyncio.get_running_loop()
        next_at, sent_seconds = loop.time(), 0.0
        while True:
            gateway.metrics.refresh()
            self.drain_seconds = gateway.configuration.deployment.gateway.drain_seconds
            if loop.time() >= next_at or self.drain_seconds != sent_seconds:
                self.send(Alive(gateway.summary, self.drain_seconds))
                if not self._sender.is_full:  # else the changes add up until the parent reads again
                    self._usage.send_changes()
                sent_seconds = self.drain_seconds
                next_at = loop.time() + ALIVE_SECONDS
            await asyncio.sleep(REFRESH_SECONDS)


def end_after_parent(pipe: int, seconds: Callable[[], float]) -> None:
    """End this process so many seconds after the parent is gone, which reads the pipe of this descriptor.

    The event loop notices the same and stops in good order, unless it is blocked.
    """

    def wait_and_end() -> None:
        closed = select.poll()
        closed.register(pipe, 0)  # an error is reported in any case: nothing can be written any more
        closed.poll()
        sleep(seconds())
        os._exit(1)

    threading.Thread(target=wait_and_end, name="end after parent", daemon=True).start()
