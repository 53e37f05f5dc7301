"""The course of a call in rows, from which another process goes on with the call after this one has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from pallas_gateway.calls.questions import Question

type RowKind = Literal["turn", "began", "waits", "result"]


class Row(NamedTuple):
    """A step of a call's course. Of several rows of one tool call, the last one counts.

    Attributes:
        kind: a `turn` of the model has ended; a tool call `began`, `waits` for answers to questions that can be put
            again, or has its `result`.
        turn: the number of the model's turn, from 1; of a tool call, the turn that asked for it.
        tool_call: its id; empty for a turn.
        data: JSON: the model's message, the result, or what is needed to put the questions again. Of a tool call that
            began: `approved`, what the caller allows for the rest of the call; `asks`, if its server waits for an
            answer that another process could not give it.
    """

    kind: RowKind
    turn: int
    tool_call: str
    data: Any


class Recorder(Protocol):
    """Stores the course of one call.

    Attributes:
        runs: earlier runs of the call, in other processes.
        why: another process goes on with it; empty in the first run.
        rows: of these, in order.
        tokens: used in earlier runs.
        cost: of earlier runs, by the prices of the models.
    """

    runs: int
    why: str
    rows: Sequence[Row]
    tokens: int
    cost: float

    def note(self, row: Row, tokens: int, cost: float) -> None:
        """Store a row soon, after all earlier ones, with what the call has used so far."""

    async def before_turn(self) -> None:
        """Return if the model may be asked for a turn; if the call is left to another process, it does not return."""

    async def store(self, row: Row, tokens: int, cost: float) -> None:
        """Store a row, and return once it and all earlier ones are stored; waits while the database is away.

        If another process has taken over the call, it does not return: the call is ended.
        """


class Journal(Protocol):
    """The course of a call, from which another process can go on with it."""

    def checkpoint(self, open_questions: Set[str]) -> str | None:
        """Return where the call waits for answers to these questions, for another process to resume it from there.

        None for a call that cannot be resumed from there, or whose checkpoint would be too long.
        """

    def record_by(self, recorder: Recorder) -> Sequence[Row]:
        """Store each step from now on; return those so far."""

    def waiting(self, question: Question) -> Sequence[Row]:
        """Return the tool calls that wait for the answer to a question."""
