"""What is known of threads, as values; and why one cannot be used now."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.calls.call import Message

type Status = Literal["pending", "complete", "error"]


@dataclass(frozen=True, slots=True)
class Thread:
    """One conversation of one owner with one agent; `turns` is the number of its latest turn, 0 if it has none."""

    id: str
    agent: str
    title: str | None
    created_at: datetime
    updated_at: datetime
    turns: int

    @property
    def changed(self) -> int:
        """`updated_at` in milliseconds since 1970, as it is stored."""
        return round(self.updated_at.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a turn came to: the answer of a complete one, the reason and a sentence of one that failed."""

    answer: Message | None = None
    stop_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    error_reason: str | None = None
    error: str | None = None

    @property
    def status(self) -> Status:
        """As it is stored."""
        return "error" if self.answer is None else "complete"


@dataclass(frozen=True, slots=True)
class Turn:
    """One question with what became of it; `number` counts from 1, without gaps."""

    number: int
    status: Status
    question: Message
    outcome: Outcome
    call_id: str
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class TurnPage:
    """Some turns of a thread, in order; `has_more` if others follow."""

    turns: tuple[Turn, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class History:
    """The messages before a turn; `left_out` is the number of older answered turns that did not fit."""

    messages: tuple[Message, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class NewThread:
    """A thread that is created with its first turn."""

    owner: str
    agent: str
    id: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to add to a thread; `holder` is unguessable and new for every turn."""

    thread_id: str
    turn: int
    holder: str


class ThreadNotFoundError(GatewayError):
    """There is no such thread, or it is somebody else's, or of another agent: callers cannot tell which."""

    reason = "not_found"


class ThreadBusyError(GatewayError):
    """Another call of the thread is still running; it may be tried again."""

    reason = "thread_busy"


class LeaseLostError(GatewayError):
    """Another call has taken over the thread meanwhile, so this one's answer is not part of it."""

    reason = "lease_lost"


class ThreadsUnavailableError(GatewayError):
    """The database cannot be used now; the operator has to mend it, callers may try again."""

    reason = "threads_unavailable"


class ThreadsSchemaError(GatewayError):
    """The database's tables are newer than this version of the gateway; the operator has to update the gateway."""

    reason = "threads_schema_newer"
