"""Messages between two workers by way of their parent: all arrive, and a channel outlives what it carries."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.e2e.fleet import fleet, runs
from tests.support.calling import answer_of
from tests.support.clients import raw_client
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from tests.e2e.fleet import WorkerManager
    from tests.support.clients import RawCall

pytestmark = pytest.mark.asyncio(loop_scope="module")
SESSION = "made-up.f"
ASK = {"name": "send_message", "arguments": {"message": "ask"}}
CALLS = 20
UNFITTING = "[" + ",".join(['""'] * 21_500) + "]"
"""64 KB as it stands here, 86 KB where a space follows each comma. It fits no field, so the caller is asked again."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[WorkerManager]:
    async with fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


async def asking(served: WorkerManager, pid: int, stack: AsyncExitStack) -> tuple[RawCall, str]:
    """A call of the initialize era at one worker that asks its client, and the id of its question."""
    client = await stack.enter_async_context(raw_client(served.url("peer"), protocol_version="2025-11-25"))
    with served.only(pid):
        await client.initialize()
        client.session_id = SESSION
        call = await stack.enter_async_context(client.in_flight("tools/call", ASK))
        return call, await question_on(call)


async def question_on(call: RawCall, number: int = 1) -> str:
    """Return the id of the question of this number on the stream of a call, once it is there."""
    while len(asked := [one for one in call.notifications if one["method"] == "elicitation/create"]) < number:
        await call.wait_for_notifications(len(call.notifications) + 1, 60)
    return str(asked[number - 1]["id"])


async def answer(served: WorkerManager, pid: int, question: str, content: str) -> int:
    """Send an answer, written as it stands here, to one worker; return the status."""
    body = f'{{"jsonrpc":"2.0","id":"{question}","result":{{"action":"accept","content":{{"name":{content}}}}}}}'
    headers = {"mcp-session-id": SESSION, "content-type": "application/json"}
    async with served.client_of(pid, headers=headers) as http:
        return (await http.post(served.url("peer"), content=body)).status_code


@contextmanager
def standing_still(pid: int) -> Generator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_an_answer_that_grows_when_it_is_written_again_reaches_its_call_and_so_do_later_ones(
    served: WorkerManager,
) -> None:
    one, other = sorted(served.pids)
    async with AsyncExitStack() as stack:
        call, question = await asking(served, one, stack)
        assert await answer(served, other, question, UNFITTING) == 202
        assert await answer(served, other, await question_on(call, 2), '"Ada"') == 202
        assert answer_of(await call.reply()).text == '{"name": "Ada"}'
    assert served.records("worker message unreadable") == served.records("worker ended") == []


async def test_no_answer_is_lost_while_messages_between_workers_wait(served: WorkerManager) -> None:
    one, other = sorted(served.pids)
    async with AsyncExitStack() as stack:
        asked = [await asking(served, one, stack) for _ in range(CALLS)]
        with standing_still(served.program.pid):
            statuses = [await answer(served, other, question, f'"{"x" * 60_000}"') for _, question in asked]
        assert statuses == [202] * CALLS
        replies = [await call.reply(60) for call, _ in asked]
    assert {answer_of(reply).text[:20] for reply in replies} == {'{"name": "xxxxxxxxxx'}


async def test_workers_end_when_their_parent_is_gone_whatever_it_sent_before(served: WorkerManager) -> None:
    one, other = workers = sorted(served.pids)
    async with AsyncExitStack() as stack:
        call, question = await asking(served, one, stack)
        assert await answer(served, other, question, UNFITTING) == 202
        await question_on(call, 2)
    served.program.signal(signal.SIGKILL)
    await eventually(lambda: not any(map(runs, workers)), 60, what="the end of both workers")
