"""One started runtime of a hosted agent, with the settings its calls run by.

A reload puts another version in its place; the calls that began on this one end on it, then it is left.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pallas_gateway.agents.admission import Admission
    from pallas_gateway.config.model.schema import AgentSettings
    from pallas_gateway.runtime.protocols import AgentRuntime


class UseCount:
    """How many calls use a runtime now."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a use for the block."""
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._none.set()

    async def wait_for_none(self) -> None:
        """Return once nobody uses it."""
        await self._none.wait()


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """What a call runs on from its beginning to its end; `uses` goes with the runtime, whatever settings change."""

    settings: AgentSettings
    admission: Admission
    runtime: AgentRuntime
    uses: UseCount
