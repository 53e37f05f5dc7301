"""What several processes have in common: counters, and values of which the first one is kept.

Three carriers implement it: `Memory` for one process and for the parent of workers, `Remote` for a worker, which asks
its parent, and `Sql` for all gateways on a database. One body of tests is run over them.

A carrier knows no rules: a caller says which counters a call has and how much each may count. All values are plain, so
that they can be sent to another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

type Scope = tuple[str, str, str, int]
"""Identifies a set of counters, each with a place for one caller, one agent, or both."""
type Measure = Literal["calls per minute", "calls at once", "tokens per day"]


class SharedAwayError(Exception):
    """The state cannot be reached now; nothing is known about what was asked. Those that ask decide what this means."""


class Wanted(NamedTuple):
    """A counter of a call, and what it may count at most; None: this is not counted.

    Attributes:
        scope: of the counter.
        account: of the caller, `Caller.account`; empty for a counter of all callers.
        agent: empty for a counter of all agents.
        calls_per_minute: that may begin in any 60 seconds.
        calls_at_once: that may run.
        tokens_per_day: of one day (UTC); a call without room is refused, none is counted before it has run.
        enforced: False for limits that refuse nothing, and are only reported.
    """

    scope: Scope
    account: str
    agent: str
    calls_per_minute: int | None
    calls_at_once: int | None
    tokens_per_day: int | None
    enforced: bool


class Over(NamedTuple):
    """A limit that leaves no room.

    Attributes:
        place: of its counter in the request, from 0.
        measure: what is limited.
        wait_seconds: the least time until there may be room.
    """

    place: int
    measure: Measure
    wait_seconds: float


class SharedAnswer(NamedTuple):
    """The enforced limit with the longest wait, if one refuses; limits that are exceeded and not enforced."""

    refused: Over | None
    reported: tuple[Over, ...] = ()


class UsedCounter(NamedTuple):
    """What a counter has counted.

    Attributes:
        started: calls that began in the last 60 seconds.
        leaves_seconds: until the oldest of them leaves the window; None without one.
        running: calls at once.
        tokens: of the present day.
        day_seconds: until the day ends.
    """

    started: int
    leaves_seconds: float | None
    running: int
    tokens: int
    day_seconds: float


class Shared(Protocol):
    """One holder's access to the state: a process. Its leases end with it, also if it is killed.

    Every coroutine raises `SharedAwayError` if the state cannot be reached.
    """

    @property
    def is_available(self) -> bool:
        """False if the state is known to be away."""

    async def acquire(self, lease: int, wanted: Sequence[Wanted]) -> SharedAnswer:
        """Count a call that begins at all its counters; at none if one of them refuses.

        Args:
            lease: a number of this holder, under which the call is counted as running until `release`. If this is
                cancelled, or fails, the holder has no such lease.
            wanted: the counters of the call.
        """

    async def add(self, wanted: Sequence[Wanted], tokens: int) -> SharedAnswer:
        """Count tokens; 0 only ask. `refused` is a limit that is used up; `reported` are those that these use up."""

    def release(self, lease: int) -> None:
        """End a lease, soon; one that is unknown is ignored."""

    def hold(self, lease: int, wanted: Sequence[Wanted]) -> None:
        """Count a call as running once the state can be reached: it was admitted while that was away."""

    async def read(self, wanted: Sequence[Wanted]) -> Sequence[UsedCounter | None]:
        """Return what each counter has counted; None for one that has, or had, calls of others.

        `Sql` does not know this, and returns only what is in the counter's own row.
        """

    async def busiest(self, scopes: Sequence[Scope]) -> Sequence[tuple[int, int, int]]:
        """Return the most of any counter of each scope: calls of the last minute, calls at once, tokens of the day."""

    async def first(self, key: str, value: str, seconds: float) -> str:
        """Keep a value for so many seconds unless there is one; return the one that is kept, for every holder."""

    async def forget(self, key: str, value: str) -> None:
        """Remove a value, if it is the one that is kept."""
