"""Bedrock blocks the event loop."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from pallas_gateway.errors import CallFailedError
from pallas_gateway.limits import LARGEST_ERROR_BYTES
from pallas_gateway.repairs.bedrock._client import _limited
from tests.support.calling import ask
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import BEDROCK
from tests.support.scripted_llm import LlmRequest, Turn, hang, say, stream
from tests.support.waiting import Gate

CALLS = 40
PIECE = b"x" * 65_536


async def test_many_silent_turns_wait_at_once_and_the_next_is_answered(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate, say("later")) if request.last_user_text == "wait" else say("now")

    async with serving(tmp_path, BEDROCK, script) as served, asyncio.TaskGroup() as group:
        waiting = [group.create_task(ask(served.url, "wait")) for _ in range(CALLS)]
        await gate.wait_for_entered(CALLS)
        assert (await ask(served.url, "go")).text == "now"
        gate.open()

    assert {task.result().text for task in waiting} == {"later"}


async def test_calls_that_were_left_leave_no_thread_and_no_socket(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return stream(["Once ", "upon."], gate) if request.last_user_text == "stream" else hang(gate)

    async with serving(tmp_path, BEDROCK, lambda _: say("Done.")) as served:
        await ask(served.url)
        before = snapshot()
        served.llm.script = script
        for count, message in enumerate(("stream", "hang") * 3, start=1):
            async with served.in_flight(message) as call:
                await gate.wait_for_entered(count)
                await call.vanish()
            await served.llm.wait_for_aborted(count)
        await assert_nothing_left(before)
        served.llm.script = lambda _: say("Done.")
        assert (await ask(served.url)).text == "Done."


class Response:
    """As urllib3 has them, as far as it matters."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def endless() -> Iterator[bytes]:
    return itertools.repeat(PIECE)


def test_an_error_without_an_end_is_cut_off() -> None:
    response = Response(400)

    assert sum(map(len, _limited(response, endless))) == LARGEST_ERROR_BYTES
    assert response.is_closed


def test_an_answer_without_an_end_is_refused() -> None:
    response = Response(200)

    with pytest.raises(CallFailedError, match="its provider sent more than"):
        list(_limited(response, endless))
    assert response.is_closed
