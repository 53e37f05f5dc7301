"""The carrier of a process that has the state in its memory: a gateway of one process, and the parent of workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pallas_gateway.shared.counters import Counters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.shared.counters import CountedLease
    from pallas_gateway.shared.protocol import Scope, SharedAnswer, UsedCounter, Wanted


class FirstValues:
    """Values by their keys, of which the first one is kept until its time is over."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, asyncio.TimerHandle]] = {}

    def __contains__(self, key: str) -> bool:
        """Return True if a value is kept for the key."""
        return key in self._kept

    def first(self, key: str, value: str, seconds: float) -> str:
        """Keep a value unless there is one; return the one that is kept."""
        if (kept := self._kept.get(key)) is not None:
            return kept[0]
        self._kept[key] = value, asyncio.get_running_loop().call_later(seconds, self.forget, key, value)
        return value

    def forget(self, key: str, value: str) -> None:
        """Remove a value, if it is the one that is kept."""
        if (kept := self._kept.get(key)) is not None and kept[0] == value:
            del self._kept[key]
            kept[1].cancel()


@dataclass(frozen=True)
class MemoryState:
    """The state of one process, for all its holders."""

    counters: Counters = field(default_factory=Counters)
    values: FirstValues = field(default_factory=FirstValues)


class Memory:
    """The `Shared` of one holder in this process, which is the process itself, or one worker."""

    is_available = True

    def __init__(self, state: MemoryState | None = None) -> None:
        self._state = state or MemoryState()
        self._leases: dict[int, CountedLease] = {}

    def close(self) -> None:
        """End all leases: the holder has ended."""
        for lease in [*self._leases]:
            self.release(lease)

    async def acquire(self, lease: int, wanted: Sequence[Wanted]) -> SharedAnswer:
        answer, held = self._state.counters.acquire(wanted)
        if answer.refused is None:
            self._leases[lease] = held
        return answer

    async def add(self, wanted: Sequence[Wanted], tokens: int) -> SharedAnswer:
        return self._state.counters.add(wanted, tokens)

    def release(self, lease: int) -> None:
        if (held := self._leases.pop(lease, None)) is not None:
            held.end()

    def hold(self, lease: int, wanted: Sequence[Wanted]) -> None:
        """Do nothing: this state is never away."""

    async def read(self, wanted: Sequence[Wanted]) -> Sequence[UsedCounter | None]:
        return self._state.counters.read(wanted)

    async def busiest(self, scopes: Sequence[Scope]) -> Sequence[tuple[int, int, int]]:
        return self._state.counters.busiest(scopes)

    async def first(self, key: str, value: str, seconds: float) -> str:
        return self._state.values.first(key, value, seconds)

    async def forget(self, key: str, value: str) -> None:
        self._state.values.forget(key, value)
