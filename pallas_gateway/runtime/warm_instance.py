"""An instance that is made before the call that uses it, while another call waits for its model.

It is used for at most one call, or disposed of. If none is ready, the call makes its own.
"""

from __future__ import annotations

import asyncio
import itertools
from contextvars import Context
from datetime import date
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from pallas_gateway.runtime import fast_paths

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from fast_agent.core.harness import HarnessSession
    from fast_agent.interfaces import AgentProtocol

    from pallas_gateway.tasks import TaskOwner

AFTER_SECONDS = 0.01
"""Delay after which the call that opened an instance has sent its request to the model."""
FRESH_SECONDS = 60.0
"""Age from which an instance is disposed of unused: its instruction may hold facts of the time when it was made."""
_READ_ANEW = ("{{file", "{{url")
"""Placeholders in instructions whose values may differ between calls."""


class _Made(NamedTuple):
    session: HarnessSession
    at: float
    on: date  # instructions may contain the date


def _today() -> date:
    return date.today()  # noqa: DTZ011  the local date, as fast-agent writes it into instructions


class WarmInstance:
    """The warm instance of one hosted agent; `create` makes an instance with the given, unique name."""

    def __init__(
        self,
        create: Callable[[str], Awaitable[HarnessSession]],
        tasks: TaskOwner,
        *,
        fresh_seconds: float = FRESH_SECONDS,
        today: Callable[[], date] = _today,
    ) -> None:
        self._fresh_seconds = fresh_seconds
        self._today = today
        self._create = create
        self._tasks = tasks
        self._numbers = itertools.count(1)
        self._made: _Made | None = None
        self._is_wanted = fast_paths.WARM_INSTANCES.is_on
        self._is_making = False

    def only_if_alike(self, agents: Iterable[AgentProtocol]) -> None:
        """Make no warm instances of agents whose instructions must be read again for each instance."""
        instructions = [str(getattr(agent.config, "instruction", "")) for agent in agents]
        self._is_wanted &= not any(mark in text for mark in _READ_ANEW for text in instructions)

    def take(self) -> HarnessSession | None:
        """Return the warm instance and forget it; None if there is none, or if it is out of date."""
        made, self._made = self._made, None
        if made is None:
            return None
        if monotonic() - made.at <= self._fresh_seconds and made.on == self._today():
            return made.session
        self._tasks.spawn(made.session.delete(), name="throw warm instance away", report=True)
        return None

    def make_soon(self) -> None:
        """Make one after a short delay, in an empty context instead of the call's."""
        if self._is_wanted and self._made is None and not self._is_making:
            self._is_making = True
            asyncio.get_running_loop().call_later(AFTER_SECONDS, self._begin, context=Context())

    async def close(self) -> None:
        """Make no more instances, and dispose of the one that is ready."""
        self._is_wanted = False
        made, self._made = self._made, None
        if made is not None:
            await made.session.delete()

    def _begin(self) -> None:
        self._is_making = self._is_wanted
        if self._is_wanted:
            self._tasks.spawn(self._make(), name="make warm instance", report=True)

    async def _make(self) -> None:
        try:
            session = await self._create(f"warm-{next(self._numbers)}")
        finally:
            self._is_making = False
        if self._is_wanted:
            self._made = _Made(session, monotonic(), self._today())
        else:
            await session.delete()
