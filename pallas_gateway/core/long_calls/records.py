"""Tasks as values. A task is a call whose course is stored.

It is a turn of a thread in the background, a turn that asks, or a long call of an MCP client.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pallas_gateway.errors import GatewayError
from pallas_gateway.shared.database.tables import ID_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.calls.call import Api
    from pallas_gateway.calls.questions import Answer
    from pallas_gateway.calls.recording import Row
    from pallas_gateway.shared.database.tables import AnyRow

type TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
type Why = Literal["killed", "drained", "answered", "owner"]
"""A process goes on with a task: the one before was killed or has left it, or the owner has answered or asks for it."""
FORMAT = 1
"""Of requests and rows. A process goes on with tasks of this format and of earlier ones."""
LONGEST_REQUEST = 4 * 1024 * 1024
"""Bytes of the arguments of a call as JSON; with longer ones, no other process can begin again."""
LONGEST_COURSE = 16 * 1024 * 1024
"""Bytes of the rows of a task as JSON; of a longer course nothing more is stored, and no other process goes on."""
MOST_UNMOVED = 4
"""Runs of a task after its first, without a new result or question, after which it is given up: it may end each of its
processes."""


class Held(NamedTuple):
    """The right to write a task: that of one run; `holder` is unguessable and new for every run."""

    task_id: str
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task to store.

    Attributes:
        owner: as of threads.
        account: holds the limits of its caller.
        principal: its caller, as in log lines.
        agent: that answers; `agent_id` is empty for agents of files.
        api: of the request.
        call_id: one for all runs.
        request: what a run needs to begin again, as JSON; None if that is too long to be stored.
        by_owner: only a request of its owner continues it, because that has to bring a token.
        seconds: until it expires.
        thread_id: of a turn, with its number.
        conversation_id: as the client gave it.
        most: open tasks that its account may have, this one included.
        can_move: its course is stored; another process may go on with it.
        holder: of its first run.
    """

    owner: str
    account: str
    principal: str
    agent: str
    agent_id: str
    api: Api
    call_id: str
    request: Mapping[str, Any] | None = field(repr=False)
    by_owner: bool
    seconds: float
    thread_id: str | None = None
    turn: int | None = None
    conversation_id: str | None = None
    most: int | None = None
    can_move: bool = True
    holder: str = field(default_factory=lambda: secrets.token_hex(ID_CHARACTERS // 2))
    id: str = field(default_factory=lambda: secrets.token_hex(ID_CHARACTERS // 2))

    @property
    def held(self) -> Held:
        """The right of the first run to write it."""
        return Held(self.id, self.holder)


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task that this process goes on with; `rows` are its course so far, `answers` those that were given.

    `runs` counts those before. `thread_id` is empty for a task that is no turn.
    """

    held: Held
    principal: str
    account: str
    agent: str
    agent_id: str
    api: Api
    call_id: str
    request: Mapping[str, Any] = field(repr=False)
    thread_id: str
    turn: int
    runs: int
    why: Why
    tokens: int
    cost: float
    rows: Sequence[Row] = field(repr=False)
    answers: Mapping[str, Answer] = field(repr=False)


class Cancelled(NamedTuple):
    """A task that was open; `was_at_rest` if no living process ran it."""

    task: AnyRow
    was_at_rest: bool


class TaskLostError(GatewayError):
    """Another process goes on with the task, unless it `was_cancelled`."""

    reason = "lease_lost"

    def __init__(self, *, was_cancelled: bool) -> None:
        super().__init__("The call was cancelled." if was_cancelled else "Another process goes on with this call.")
        self.was_cancelled = was_cancelled


class TooManyTasksError(GatewayError):
    """The caller has too many open tasks."""

    reason = "too_many_tasks"
