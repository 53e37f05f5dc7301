"""A turn whose call runs in another replica, or has lost its process, followed in the database: questions and end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mcp_types import ImageContent, TextContent

from pallas_gateway.calls.call import Reply, TurnUsage, Usage
from pallas_gateway.errors import CallFailedError
from pallas_gateway.features.threads.http import answers
from pallas_gateway.features.threads.http.live_turn import INPUT_NEEDED, ShownExchange
from pallas_gateway.features.threads.records import ABANDONED, ThreadNotFoundError
from pallas_gateway.features.threads.turns import POLL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Collection

    from pallas_gateway.features.threads.records import ClaimedExchange, ExchangeOutcome, ExchangeRecord
    from pallas_gateway.features.threads.service import Threads
    from pallas_gateway.features.threads.store import Store
    from pallas_gateway.long_responses import ServerSentEvents


class ExchangeLeftError(Exception):
    """Nobody ran the turn, and it waits for no answer: the request has claimed it."""

    def __init__(self, claimed: ClaimedExchange) -> None:
        super().__init__("the turn goes on in this process")
        self.claimed = claimed


class StoredExchange(ShownExchange):
    """A turn in the database; a client that leaves does not end its call. A request of its `owner` goes on with it."""

    def __init__(self, thread_id: str, turn: ExchangeRecord, threads: Threads, owner: str) -> None:
        super().__init__(thread_id, turn.number)
        self._threads = threads
        self._owner = owner

    async def reply(self) -> Reply:
        """Return the reply, or `INPUT_NEEDED` as soon as a question is open."""
        turn = await self._next(())
        return INPUT_NEEDED if turn.asks else _reply_of(turn.outcome)

    async def stream(self, events: ServerSentEvents) -> Reply:
        """Send the open questions and those that are asked from here on; return the reply."""
        await events.data(answers.line({"type": "thread", **self.about()}))
        events.keep_alive()
        shown: Collection[str] = ()
        while (turn := await self._next(shown)).asks:
            for question in turn.asks:
                if question.id not in shown:
                    await events.data(answers.line({"type": "question", **answers.question(question)}))
            shown = set(self.questions)
        return _reply_of(turn.outcome)

    async def _next(self, shown: Collection[str]) -> ExchangeRecord:
        """Return the turn when it has ended, or has an open question that was not shown.

        Raises:
            TurnLeftError: nobody runs it, and all its questions have answers.
        """
        pause, longest = POLL_SECONDS
        while True:
            thread_id, number = str(self.thread_id), self.number or 0
            turn = await turn_in(self._threads.store, thread_id, number)
            self.questions = {one.id: one for one in turn.asks}
            is_left = turn.can_be_resumed or turn.outcome.error_reason == ABANDONED  # for want of its owner's token
            if is_left and not turn.asks:
                claimed = await self._threads.claim(thread_id, number, self._owner)
                if claimed is not None:  # else another process has it
                    raise ExchangeLeftError(claimed)
            if turn.status != "pending" or any(id_ not in shown for id_ in self.questions):
                return turn
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)


async def turn_in(store: Store, thread_id: str, number: int) -> ExchangeRecord:
    """Return a turn of a thread.

    Raises:
        ThreadNotFoundError: the thread has no such turn.
    """
    found = (await store.turns_of(thread_id, limit=1, after=number - 1)).turns
    if not found or found[0].number != number:
        raise ThreadNotFoundError(f"no turn {number} in thread '{thread_id}'")
    return found[0]


def _reply_of(outcome: ExchangeOutcome) -> Reply:
    """Return the stored answer as a reply.

    Raises:
        CallFailedError: the turn has failed.
    """
    if outcome.answer is None:
        raise CallFailedError(outcome.error or "The call has failed.", reason=outcome.error_reason)
    images = [ImageContent(type="image", data=one.data, mime_type=one.mime_type) for one in outcome.answer.images]
    text, usage = TextContent(type="text", text=outcome.answer.text), TurnUsage("", Usage(**outcome.usage))
    return Reply((text, *images), outcome.stop_reason or "", turns=(usage,))
