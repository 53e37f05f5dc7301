"""Two gateways on one PostgreSQL, one of them a program of its own: either of them continues any thread."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pallas_gateway.identity.static_keys import hash_of
from tests.support.commands import PATIENT_GATEWAY, Program, started
from tests.support.gateway import Agent, running, write_project
from tests.support.leases import let_leases_end
from tests.support.postgresql import PostgreSql
from tests.support.scripted_llm import LlmRequest, Turn, hang, say, scripted_llm
from tests.support.waiting import Gate, eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("postgresql")]
CALLERS = 50


@dataclass(frozen=True)
class Replicas:
    """The two gateways of one database: `addresses` of the one in this process and of the `program`."""

    program: Program
    http: httpx.AsyncClient
    gate: Gate
    addresses: Sequence[str]
    database: str

    async def chat(self, replica: int, message: str, *, caller: int = 0, **body: Any) -> httpx.Response:
        url = f"{self.addresses[replica]}/agents/solo/chat"
        return await self.http.post(url, json={"message": message, **body}, headers=bearer(caller))

    async def messages(self, replica: int, thread_id: str, *, caller: int = 0) -> httpx.Response:
        url = f"{self.addresses[replica]}/threads/{thread_id}/messages"
        return await self.http.get(url, params={"limit": 200}, headers=bearer(caller))


def bearer(caller: int) -> dict[str, str]:
    return {"Authorization": f"Bearer caller-{caller}"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(server: PostgreSql, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Replicas]:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        told = request.last_user_text
        return hang(gate, say("late")) if told == "wait" else say(f"{len(request.user_texts)}: {told}")

    folder = tmp_path_factory.mktemp("replicas") / "project"
    names = [f"caller-{number}" for number in range(CALLERS)]
    tokens = [{"name": name, "sha256": hash_of(name), "grants": ["run:agents"]} for name in names]
    async with AsyncExitStack() as stack:
        llm = await stack.enter_async_context(scripted_llm(script))
        settings = {
            "database": "${THREADS_URL}",
            "queue_seconds": 60,  # fifty of them wait for one thread
            "auth": {"tokens": tokens},
        }
        project = write_project(
            folder, {"solo": Agent()}, llm_url=llm.base_url, gateway={**settings, "queue_seconds": 60}
        )
        environ = {"THREADS_URL": server.new_database(), "PALLAS_LOG_STDERR": "1"}
        program = stack.enter_context(started(["serve"], folder, command=PATIENT_GATEWAY, environ=environ))
        served = await stack.enter_async_context(running(project, environ={**os.environ, **environ}))
        await asyncio.to_thread(program.wait_for, "Try:")
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=60, limits=NO_LIMITS))
        bases = (served.base_url, program.url.replace("localhost", "127.0.0.1"))
        yield Replicas(program, http, gate, [f"{base}/api/v1" for base in bases], environ["THREADS_URL"])
        gate.open()


NO_LIMITS = httpx.Limits(max_connections=None)


async def test_fifty_clients_of_one_thread_make_turns_without_gaps_each_upon_the_last(replicas: Replicas) -> None:
    thread_id = (await replicas.chat(0, "begin")).raise_for_status().json()["threadId"]
    calls = [replicas.chat(number % 2, f"message {number}", threadId=thread_id) for number in range(CALLERS)]
    answers = [response.raise_for_status().json() for response in await asyncio.gather(*calls)]
    told = (await replicas.messages(0, thread_id)).json()["messages"]

    assert sorted(answer["turnIndex"] for answer in answers) == list(range(2, CALLERS + 2))
    # The model was told of exactly the turns before: as many as the number says.
    assert all(answer["content"].startswith(f"{answer['turnIndex']}: message") for answer in answers)
    assert [one["turnIndex"] for one in told[::2]] == list(range(1, CALLERS + 2))
    by_turn = {answer["turnIndex"]: answer["content"] for answer in answers}
    assert {one["turnIndex"]: one["content"] for one in told[3::2]} == by_turn


async def test_fifty_callers_have_threads_of_their_own_that_nobody_else_reads(replicas: Replicas) -> None:
    async def converse(caller: int) -> str:
        first = (await replicas.chat(caller % 2, f"secret of {caller}", caller=caller)).raise_for_status().json()
        thread_id: str = first["threadId"]
        second = await replicas.chat((caller + 1) % 2, "again", caller=caller, threadId=thread_id)
        assert second.raise_for_status().json()["turnIndex"] == 2
        return thread_id

    threads = await asyncio.gather(*(converse(caller) for caller in range(CALLERS)))
    own = await asyncio.gather(*(replicas.messages(one % 2, threads[one], caller=one) for one in range(CALLERS)))
    others = await asyncio.gather(
        *(replicas.messages(one % 2, threads[one], caller=(one + 1) % CALLERS) for one in range(CALLERS)),
        *(replicas.chat(one % 2, "hi", threadId=threads[one], caller=(one + 1) % CALLERS) for one in range(CALLERS)),
    )
    assert [one.json()["messages"][0]["content"] for one in own] == [f"secret of {one}" for one in range(CALLERS)]
    assert {response.status_code for response in others} == {404}
    assert "secret" not in "".join(response.text for response in others)


async def test_a_thread_whose_gateway_was_killed_goes_on_at_the_other_one(replicas: Replicas) -> None:
    """The last test: one of the gateways is gone after it."""
    thread_id = (await replicas.chat(1, "begin")).raise_for_status().json()["threadId"]
    lost = asyncio.create_task(replicas.chat(1, "wait", threadId=thread_id))
    await replicas.gate.wait_for_entered()
    pending = (await replicas.messages(0, thread_id)).json()["messages"][-1]
    replicas.program.signal(signal.SIGKILL)
    with pytest.raises(httpx.TransportError):
        await lost

    async def ended() -> bool:
        return bool((await replicas.messages(0, thread_id)).json()["messages"][-1]["status"] == "error")

    await let_leases_end(replicas.database)
    await eventually(ended, what="the end of the lease")
    answer = (await replicas.chat(0, "go on", threadId=thread_id)).raise_for_status().json()
    told = (await replicas.messages(0, thread_id)).json()["messages"]
    assert (pending["status"], pending["turnIndex"]) == ("pending", 2)
    assert (answer["turnIndex"], answer["content"]) == (3, "2: go on")  # the turn that failed is not replayed
    assert [(one["status"], (one["error"] or {}).get("reason")) for one in told[1::2]] == [
        ("complete", None),
        ("error", "abandoned"),
        ("complete", None),
    ]
