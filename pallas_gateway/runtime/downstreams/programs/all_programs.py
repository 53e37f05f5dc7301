"""The programs of stdio servers, each with its processes.

Agents that are configured with the same program share its processes: those that wait have received nothing of any call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pallas_gateway.runtime.downstreams.programs.program_pool import ProgramPool
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pallas_gateway.limits import ProgramLimits
    from pallas_gateway.runtime.protocols import StdioProgram


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
