"""Requests that reach another worker than their call: where they are answered, and what a client may write in them."""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.e2e.fleet import ADA, WorkerManager, call_by, fleet, runs
from tests.support.askable_callers import INVALID_PARAMS
from tests.support.calling import answer_of
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.clients import RawCall, raw_client
from tests.support.threads_api import stream_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def asked(http: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """What the repeated request of a call adds."""
    result = (await call_by(http, url))["result"]
    return {"requestState": result["requestState"], "inputResponses": dict.fromkeys(result["inputRequests"], ADA)}


async def test_a_turn_whose_worker_is_killed_ends_the_stream_of_another_worker_with_an_error(tmp_path: Path) -> None:
    async with fleet(tmp_path, database="sqlite:///threads.db") as served, AsyncExitStack() as stack:
        api, pids = f"{served.base_url}/api/v1", sorted(served.pids)
        clients = [await stack.enter_async_context(served.client_of(pid, api)) for pid in pids]
        async with stream_of(clients[0], "/agents/peer/chat", {"message": "hang on", "background": True}) as first:
            thread_id = (await first.event("thread"))["threadId"]
        async with stream_of(clients[1], f"/threads/{thread_id}/answers", {"answers": {}}) as second:
            await second.event("thread")
            os.kill(pids[0], signal.SIGKILL)
            assert (await second.event("error"))["reason"] == "abandoned"


async def test_a_name_that_a_client_forges_continues_no_call_and_the_state_stays_good(tmp_path: Path) -> None:
    async with fleet(tmp_path) as served, AsyncExitStack() as stack:
        url = served.url("peer")
        one, other = [await stack.enter_async_context(served.client_of(pid)) for pid in served.pids]
        again, foreign = await asked(one, url), await asked(other, url)
        name, _, sealed = again["requestState"].partition(".")
        another = foreign["requestState"].partition(".")[0]
        assert name != another
        for forged in (another, "0" * 8, "", "../../etc", name.upper() + "x"):
            state = {**again, "requestState": f"{forged}.{sealed}"}
            assert (await call_by(other, url, **state))["error"]["code"] == INVALID_PARAMS
        for changed in (f"{another}.{sealed}", sealed):
            assert (await call_by(one, url, **{**again, "requestState": changed}))["error"]["code"] == INVALID_PARAMS
        results = [await call_by(http, url, **again) for http in (other, one)]
    assert results[0]["result"]["content"][0]["text"] == '{"name": "Ada"}'
    assert results[1]["error"]["code"] == INVALID_PARAMS


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_a_repeated_request_reaches_its_call_per_port_and_with_tls(tls: bool, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    trusting = write_certificate(tmp_path / "project") if tls else None
    settings: dict[str, Any] = {"tls": TLS_FILES} if tls else {}
    async with (
        fleet(tmp_path, "--per-port", **settings) as served,
        AsyncExitStack() as stack,
    ):
        base = f"{'https' if tls else 'http'}://127.0.0.1:{served.ports['peer']}"
        clients = [
            await stack.enter_async_context(served.client_of(pid, base, trusting or True)) for pid in served.pids
        ]
        again = await asked(clients[0], "/mcp")
        result = (await call_by(clients[1], "/mcp", **again))["result"]
    assert result["content"][0]["text"] == '{"name": "Ada"}'


async def test_sockets_are_of_the_gateways_user_alone_and_that_of_a_killed_worker_is_removed(tmp_path: Path) -> None:
    async with fleet(tmp_path) as served:
        folder = shared_folder(served)
        before = set(folder.glob("*.sock"))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(before) == 2
        os.kill(min(served.pids), signal.SIGKILL)
        await eventually(lambda: len(set(folder.glob("*.sock")) - before) == 1, 100, what="another socket")
        assert len(set(folder.glob("*.sock")) & before) == 1
    assert not folder.exists()


def shared_folder(served: WorkerManager) -> Path:
    [pid, *_] = served.pids
    return Path(re.findall(r"(/\S*pallas-workers-\w+)/", Path(f"/proc/{pid}/maps").read_text())[0])


# --- messages by way of the parent ------------------------------------------------------------------------------------

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
