"""The carrier of a worker: its parent has the state in memory, and ends what a worker held when it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pallas_gateway.shared.memory import Memory
from pallas_gateway.shared.protocol import Over, SharedAnswer, SharedAwayError, UsedCounter, Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.shared.memory import MemoryState
    from pallas_gateway.shared.protocol import Scope

    type Row = tuple[Any, ...]


class ParentProcess(Protocol):
    """Calls methods of the parent's services with plain values, and carries them out in their order."""

    def is_behind(self) -> bool:
        """Return True while the parent, which may hang, has not read much of what it was told."""

    def tell(self, service: str, method: str, *values: Any) -> None:
        """Call a method without an answer; do nothing when the parent is gone."""

    async def ask(self, service: str, method: str, *values: Any) -> Any:
        """Return what a method returns.

        Raises:
            SharedAwayError: the parent is gone, hangs, or has failed.
        """


SERVICE = "shared"


class Remote:
    """The `Shared` of a worker."""

    is_available = True

    def __init__(self, parent: ParentProcess) -> None:
        self._parent = parent

    async def acquire(self, lease: int, wanted: Sequence[Wanted]) -> SharedAnswer:
        try:
            return _answer(await self._parent.ask(SERVICE, "acquire", lease, _rows(wanted)))
        except BaseException:
            self.release(lease)
            raise

    async def add(self, wanted: Sequence[Wanted], tokens: int) -> SharedAnswer:
        return _answer(await self._parent.ask(SERVICE, "add", _rows(wanted), tokens))

    def release(self, lease: int) -> None:
        self._parent.tell(SERVICE, "release", lease)

    def hold(self, lease: int, wanted: Sequence[Wanted]) -> None:
        """Do nothing: without its parent, a worker ends."""

    async def read(self, wanted: Sequence[Wanted]) -> Sequence[UsedCounter | None]:
        rows = await self._parent.ask(SERVICE, "read", _rows(wanted))
        return [UsedCounter(*row) if row is not None else None for row in rows]

    async def busiest(self, scopes: Sequence[Scope]) -> Sequence[tuple[int, int, int]]:
        rows: Sequence[tuple[int, int, int]] = await self._parent.ask(SERVICE, "busiest", [*scopes])
        return rows

    async def first(self, key: str, value: str, seconds: float) -> str:
        try:
            return str(await self._parent.ask(SERVICE, "first", key, value, seconds))
        except SharedAwayError:
            await self.forget(key, value)  # the parent may keep it yet
            raise

    async def forget(self, key: str, value: str) -> None:
        self._parent.tell(SERVICE, "forget", key, value)


class SharedOfWorker:
    """The parent's service for the `Remote` of one worker, with plain values in place of tuples with names."""

    def __init__(self, state: MemoryState) -> None:
        self._memory = Memory(state)
        self.release, self.forget, self.first = self._memory.release, self._memory.forget, self._memory.first
        self.busiest, self.close = self._memory.busiest, self._memory.close

    async def acquire(self, lease: int, wanted: Sequence[Row]) -> Row:
        return _row(await self._memory.acquire(lease, [Wanted(*one) for one in wanted]))

    async def add(self, wanted: Sequence[Row], tokens: int) -> Row:
        return _row(await self._memory.add([Wanted(*one) for one in wanted], tokens))

    async def read(self, wanted: Sequence[Row]) -> list[Row | None]:
        read = await self._memory.read([Wanted(*one) for one in wanted])
        return [tuple(one) if one is not None else None for one in read]


def _rows(wanted: Sequence[Wanted]) -> list[Row]:
    return [tuple(one) for one in wanted]


def _row(answer: SharedAnswer) -> Row:
    return tuple(answer.refused) if answer.refused is not None else None, [tuple(one) for one in answer.reported]


def _answer(row: Row) -> SharedAnswer:
    refused, reported = row
    return SharedAnswer(Over(*refused) if refused is not None else None, tuple(Over(*one) for one in reported))
