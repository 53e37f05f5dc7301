"""Stores the course of one task in order: what comes together is written in one transaction."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pallas_gateway.core.long_calls import rows
from pallas_gateway.core.long_calls.records import LONGEST_COURSE, TaskLostError
from pallas_gateway.errors import GatewayError
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from pallas_gateway.tasks import TaskOwner, completed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.calls.recording import Journal, Row
    from pallas_gateway.calls.spending import Spending
    from pallas_gateway.core.long_calls.records import ClaimedTask, Held, NewTask
    from pallas_gateway.core.long_calls.service import LongCalls
    from pallas_gateway.shared.database.connections import Database
    from pallas_gateway.shared.database.tables import AnyRow

    type Asked = tuple[Question, asyncio.Future[Answer]]

TRY_AGAIN_SECONDS = 0.5
LAST_SECONDS = 5.0
"""Longest wait at the end of a run for a database that is away."""


@dataclass(eq=False, slots=True)
class _Entry:
    """What is to be written: rows, or a question with the rows of the tools that wait for it."""

    rows: Sequence[Row]
    question: Question | None = None
    is_stored: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def set_stored(self) -> None:
        if not self.is_stored.done():
            self.is_stored.set_result(None)


class LatestStep:
    """What a call does, in a line for its client."""

    text = ""


class TaskRecorder:
    """The `Recorder` of a task of this process, and its questions with their answers.

    Args:
        database: of the task.
        held: the task.
        ask_seconds: time for an answer.
        claimed: the task, if another process has begun it.
        step: of the call; stored with its course.

    Attributes:
        held: the task.
        on_lost: called once if another process has taken over the task, or it was cancelled.
        is_lost: the task is not that of this run any more.
        was_cancelled: that is because it was cancelled.
        can_move: the whole course is stored.
        on_boundary: called once no tool runs that has begun, to leave the task to another process; no other one begins.
        open_questions: the answers to these are waited for.
    """

    def __init__(
        self, database: Database, held: Held, ask_seconds: float, claimed: ClaimedTask | None, step: LatestStep
    ) -> None:
        self.held = held
        self.on_lost: Callable[[], object] = lambda: None
        self.on_boundary: Callable[[], object] | None = None
        self.is_lost = self.was_cancelled = False
        self.can_move = True
        self.runs = claimed.runs if claimed is not None else 0
        self.why: str = claimed.why if claimed is not None else ""
        self.rows: Sequence[Row] = claimed.rows if claimed is not None else ()
        self.tokens, self.cost = (claimed.tokens, claimed.cost) if claimed is not None else (0, 0.0)
        self._database = database
        self._ask_seconds = ask_seconds
        self._step = step
        self._next = len(self.rows)
        self._bytes = _bytes_of(self.rows)
        self._spent = {"tokens": self.tokens, "cost": self.cost}
        self._entries: list[_Entry] = []
        self.open_questions: dict[str, asyncio.Future[Answer]] = {}
        self._tools: set[tuple[int, str]] = set()
        self._is_over = self._is_off = False
        self._tasks = TaskOwner()
        self._writing: asyncio.Task[Any] | None = None

    async def end(self) -> None:
        """Write what is noted, unless the task is lost or the database away, and nothing more."""
        if self._entries and self._writing is not None and not self._is_over:
            await asyncio.wait({self._writing}, timeout=LAST_SECONDS)
        self._is_over = True
        await self._tasks.__aexit__()

    async def begin(
        self, new: NewTask, long_calls: LongCalls, journal: Journal | None, spent: Spending, asked: Asked | None
    ) -> AnyRow | None:
        """Store the task of a running call, with its course so far, and perhaps its first question; return its row.

        Args:
            new: the task.
            long_calls: the tasks of this process.
            journal: the course so far; None for a call that cannot go on elsewhere.
            spent: tokens and cost so far.
            asked: the question, and where its answer is set once a request gives it.

        Raises:
            TooManyTasksError: the caller may have no further task; as the next one.
            DatabaseUnavailableError: it is not stored; steps of the call are not either.
        """
        course = [*journal.record_by(self)] if journal is not None else []
        question = None
        if asked is not None:
            question, self.open_questions[question.id] = asked
            course += journal.waiting(question) if journal is not None else ()
        self._count(course)
        self._tools = {(row.turn, row.tool_call) for row in course if row.kind == "began"}
        self._spent = {"tokens": spent.tokens, "cost": spent.cost}
        first = _Entry(course, question)

        async def written(sql: AsyncConnection) -> AnyRow | None:
            await rows.add(sql, new, long_calls.process)
            await long_calls.keep_alive(sql)
            await self._written([first], dict(self._spent), sql)
            row = await rows.find(sql, id=new.id)
            if self._is_off:  # it has taken too long, and the call goes on without a task
                raise TaskLostError(was_cancelled=True)
            return row

        self._writing = storing = self._tasks.spawn(self._database.write(written), name=f"begin of task {new.id}")
        try:
            row = await completed(storing)
        except (GatewayError, asyncio.CancelledError):
            self._is_off = self._is_over = True
            for entry in self._entries:  # tools that are about to begin, without being recorded
                entry.set_stored()
            raise
        self._next = len(course)
        self._go_on()
        return row

    def note(self, row: Row, tokens: int, cost: float) -> None:
        if row.kind == "result":
            self._tools.discard((row.turn, row.tool_call))
        self._add(_Entry([row]), tokens, cost)
        if row.kind == "result" and self.on_boundary is not None and not self._tools:
            self.on_boundary()

    async def before_turn(self) -> None:
        if self.on_boundary is not None:
            if not self._tools:
                self.on_boundary()
            await asyncio.Future()  # the call is ended

    async def store(self, row: Row, tokens: int, cost: float) -> None:
        if self._is_off:
            return
        await self.before_turn()
        self._tools.add((row.turn, row.tool_call))
        entry = _Entry([row])
        self._add(entry, tokens, cost)
        await entry.is_stored

    # Questions

    async def ask(self, question: Question, waiting: Sequence[Row], answer: asyncio.Future[Answer]) -> None:
        """Store a question, and the tool calls that wait for it; `answer` is set once a request gives it."""
        self.open_questions[question.id] = answer
        self._tools -= {(row.turn, row.tool_call) for row in waiting if row.kind == "waits"}
        entry = _Entry(waiting, question)
        self._add(entry)
        await entry.is_stored

    async def close(self, question_id: str, answer: Answer) -> None:
        """Note that the call goes on without an answer of its caller to a question: with this one."""
        with suppress(DatabaseUnavailableError, TaskLostError):
            await self._database.write(lambda sql: rows.close_question(sql, self.held, question_id, answer))

    def deliver(self, question_id: str, answer: Answer) -> None:
        """Set the answer to a question, unless it has one."""
        waiting = self.open_questions.get(question_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    # Writing

    def _add(self, entry: _Entry, tokens: int | None = None, cost: float = 0.0) -> None:
        if tokens is not None:
            self._spent = {"tokens": tokens, "cost": cost}
        if not self._is_over:
            self._count(entry.rows)
            self._entries.append(entry)
            self._go_on()

    def _count(self, new: Sequence[Row]) -> None:
        if self.can_move:
            self._bytes += _bytes_of(new)
            if self._bytes > LONGEST_COURSE:
                self.can_move, self.on_boundary = False, None

    def _go_on(self) -> None:
        if self._entries and (self._writing is None or self._writing.done()):
            self._writing = self._tasks.spawn(self._write(), name=f"steps of task {self.held.task_id}", report=True)

    async def _write(self) -> None:
        while self._entries and not self._is_over:
            batch = [*self._entries]
            try:
                await self._database.write(partial(self._written, batch, dict(self._spent)))
            except TaskLostError as error:
                self.lose(was_cancelled=error.was_cancelled)
            except DatabaseUnavailableError:
                await asyncio.sleep(TRY_AGAIN_SECONDS)
            else:
                self._next += sum(len(entry.rows) for entry in batch)
                self._entries = self._entries[len(batch) :]
                for entry in batch:
                    entry.set_stored()

    async def _written(self, batch: Sequence[_Entry], changed: dict[str, Any], sql: AsyncConnection) -> None:
        changed["status_message"] = self._step.text
        asked = [entry.question for entry in batch if entry.question is not None]
        if asked:
            changed["status"] = "input_required"
        if not self.can_move:
            changed["can_move"] = False
        new = [row for entry in batch for row in entry.rows] if self.can_move else ()
        await rows.append(sql, self.held, self._next, new, **changed)
        for question in asked:
            await rows.ask(sql, self.held.task_id, question, self._ask_seconds)

    def lose(self, *, was_cancelled: bool = False) -> None:
        """End the run: the task is not this process's any more."""
        if not self._is_over:
            self._is_over = self.is_lost = True
            self.was_cancelled = was_cancelled
            self._entries = []
            self.on_lost()


def _bytes_of(new: Sequence[Row]) -> int:
    return sum(len(json.dumps(row.data)) for row in new)
