"""Questions of a call: which are open, and how the oldest one is closed."""

import asyncio
from collections.abc import Collection

from pallas_gateway.calls.asking.asking import Questions
from pallas_gateway.calls.questions import EXPIRED, MODES, Answer, Mode, Question
from tests.support.waiting import eventually


class _Person:
    """A caller that answers a question only when it is told."""

    client_may_leave = False

    modes: Collection[Mode] = MODES

    def __init__(self) -> None:
        self.answers: dict[str, asyncio.Future[Answer]] = {}

    async def put(self, question: Question) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.answers[question.id] = answer
        return await answer


async def test_the_oldest_question_is_closed_and_the_others_stay_open() -> None:
    person = _Person()
    outer = Questions("boss", person)
    inner = Questions("worker", outer, tool_call_id="call")
    assert inner.oldest is None
    first, second = Question("form", "first"), Question("form", "second")
    asking = [asyncio.create_task(inner.ask(first)), asyncio.create_task(outer.ask(second))]
    await eventually(lambda: len(person.answers) == 2, what="two questions")
    outer.close_oldest()
    assert await asking[0] == EXPIRED
    assert (inner.oldest, asking[1].done()) == (None, False)
    person.answers[second.id].set_result(Answer("declined"))
    assert await asking[1] == Answer("declined")
    assert outer.oldest is None
    outer.close_oldest()  # none is open
