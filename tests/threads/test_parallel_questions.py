"""Questions that arise at the same time in one turn: each is stored and shown, whatever the database."""

import os
from pathlib import Path
from typing import Any

from tests.support.asking import asking_downstream
from tests.support.asking_gateways import calls_the_tool_it_is_told
from tests.support.gateway import Agent, running, write_project
from tests.support.scripted_llm import scripted_llm
from tests.support.threads_api import ACCEPT, Api, http_of
from tests.support.waiting import eventually

TURNS = 6


async def test_questions_of_tools_that_run_at_once_are_all_stored(database_url: str, tmp_path: Path) -> None:
    async with asking_downstream("modern") as downstream, scripted_llm(calls_the_tool_it_is_told) as llm:
        project = write_project(
            tmp_path / "project",
            {"user": Agent(["asking"])},
            llm_url=llm.base_url,
            servers={"asking": {"url": downstream.url}},
            gateway={"database": "${THREADS_URL}"},
        )
        environ = {**os.environ, "THREADS_URL": database_url}
        async with running(project, environ=environ) as served, http_of(served) as http:
            api = Api(served, downstream, http)
            for _ in range(TURNS):
                thread_id = (await api.chat("name name"))["threadId"]
                questions: list[dict[str, Any]] = []

                async def both_ask(thread_id: str = thread_id, questions: list[dict[str, Any]] = questions) -> bool:
                    questions[:] = (await api.last(thread_id)).get("questions", [])
                    return len(questions) == 2

                await eventually(both_ask, what="both questions")
                answers = {one["id"]: ACCEPT for one in questions}
                final = (await api.answer(thread_id, answers)).raise_for_status().json()
                assert final["content"].count('"Ada"') == 2
            metrics = (await http.get(f"{served.base_url}/metrics")).text
    assert f'pallas_questions_total{{agent="user",kind="form",outcome="accepted"}} {2.0 * TURNS}' in metrics
