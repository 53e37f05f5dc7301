"""Tasks as values. A task is a call whose course is stored: a background turn of a thread, or a turn that asks."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pallas_gateway.database.tables import ID_CHARACTERS
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.calls.call import Api
    from pallas_gateway.calls.questions import Answer
    from pallas_gateway.calls.recording import Row

type TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
OPEN: tuple[TaskStatus, ...] = ("working", "input_required")
FORMAT = 1
"""Of requests and rows. A process goes on with tasks of this format and of earlier ones."""
MOST_UNMOVED = 5
"""Runs of a task without a new step, after which it is given up: it may end each process that continues it."""


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
        request: what a run needs to begin again, as JSON.
        by_owner: only a request of its owner continues it, because that has to bring a token.
        thread_id: of a turn, with its number.
        seconds: until it expires.
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
    request: Mapping[str, Any] = field(repr=False)
    by_owner: bool
    thread_id: str
    turn: int
    seconds: float
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

    `runs` counts those before.
    """

    held: Held
    principal: str
    agent: str
    agent_id: str
    call_id: str
    request: Mapping[str, Any] = field(repr=False)
    thread_id: str
    turn: int
    runs: int
    tokens: int
    cost: float
    rows: Sequence[Row] = field(repr=False)
    answers: Mapping[str, Answer] = field(repr=False)


class TaskLostError(GatewayError):
    """Another process goes on with the task, or it was cancelled."""

    reason = "lease_lost"
