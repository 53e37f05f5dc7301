"""Questions of turns whose gateway is another process than the one that is answered, with PostgreSQL.

tests/e2e/test_question_table.py has such questions with SQLite.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.askable_callers import asked_at
from tests.support.asking import asking_downstream
from tests.support.asking_gateways import calls_the_tool_it_is_told
from tests.support.calling import answer_of
from tests.support.commands import PATIENT_GATEWAY, started
from tests.support.gateway import Agent, running, write_project
from tests.support.leases import let_leases_end
from tests.support.scripted_llm import scripted_llm
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

ACCEPT = {"action": "accept", "content": {"name": "Ada"}}


async def last(api: httpx.AsyncClient, thread_id: str) -> dict[str, Any]:
    """The newest answer of a thread."""
    return dict((await api.get(f"/threads/{thread_id}/messages")).json()["messages"][-1])


async def accepted(api: httpx.AsyncClient, thread_id: str, question: str) -> dict[str, Any]:
    """Answer a question of a thread; return the answer of the agent."""
    response = await api.post(f"/threads/{thread_id}/answers", json={"answers": {question: ACCEPT}})
    return dict(response.raise_for_status().json())


@pytest.mark.needs("postgresql")
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_question_is_answered_at_another_process_also_when_its_own_was_killed(
    database_url: str, tmp_path: Path
) -> None:
    environ = {"THREADS_URL": database_url, "PALLAS_LOG_STDERR": "1"}
    async with asking_downstream("modern") as downstream, scripted_llm(calls_the_tool_it_is_told) as llm:
        project = write_project(
            tmp_path / "project",
            {"user": Agent(["asking"]), "boss": Agent(["user"], settings={"depends_on": ["user"]})},
            llm_url=llm.base_url,
            servers={"asking": {"url": downstream.url}},
            gateway={
                "database": "${THREADS_URL}",
                "state_keys": ["k" * 32],
            },
        )
        with started(["serve"], project.path, command=PATIENT_GATEWAY, environ=environ) as program:
            async with (
                running(project, environ={**os.environ, **environ}) as served,
                httpx.AsyncClient(base_url=f"{served.base_url}/api/v1", trust_env=False, timeout=60) as here,
                httpx.AsyncClient(trust_env=False, timeout=60) as http,
            ):
                await asyncio.to_thread(program.wait_for, "Try:")
                there = f"{program.url.replace('localhost', '127.0.0.1')}/api/v1"

                async def asked(agent: str = "user", message: str = "name") -> tuple[str, str]:
                    response = await http.post(f"{there}/agents/{agent}/chat", json={"message": message})
                    document = response.raise_for_status().json()
                    return document["threadId"], document["questions"][0]["id"]

                thread_id, question = await asked()
                reread = (await here.post(f"/threads/{thread_id}/answers", json={"answers": {}})).json()
                refused = await here.post(
                    f"/threads/{thread_id}/answers", json={"answers": {question: {"action": "accept"}}}
                )
                answered = await accepted(here, thread_id, question)
                stored = await last(here, thread_id)

                streamed, other = await asked()
                stream = await here.post(
                    f"/threads/{streamed}/answers",
                    json={"answers": {other: ACCEPT}},
                    headers={"Accept": "text/event-stream"},
                )

                left, later = [await asked(), await asked()]
                lost, open_question = await asked("boss", "user: name")
                by_mcp = await asked_at(f"{there.removesuffix('/api/v1')}/agents/user/mcp")
                requests = len(llm.requests)
                program.signal(signal.SIGKILL)

                resumed = await accepted(here, *left)  # the lease of the killed process still holds
                by_mcp_resumed = answer_of(await by_mcp.repeat(url=served.url("user")))

                async def ended() -> dict[str, Any] | None:
                    answer = await last(here, lost)
                    return answer if answer["status"] == "error" else None

                await let_leases_end(database_url)
                abandoned = await eventually(ended, what="the end of the lease")
                waiting = await last(here, later[0])
                resumed_later = await accepted(here, *later)
                turns_of_the_model = len(llm.requests) - requests
                late = await here.post(f"/threads/{lost}/answers", json={"answers": {open_question: ACCEPT}})
                followed = await here.post(f"/threads/{lost}/answers", json={"answers": {}})
                again = await here.post("/agents/boss/chat", json={"message": "hello", "threadId": lost})
    assert [one["id"] for one in reread["questions"]] == [question]
    assert (refused.status_code, refused.json()["error"]) == (422, "bad_answer")
    assert downstream.answers == [{"action": "accept", "content": {"name": "Ada"}}] * 5
    assert resumed["content"] == resumed_later["content"] == answered["content"] == by_mcp_resumed.text
    assert turns_of_the_model == 3  # those before the questions are not repeated
    assert (waiting["status"], [one["id"] for one in waiting["questions"]]) == ("asking", [later[1]])
    assert (answered["stopReason"], answered["content"], answered["usage"]) == (
        *("endTurn", stored["content"], stored["usage"]),
    )
    assert '"type":"thread"' in stream.text
    assert '"type":"final"' in stream.text
    assert abandoned["error"]["reason"] == "abandoned"
    assert "send the message again" in abandoned["error"]["message"]
    assert (late.status_code, late.json()["error"]) == (404, "question_not_open")
    assert (followed.status_code, followed.json()["error"]) == (502, "abandoned")
    assert again.status_code == 200
