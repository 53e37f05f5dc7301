"""The open questions of this process's turns, and the answers to them.

An answer is written to the database, which decides between two requests that answer the same question. Requests at this
process deliver it at once; those of other processes are found in the database.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from pallas_gateway.tasks import TaskOwner
from pallas_gateway.threads.records import ThreadsUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.threads.question_store import QuestionKey, QuestionStore, Waits
    from pallas_gateway.threads.records import Lease


class OpenQuestions:
    """Waits for answers; looks into the database only while a question is open."""

    def __init__(self, store: QuestionStore, look_seconds: float) -> None:
        self._store = store
        self._look_seconds = look_seconds
        self._waiting: dict[QuestionKey, asyncio.Future[Answer]] = {}
        self._tasks = TaskOwner(close_seconds=0)
        self._looking: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop looking."""
        await self._tasks.cancel_all()

    async def open(
        self, lease: Lease, question: Question, answer: asyncio.Future[Answer], waits: Waits | None = None
    ) -> None:
        """Keep a question of the turn of a lease, and where its call waits; the answer is set when a client gives it.

        Raises:
            ThreadsUnavailableError: the database cannot be used.
        """
        await self._store.open(lease, question, waits)
        self._waiting[lease.thread_id, question.id] = answer
        if self._looking is None or self._looking.done():
            self._looking = self._tasks.spawn(self._look(), name="answers to questions", report=True)

    async def close_one(self, lease: Lease, question_id: str, waits: Waits | None = None) -> None:
        """Forget a question, and keep where the call waits for the others.

        If that fails, the question is forgotten with its turn.
        """
        self._waiting.pop((lease.thread_id, question_id), None)
        with suppress(ThreadsUnavailableError):
            await self._store.close(lease, question_id, waits)

    async def give(self, thread_id: str, answers: Mapping[str, Answer]) -> None:
        """Write answers to open questions of a thread, all or none, and deliver them to a turn of this process.

        Raises:
            QuestionNotOpenError: one of the questions is not open.
            ThreadsUnavailableError: the database cannot be used.
        """
        is_taken = any((thread_id, id_) in self._waiting for id_ in answers)
        await self._store.give(thread_id, answers, is_taken=is_taken)
        self._deliver({(thread_id, id_): answer for id_, answer in answers.items()})

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._look_seconds)
            with suppress(ThreadsUnavailableError):
                given = await self._store.given({thread_id for thread_id, _ in self._waiting})
                new = {key: answer for key, answer in given.items() if self._waits_for(key)}
                if new:  # first of all, so that no tool runs again in another process
                    await self._store.take({thread_id for thread_id, _ in new})
                    self._deliver(new)

    def _deliver(self, answers: Mapping[QuestionKey, Answer]) -> None:
        for key, answer in answers.items():
            if self._waits_for(key):
                self._waiting[key].set_result(answer)

    def _waits_for(self, key: QuestionKey) -> bool:
        return key in self._waiting and not self._waiting[key].done()
