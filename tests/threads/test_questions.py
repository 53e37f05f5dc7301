"""Questions of turns whose gateway is another process than the one that is answered, on a database of either kind."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import httpx

from tests.cli.program import started
from tests.e2e.test_questions import calls_the_tool_it_is_told
from tests.support.asking import asking_downstream
from tests.support.gateway import Agent, running, write_project
from tests.support.scripted_llm import scripted_llm
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

ACCEPT = {"action": "accept", "content": {"name": "Ada"}}
LEASE_SECONDS = 2


async def test_a_question_is_answered_at_another_process_and_lost_with_its_own(
    database_url: str, tmp_path: Path
) -> None:
    environ = {"THREADS_URL": database_url, "PALLAS_LOG_STDERR": "1"}
    async with asking_downstream("modern") as downstream, scripted_llm(calls_the_tool_it_is_told) as llm:
        project = write_project(
            tmp_path / "project",
            {"user": Agent(["asking"])},
            llm_url=llm.base_url,
            servers={"asking": {"url": downstream.url}},
            gateway={"threads": "${THREADS_URL}", "threads_lease_seconds": LEASE_SECONDS},
        )
        with started(["serve"], project.path, environ=environ) as program:
            async with (
                running(project, environ={**os.environ, **environ}) as served,
                httpx.AsyncClient(base_url=f"{served.base_url}/api/v1", trust_env=False, timeout=60) as here,
                httpx.AsyncClient(trust_env=False, timeout=60) as http,
            ):
                await asyncio.to_thread(program.wait_for, "Try:")
                there = f"{program.url.replace('localhost', '127.0.0.1')}/api/v1"

                async def asked() -> tuple[str, str]:
                    response = await http.post(f"{there}/agents/user/chat", json={"message": "name"})
                    document = response.raise_for_status().json()
                    return document["threadId"], document["questions"][0]["id"]

                async def last(thread_id: str) -> dict[str, Any]:
                    return dict((await here.get(f"/threads/{thread_id}/messages")).json()["messages"][-1])

                thread_id, question = await asked()
                reread = (await here.post(f"/threads/{thread_id}/answers", json={"answers": {}})).json()
                misfit = {"answers": {question: {"action": "accept"}}}
                refused = await here.post(f"/threads/{thread_id}/answers", json=misfit)
                body = {"answers": {question: ACCEPT}}
                answered = (await here.post(f"/threads/{thread_id}/answers", json=body)).raise_for_status().json()
                stored = await last(thread_id)

                streamed, other = await asked()
                body = {"answers": {other: ACCEPT}}
                stream = await here.post(
                    f"/threads/{streamed}/answers", json=body, headers={"Accept": "text/event-stream"}
                )

                lost, open_question = await asked()
                program.signal(signal.SIGKILL)

                async def ended() -> dict[str, Any] | None:
                    answer = await last(lost)
                    return answer if answer["status"] == "error" else None

                abandoned = await eventually(ended, what="the end of the lease")
                late = await here.post(f"/threads/{lost}/answers", json={"answers": {open_question: ACCEPT}})
                followed = await here.post(f"/threads/{lost}/answers", json={"answers": {}})
                again = await here.post("/agents/user/chat", json={"message": "hello", "threadId": lost})
    assert [one["id"] for one in reread["questions"]] == [question]
    assert (refused.status_code, refused.json()["error"]) == (422, "bad_answer")
    assert downstream.answers == [{"action": "accept", "content": {"name": "Ada"}}] * 2
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
