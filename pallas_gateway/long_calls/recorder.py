"""Stores the course of one task in order: what comes together is written in one transaction."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pallas_gateway.database.errors import DatabaseUnavailableError
from pallas_gateway.database.tables import tasks
from pallas_gateway.errors import GatewayError
from pallas_gateway.long_calls import rows
from pallas_gateway.long_calls.records import TaskLostError
from pallas_gateway.tasks import TaskOwner, completed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.calls.recording import Journal, Row
    from pallas_gateway.database.connections import Database
    from pallas_gateway.database.tables import AnyRow
    from pallas_gateway.long_calls.records import ClaimedTask, Held, NewTask
    from pallas_gateway.long_calls.service import LongCalls

TRY_AGAIN_SECONDS = 0.5
LAST_SECONDS = 5.0
"""Longest wait at the end of a run for a database that is away."""


@dataclass(eq=False, slots=True)
class _Entry:
    """What is to be written: rows, or a question with the rows of the tools that wait for it."""

    rows: Sequence[Row]
    question: Question | None = None
    is_stored: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(frozen=True, slots=True)
class Adopted:
    """A running call that becomes a task.

    `journal` has the course so far; None for a call that cannot go on elsewhere. `tokens` and `cost` are used so far.
    The `answer` to a `question` by which it becomes a task is set once a request gives it.
    """

    journal: Journal | None
    tokens: int
    cost: float
    question: Question | None = None
    answer: asyncio.Future[Answer] | None = None


class TaskRecorder:
    """The `Recorder` of a task of this process, and its questions with their answers.

    Args:
        database: of the task.
        held: the task.
        ask_seconds: time for an answer.
        claimed: the task, if another process has begun it.

    Attributes:
        held: the task.
        on_lost: called once if another process has taken over the task, or it was cancelled.
        is_lost: the task is not that of this run any more.
        was_cancelled: that is because it was cancelled.
        is_stored: the task is in the database.
        step: what the call does, in a line for its client.
        on_boundary: called once the task is to be left to another process, and no tool of it runs.
    """

    def __init__(self, database: Database, held: Held, ask_seconds: float, claimed: ClaimedTask | None = None) -> None:
        self.held = held
        self.on_lost: Callable[[], object] = lambda: None
        self.on_boundary: Callable[[], object] | None = None
        self.is_lost = self.was_cancelled = False
        self.is_stored = True
        self.step = ""
        self.runs = claimed.runs if claimed is not None else 0
        self.why: str = claimed.why if claimed is not None else ""
        self.rows: Sequence[Row] = claimed.rows if claimed is not None else ()
        self.tokens, self.cost = (claimed.tokens, claimed.cost) if claimed is not None else (0, 0.0)
        self._database = database
        self._ask_seconds = ask_seconds
        self._next = len(self.rows)
        self._spent = {"tokens": self.tokens, "cost": self.cost}
        self._entries: list[_Entry] = []
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._tools: set[tuple[int, str]] = set()
        self._is_over = self._is_off = False
        self._tasks = TaskOwner()
        self._writing: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> TaskRecorder:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write what is noted, unless the task is lost or the database away, and nothing more."""
        if self._entries and self._writing is not None and not self._is_over:
            await asyncio.wait({self._writing}, timeout=LAST_SECONDS)
        self._is_over = True
        await self._tasks.__aexit__()

    async def begin(self, new: NewTask, adopted: Adopted, long_calls: LongCalls) -> AnyRow | None:
        """Store the task of a running call, with its course so far, and perhaps its first question; return its row.

        Raises:
            TooManyTasksError: the caller may have no further task; as the next one.
            DatabaseUnavailableError: it is not stored; steps of the call are not either.
        """
        self.is_stored = False
        course, question = self._course_of(adopted), adopted.question
        self._next = len(course)
        self._tools = {(row.turn, row.tool_call) for row in course if row.kind == "began"}
        self._spent = {"tokens": adopted.tokens, "cost": adopted.cost}
        first = {"status_message": self.step, **self._spent}
        if question is not None:
            first["status"] = "input_required"

        async def written(sql: AsyncConnection) -> AnyRow | None:
            await rows.add(sql, new, long_calls.process)
            await long_calls.keep_alive(sql)
            await rows.append(sql, self.held, 0, course, **first)
            if question is not None:
                await rows.ask(sql, self.held.task_id, question, self._ask_seconds)
            return await rows.find(sql, tasks.c.id == new.id)

        storing = self._tasks.spawn(self._database.write(written), name=f"begin of task {new.id}")
        self._writing = storing
        try:
            row = await completed(storing)
        except GatewayError:
            self._is_off = self._is_over = True
            for entry in self._entries:  # tools that are about to begin, without being recorded
                if not entry.is_stored.done():
                    entry.is_stored.set_result(None)
            raise
        self.is_stored = True
        self._go_on()
        return row

    def _course_of(self, adopted: Adopted) -> Sequence[Row]:
        journal, question = adopted.journal, adopted.question
        if question is not None and adopted.answer is not None:
            self._waiting[question.id] = adopted.answer
        if journal is None:
            return ()
        return [*journal.record_by(self), *(journal.waiting(question) if question is not None else ())]

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

    def leave_by(self, leave: Callable[[], object]) -> None:
        """Call `leave` when no tool runs that has begun: after the present ones, and before others begin."""
        self.on_boundary = leave

    # Questions

    @property
    def open_questions(self) -> Mapping[str, asyncio.Future[Answer]]:
        """The questions that wait for their answers."""
        return self._waiting

    async def ask(self, question: Question, waiting: Sequence[Row], answer: asyncio.Future[Answer]) -> None:
        """Store a question, and the tool calls that wait for it; `answer` is set once a request gives it."""
        self._waiting[question.id] = answer
        self._tools -= {(row.turn, row.tool_call) for row in waiting if row.kind == "waits"}
        entry = _Entry(waiting, question)
        self._add(entry)
        await entry.is_stored

    def forget(self, question_id: str) -> None:
        """Wait no more for the answer to a question."""
        self._waiting.pop(question_id, None)

    async def close(self, question_id: str, answer: Answer) -> None:
        """Note that the call goes on without an answer of its caller to a question: with this one."""
        with suppress(DatabaseUnavailableError, TaskLostError):
            await self._database.write(lambda sql: rows.close_question(sql, self.held, question_id, answer))

    def deliver(self, question_id: str, answer: Answer) -> None:
        """Set the answer to a question, unless it has one."""
        waiting = self._waiting.get(question_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    # Writing

    def _add(self, entry: _Entry, tokens: int | None = None, cost: float = 0.0) -> None:
        if tokens is not None:
            self._spent = {"tokens": tokens, "cost": cost}
        if not self._is_over:
            self._entries.append(entry)
            self._go_on()

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
                    if not entry.is_stored.done():
                        entry.is_stored.set_result(None)

    async def _written(self, batch: Sequence[_Entry], changed: dict[str, Any], sql: AsyncConnection) -> None:
        changed["status_message"] = self.step
        asked = [entry.question for entry in batch if entry.question is not None]
        if asked:
            changed["status"] = "input_required"
        await rows.append(sql, self.held, self._next, [row for entry in batch for row in entry.rows], **changed)
        for question in asked:
            await rows.ask(sql, self.held.task_id, question, self._ask_seconds)

    def lose(self, *, was_cancelled: bool = False) -> None:
        """End the run: the task is not this process's any more."""
        if not self._is_over:
            self._is_over = self.is_lost = True
            self.was_cancelled = was_cancelled
            self._entries = []
            self.on_lost()
