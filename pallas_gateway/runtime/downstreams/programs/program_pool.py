"""The processes of one stdio server, which are started and initialised before a call uses them.

A process that a call has used is ended, never used again. With `shared: true` all calls use one process. Agents that
are configured with the same program share its processes: those that wait have received nothing of any call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Self

from pallas_gateway.runtime.downstreams.programs.program_process import ProgramBusyError, ProgramError, ProgramProcess
from pallas_gateway.runtime.downstreams.programs.program_transport import DISCOVER, INITIALIZE, Greeting
from pallas_gateway.runtime.protocols import ProgramState
from pallas_gateway.runtime.scope import current_scope
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pallas_gateway.calls.asking.asking import Questions
    from pallas_gateway.limits import ProgramLimits
    from pallas_gateway.runtime.protocols import StdioProgram

MODERN = "2026-07-28"
_log = logging.getLogger("pallas.runtime")


@dataclass(eq=False, slots=True)
class _Demand:
    """A connection that waits for a process."""

    greeting: Greeting
    is_listing: bool
    questions: Questions  # of its call
    process: asyncio.Future[ProgramProcess] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ProgramPool:
    """The processes of one program, at most `max_processes`.

    Attributes:
        users: the agents that use it.
        listing: held while an agent lists the tools, so that the next agent can use the same process.
        discovery: the greeting of a server of the 2026-07-28 era; None before it was listed, or of another era.
        is_of_initialize_era: it has answered `initialize`.
    """

    def __init__(self, server: str, program: StdioProgram, limits: ProgramLimits) -> None:
        self.server = server
        self.program = program
        self.users = 0
        self.listing = asyncio.Lock()
        self.discovery: Greeting | None = None
        self.is_of_initialize_era = False
        self._settings = program.processes
        self._limits = limits
        self._tasks = TaskOwner(close_seconds=2 * limits.leave_seconds + 2)
        self._all: set[ProgramProcess] = set()
        self._starting: dict[ProgramProcess, str] = {}
        self._ready: dict[ProgramProcess, asyncio.TimerHandle] = {}  # greeted, with the timers that end them
        self._lent: set[ProgramProcess] = set()  # to listings, which give them back
        self._users: dict[ProgramProcess, Questions] = {}  # of the calls that have a process
        self._kept_warm: dict[str, Greeting] = {}
        self._demands: deque[_Demand] = deque()
        self._latest: ProgramState | None = None  # when a process was last greeted
        self._failures = 0
        self._why_failed = ""
        self._retry_at = float("-inf")
        self._is_closed = False

    @property
    def is_shared(self) -> bool:
        """True if all connections use one process."""
        return self._settings.shared

    @property
    def state(self) -> ProgramState | None:
        """The known state of the program, which is not started for it; None if there is none.

        Without a process it is that of the process before: a call may just have used it, or it was idle for too long.
        The first process may take `start_seconds`.
        """
        if monotonic() < self._retry_at:
            return ProgramState(error=self._why_failed)
        greeted = [one.greeting for one in self._all if one.is_usable and one.greeting is not None]
        if greeted:
            return _state_after(greeted[0])
        if self._failures:
            return None
        if self.is_of_initialize_era:  # it may have been greeted by `server/discover` before
            return ProgramState(protocol=INITIALIZE)
        if self.discovery is not None:
            return self._latest
        return ProgramState() if self._all else None

    async def acquire(self, greeting: Greeting, *, is_listing: bool = False) -> ProgramProcess:
        """Return a process that has answered `greeting`, for one connection: of a call, or of a listing.

        Raises:
            ProgramBusyError: all processes are in use.
            ProgramError: it cannot be started, or has failed just now.
        """
        demand = _Demand(greeting, is_listing, current_scope.get().questions)
        self._demands.append(demand)
        self._serve(demand)
        if not demand.process.done() and (self._is_closed or monotonic() < self._retry_at):
            self._demands.remove(demand)
            raise ProgramError(self._why_failed)
        self._work()
        try:
            await self._until_served(demand)
            if not demand.process.done() and greeting.key not in self._starting.values():
                raise ProgramBusyError(f"all {self._settings.max_processes} processes of its program are in use")
            return await asyncio.shield(demand.process)
        except BaseException:
            self._withdraw(demand)
            raise

    async def _until_served(self, demand: _Demand) -> None:
        """Wait for a process, `start_seconds` at most; a call that waits for its caller has to make way meanwhile."""
        left = self._limits.start_seconds
        while left > 0 and not demand.process.done():
            pause = min(left, self._limits.patience_seconds)
            await asyncio.wait({demand.process}, timeout=pause)
            left -= pause
            if left > 0 and not demand.process.done() and not demand.is_listing:
                self._close_oldest_question(demand)

    def _close_oldest_question(self, demand: _Demand) -> None:
        """Close the oldest question of the calls that have all processes, so that its call goes on and ends."""
        if len(self._all) < self._settings.max_processes or demand.greeting.key in self._starting.values():
            return
        asking = {one.oldest: one for one in self._users.values() if one is not demand.questions and one.oldest}
        if asking:
            oldest = min(asking)
            # Other calls [waited](stdio-servers.md) for its process.
            _log.info(
                "question closed for a process",
                extra={"server": self.server, "agent": asking[oldest].agent, "seconds": round(monotonic() - oldest, 1)},
            )
            asking[oldest].close_oldest()

    def note_greeting(self, greeting: Greeting) -> None:
        """Keep the era, and a greeting of the 2026-07-28 era for clients that make no handshake."""
        self.is_of_initialize_era = greeting.method == INITIALIZE
        if greeting.method == DISCOVER:
            self.discovery = greeting

    def keep_warm(self, greeting: Greeting) -> None:
        """Have processes ready that have answered `greeting`: soon, because a start would slow the present call."""
        if self._settings.warm and not self.is_shared:
            self._kept_warm[greeting.key] = greeting
            asyncio.get_running_loop().call_later(self._limits.replace_seconds, self._replace, context=Context())

    def release(self, process: ProgramProcess, *, is_used: bool) -> None:
        """End the connection to a process. One that a call has used is ended, unless it is shared."""
        self._lent.discard(process)
        self._users.pop(process, None)
        is_clean = process.is_usable and process.greeting is not None
        if is_clean and self.is_shared:
            if not process.connections:
                self._keep(process)
        elif is_clean and not is_used and process.greeting is not None:
            self._kept_warm[process.greeting.key] = process.greeting
            self._keep(process)
        else:
            process.end()
        self._work()
        self._replace()

    async def close(self) -> None:
        """End all processes and wait for that."""
        self._is_closed, self._why_failed = True, "its agents were stopped"
        self._fail(self._why_failed)
        for process in self._all:
            process.end()
        for timer in self._ready.values():
            timer.cancel()
        self._ready.clear()
        await self._tasks.__aexit__()

    def _count(self, key: str) -> int:
        """The processes that are ready or starting, of one greeting. A shared process is greeted again."""
        if self.is_shared:
            return len(self._ready) + len(self._starting)
        ready = sum(key in one.answers for one in (*self._ready, *self._lent))
        return ready + list(self._starting.values()).count(key)

    def _waiting(self, key: str) -> int:
        """The connections that wait for a process, of one greeting."""
        return sum(one.greeting.key == key for one in self._demands)

    def _keep(self, process: ProgramProcess) -> None:
        if process in self._ready:
            self._ready[process].cancel()
        seconds, context = self._settings.idle_seconds, Context()  # not that of a call
        self._ready[process] = asyncio.get_running_loop().call_later(seconds, self._expire, process, context=context)

    def _expire(self, process: ProgramProcess) -> None:
        if process.connections:  # a shared one, which was taken by two connections before one of them ended
            return
        if process.greeting is not None:
            self._kept_warm.pop(process.greeting.key, None)  # until a call uses the program again
        self._drop(process)

    def _drop(self, process: ProgramProcess) -> None:
        if (timer := self._ready.pop(process, None)) is not None:
            timer.cancel()
        process.end()

    def _work(self) -> None:
        """Hand out ready processes, and start those that connections wait for."""
        for demand in list(self._demands):
            self._serve(demand)
        for demand in self._demands:
            key = demand.greeting.key
            missing = (1 if self.is_shared else self._waiting(key)) - self._count(key)
            ending = sum(not one.is_usable for one in self._all)
            if missing > 0 and not self._start(demand.greeting) and self._ready and ending < len(self._demands):
                self._drop(next(iter(self._ready)))  # it has answered another greeting; its place is needed
        self._end_surplus()

    def _replace(self) -> None:
        """Start processes that are kept ready; not while a call takes one, because the start would slow it down."""
        for greeting in self._kept_warm.values():
            wanted = self._waiting(greeting.key) + self._settings.warm
            while self._count(greeting.key) < wanted and self._start(greeting):
                pass

    def _end_surplus(self) -> None:
        """End processes that were started for connections that have left, except those that are kept ready."""
        if self.is_shared:
            return
        for process, key in reversed(list(self._starting.items())):
            if self._count(key) > self._waiting(key) + self._settings.warm:
                del self._starting[process]
                process.end()
        for process in list(self._ready):
            if all(self._count(key) > self._waiting(key) + self._settings.warm for key in process.answers):
                self._drop(process)

    def _serve(self, demand: _Demand) -> None:
        fits = (one for one in self._ready if self.is_shared or demand.greeting.key in one.answers)
        found = next((one for one in fits if one.is_usable), None)
        if found is None or demand.process.done():
            return
        timer = self._ready[found]
        timer.cancel()
        if not self.is_shared:
            del self._ready[found]
        if demand.is_listing:
            self._lent.add(found)
        elif not self.is_shared:
            self._users[found] = demand.questions
        self._demands.remove(demand)
        demand.process.set_result(found)

    def _withdraw(self, demand: _Demand) -> None:
        """Forget a demand; the process that it may have received is ready for the next one."""
        if demand in self._demands:
            self._demands.remove(demand)
            self._end_surplus()
        if not demand.process.cancel() and demand.process.exception() is None:
            self.release(demand.process.result(), is_used=False)

    def _start(self, greeting: Greeting) -> bool:
        """Start a process, unless there are too many or the program has failed just now."""
        if self._is_closed or len(self._all) >= self._settings.max_processes or monotonic() < self._retry_at:
            return False
        process = ProgramProcess(self.program, self._limits.leave_seconds)
        self._all.add(process)
        self._starting[process] = greeting.key
        # In an empty context: a process may outlive the call that starts it.
        for work in (self._run(process), self._greet(process, greeting)):
            Context().run(self._tasks.spawn, work, name=f"process of {self.server}", report=True)
        return True

    async def _run(self, process: ProgramProcess) -> None:
        try:
            await process.run()
        finally:
            self._all.discard(process)
            if process in self._ready and process.greeting is not None:  # it ended by itself, and may do so again
                self._kept_warm.pop(process.greeting.key, None)
            self._drop(process)
            self._work()
            self._replace()

    async def _greet(self, process: ProgramProcess, greeting: Greeting) -> None:
        try:
            async with asyncio.timeout(self._limits.start_seconds):
                await process.greet(greeting)
            with suppress(TimeoutError):  # a process that was greeted can be used
                async with asyncio.timeout(self._limits.rehearse_seconds):
                    await process.rehearse()
        except (ProgramError, TimeoutError) as error:
            late = isinstance(error, TimeoutError)
            if self._starting.pop(process, None) is not None:  # else it was ended here
                self._note_failure(f"no answer within {self._limits.start_seconds:g} s" if late else str(error))
            process.end()
        else:
            if self._starting.pop(process, None) is None:
                return
            self._failures, self._retry_at = 0, float("-inf")
            self._latest = _state_after(greeting)
            self._keep(process)
            self._work()
        finally:
            self._starting.pop(process, None)

    def _note_failure(self, why: str) -> None:
        """Start nothing for a while; `why` is the answer to all who wait, and the next call tries again."""
        if self._is_closed:
            return
        if not self._demands and not self._failures:  # else those who wait log it
            _log.warning("downstream process failed", extra={"server": self.server, "error": why})
        self._failures += 1
        self._why_failed = why
        pause = min(self._limits.first_pause_seconds * 2 ** (self._failures - 1), self._limits.last_pause_seconds)
        self._retry_at = monotonic() + pause
        self._kept_warm.clear()
        self._fail(why)

    def _fail(self, why: str) -> None:
        demands, self._demands = self._demands, deque()
        for demand in demands:
            if not demand.process.done():
                demand.process.set_exception(ProgramError(why))


def _state_after(greeting: Greeting) -> ProgramState:
    return ProgramState(protocol=MODERN if greeting.method == DISCOVER else greeting.method)


class Programs:
    """The programs of all agents; an async context manager that is left after the last agent."""

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits
        self._pools: dict[Hashable, ProgramPool] = {}
        self._tasks = TaskOwner(close_seconds=2 * limits.leave_seconds + 10)

    async def __aenter__(self) -> Self:
        """Nothing to open."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all processes and wait for that."""
        for key in list(self._pools):
            self._close(key)
        await self._tasks.__aexit__()

    def acquire(self, server: str, program: StdioProgram) -> ProgramPool:
        """Return the processes of a server's program, to be given back by `release`."""
        key = _key_of(server, program)
        pool = self._pools.setdefault(key, ProgramPool(server, program, self._limits))
        pool.users += 1
        return pool

    def release(self, pool: ProgramPool) -> None:
        """Give back what `acquire` returned; the last user's ends the processes."""
        pool.users -= 1
        if pool.users == 0:
            self._close(_key_of(pool.server, pool.program))

    def _close(self, key: Hashable) -> None:
        if (pool := self._pools.pop(key, None)) is not None:
            self._tasks.spawn(pool.close(), name=f"end {pool.server}", report=True)


def _key_of(server: str, program: StdioProgram) -> Hashable:
    environ = tuple(sorted(program.environ.items()))
    return server, program.command, program.arguments, environ, program.directory, program.processes
