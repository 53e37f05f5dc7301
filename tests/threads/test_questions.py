"""Questions of turns whose gateway is another process than the one that is answered, with PostgreSQL.

tests/e2e/test_question_table.py has such questions with SQLite.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.asking import asking_downstream
from tests.support.asking_gateways import calls_the_tool_it_is_told
from tests.support.commands import PATIENT_GATEWAY, started
from tests.support.gateway import Agent, running, write_project
from tests.support.leases import let_leases_end
from tests.support.scripted_llm import scripted_llm

ACCEPT = {"action": "accept", "content": {"name": "Ada"}}


async def last(api: httpx.AsyncClient, thread_id: str) -> dict[str, Any]:
    return dict((await api.get(f"/threads/{thread_id}/messages")).json()["messages"][-1])


@pytest.mark.needs("postgresql")
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_questions_of_a_killed_process_are_answered_at_another_before_and_after_the_end_of_its_lease(
    database_url: str, tmp_path: Path
) -> None:
    environ = {"THREADS_URL": database_url, "PALLAS_LOG_STDERR": "1"}
    gateway = {
        "database": "${THREADS_URL}",
        "state_keys": ["k" * 32],
    }
    agents = {"user": Agent(["asking"]), "boss": Agent(["user"], settings={"depends_on": ["user"]})}
    async with asking_downstream("modern") as downstream, scripted_llm(calls_the_tool_it_is_told) as llm:
        servers = {"asking": {"url": downstream.url}}
        project = write_project(tmp_path / "project", agents, llm_url=llm.base_url, servers=servers, gateway=gateway)
        with started(["serve"], project.path, command=PATIENT_GATEWAY, environ=environ) as program:
            async with (
                running(project, environ={**os.environ, **environ}) as served,
                httpx.AsyncClient(base_url=f"{served.base_url}/api/v1", trust_env=False, timeout=60) as here,
            ):
                await asyncio.to_thread(program.wait_for, "Try:")
                there = f"{program.url.replace('localhost', '127.0.0.1')}/api/v1"

                async def asked(agent: str = "user", message: str = "name") -> tuple[str, str]:
                    response = await here.post(f"{there}/agents/{agent}/chat", json={"message": message})
                    document = response.raise_for_status().json()
                    return document["threadId"], document["questions"][0]["id"]

                async def answered(thread: str, question: str) -> httpx.Response:
                    return await here.post(f"/threads/{thread}/answers", json={"answers": {question: ACCEPT}})

                left, later, lost = await asked(), await asked(), await asked("boss", "user: name")
                requests = len(llm.requests)
                program.signal(signal.SIGKILL)
                resumed = await answered(*left)  # the lease of the killed process still holds

                await let_leases_end(database_url)
                waiting = await last(here, later[0])
                resumed_later = await answered(*later)
                turns_of_the_model = len(llm.requests) - requests
                lost_peer = await answered(*lost)
                late = await answered(*lost)
                again = await here.post("/agents/boss/chat", json={"message": "hello", "threadId": lost[0]})
    assert downstream.answers == [{"action": "accept", "content": {"name": "Ada"}}] * 2
    assert resumed.raise_for_status().json()["content"] == resumed_later.raise_for_status().json()["content"]
    assert turns_of_the_model == 2  # those before the questions are not repeated
    assert (waiting["status"], [one["id"] for one in waiting["questions"]]) == ("asking", [later[1]])
    assert (
        "its question could not be completed" in lost_peer.raise_for_status().json()["content"]
    )  # of the agent inside
    assert (late.status_code, late.json()["error"]) == (404, "question_not_open")
    assert again.status_code == 200
