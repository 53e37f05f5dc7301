"""The worker's side of its channel to the parent: cancellations, reloads, and closing together."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import threading
from contextlib import suppress
from dataclasses import astuple
from time import sleep
from typing import TYPE_CHECKING, Any, Self

from pallas_gateway.calls.cancellation import RequestKey
from pallas_gateway.core.parts import ProcessParts
from pallas_gateway.doors.mcp.envelope import end_cancelled
from pallas_gateway.process.server import SharedListeners
from pallas_gateway.process.workers.channel import AskedParent, Channel
from pallas_gateway.process.workers.forwarding import WorkerForwarding
from pallas_gateway.shared.remote import Remote
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.process.workers.start import Start


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
        self._descriptor = start.channel
        self.drain_seconds = start.configuration.deployment.gateway.drain_seconds
        self._is_first = start.worker == 1  # also of the process that replaces it
        self._stop = stop
        self._reload = reload
        self._may_close = asyncio.Event()
        self.is_orphan = False
        self._forwarding = WorkerForwarding(start.folder, start.process, lambda: self._parts.calls.draining)
        self._forwarding.worker, self._forwarding.workers = start.worker, start.workers
        self._forwarding.started_at = start.started_at
        self._state_key = start.state_key
        self._gateway: Gateway | None = None
        self._listeners = [socket.socket(fileno=one) for one in start.listeners]
        for descriptor in start.descriptors:  # child processes of agents must not inherit them
            os.set_inheritable(descriptor, False)
        self._tasks = TaskOwner(close_seconds=0)

    async def __aenter__(self) -> Self:
        reader, self._writer = await asyncio.open_connection(sock=socket.socket(fileno=self._descriptor))
        self._channel = channel = Channel(reader, self._writer, {"worker": self})
        parent = AskedParent(channel)
        self._parts = ProcessParts(self._forwarding, Remote(parent), parent, self._state_key)
        self._sessions = sessions = self._parts.sessions
        sessions.cancellations.hand_on = lambda key: self._tell_others("cancel", *astuple(key))
        sessions.log_levels.hand_on = lambda session, shows_info: self._tell_others("set_level", session, shows_info)
        await self._forwarding.__aenter__()
        self._tasks.spawn(self._listen(), name="parent", report=True)
        self._listen_to_signals()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._forwarding.__aexit__()
        self._channel.flush()
        await self._tasks.__aexit__()
        for listener in self._listeners:
            listener.close()
        self._writer.close()
        with suppress(ConnectionError):  # the parent is gone
            await self._writer.wait_closed()  # everything was sent

    @property
    def shared(self) -> SharedListeners:
        """The listeners and calls that the server shares with other workers."""
        return SharedListeners(self._listeners, self, self._parts, is_first=self._is_first)

    def ready(self, gateway: Gateway, announcement: str) -> None:
        """Report that every agent was tried, with the text that `serve` prints; then the state every few seconds."""
        self._gateway = gateway
        self._channel.tell("parent", "ready", announcement)
        self._tasks.spawn(self._keep_reporting(gateway), name="alive", report=True)

    async def until_all_stopped(self) -> None:
        """Return once all workers have ended their calls."""
        self._channel.tell("parent", "stopped")
        await self._may_close.wait()

    def closed(self) -> None:
        """Report that this worker accepts no more connections."""
        self._channel.tell("parent", "closed")

    # called by the parent

    def close(self) -> None:
        """Stop accepting connections, and end."""
        self._may_close.set()

    def not_reloaded(self, problems: Sequence[str], was_before: bool) -> None:
        """Note a reload that failed in the parent, which has logged the problems; if `was_before`, before `ready`."""
        if self._gateway is not None:
            note = self._gateway.note_problems if was_before else self._gateway.note_reload
            note(problems)

    def cancel(self, *key: Any) -> None:
        """End the call of a request that a client has cancelled at another worker; the values are of a `RequestKey`."""
        end_cancelled(self._sessions.cancellations, RequestKey(*key))

    def note_end_of(self, process: str) -> None:
        """Let the tasks of another worker, which has ended, go on at once, not after their lease."""
        if self._gateway is not None and (stored := self._gateway.stored) is not None:
            self._tasks.spawn(stored.long_calls.note_end_of(process), name="end of a worker", report=True)

    def set_level(self, session: str, shows_info: bool) -> None:
        """Keep the log level that the client of a session has set at another worker."""
        self._sessions.log_levels.apply(session, shows_info=shows_info)

    def _tell_others(self, method: str, *values: Any) -> None:
        self._channel.tell("parent", "tell_others", method, values)

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
            await self._channel.listen()
            self.is_orphan = True
        finally:  # also after an error: without the parent this worker would miss what its calls wait for
            self._stop.set()
            self._may_close.set()

    async def _keep_reporting(self, gateway: Gateway) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        while True:
            gateway.metrics.refresh()
            self.drain_seconds = gateway.configuration.deployment.gateway.drain_seconds
            if loop.time() >= next_at:
                self._channel.tell("parent", "alive", gateway.summary)
                next_at = loop.time() + ALIVE_SECONDS
                await gateway.metrics.update()
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
