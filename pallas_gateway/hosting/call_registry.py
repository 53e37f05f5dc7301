"""The running calls of this process, and the latest ones that have ended, without their arguments and results.

A list costs calls nothing: the registry reads the running calls when it is asked.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pallas_gateway.calls.call import Api
    from pallas_gateway.calls.permit import Outcome
    from pallas_gateway.hosting.running_call import RunningCall

MOST_ENDED = 1000
"""Ended calls that are kept."""


@dataclass(frozen=True, slots=True)
class ToolTime:
    """A tool call: `start` is in seconds from the begin of its call; `ok` is None if it had not ended."""

    name: str
    start: float
    seconds: float
    ok: bool | None


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The end of a call: `reason` is its stop reason, or why it failed. `tools_left_out` counts later tools."""

    outcome: Outcome
    reason: str
    tools: tuple[ToolTime, ...]
    tools_left_out: int


@dataclass(frozen=True, slots=True)
class ListedCall:
    """A call as lists show it.

    Attributes:
        parent: the id of the call that made it.
        caller: `key:NAME`, `token:NAME` or `anonymous`.
        owner: identifies an authenticated caller; None for others.
        began_at: seconds since the epoch.
        step: LLM turns begun.
        tokens: its own so far, of all kinds.
        waiting: a question to its caller is open.
        is_estimated: the provider sent no usage for a part of the tokens.
        end: None while it runs.
    """

    id: str
    parent: str | None
    agent: str
    caller: str
    owner: str | None
    api: Api
    began_at: float
    seconds: float
    step: int
    tokens: int
    waiting: bool = False
    is_estimated: bool = False
    end: CallOutcome | None = None


class CallRegistry:
    """The running calls of a process by their ids, and the latest ended ones.

    A call is here from its begin, also while it waits in a queue. A call that was refused was not started, and is not
    kept.
    """

    def __init__(self) -> None:
        self._running: dict[str, RunningCall] = {}
        self._ended: deque[ListedCall] = deque(maxlen=MOST_ENDED)

    def __len__(self) -> int:
        """Return the number of running calls, those in queues included."""
        return len(self._running)

    @contextmanager
    def holding(self, call: RunningCall) -> Iterator[None]:
        """Hold a running call for the block, and keep it afterwards if it has an outcome."""
        id_ = call.call.call_id
        self._running[id_] = call
        try:
            yield
        finally:
            if self._running.get(id_) is call:
                del self._running[id_]
            if call.outcome is not None:
                self._ended.append(call.listed())

    def running(self) -> list[ListedCall]:
        """Return the running calls, the oldest first."""
        return [call.listed() for call in self._running.values()]

    def recent(self) -> list[ListedCall]:
        """Return the ended calls that are kept, the latest first."""
        return [*reversed(self._ended)]

    def find(self, call_id: str) -> RunningCall | None:
        """Return a running call; None if there is none of this id."""
        return self._running.get(call_id)
