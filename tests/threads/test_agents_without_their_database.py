"""Agents of the database while it is away: at the start, and while they run."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.calling import ask
from tests.support.gateway import Running, limited, running
from tests.support.postgresql import postgresql
from tests.support.scripted_llm import say, scripted_llm
from tests.support.stored_agents import ME, applied, definition, definitions_of, project_of, ready
from tests.support.stored_threads import agents_feature_of
from tests.support.waiting import eventually

READY = {"status": "ready", "agents": 2, "not_up": {}}
AWAY = {"database": {"agents": "away"}}


async def readiness(served: Running, query: str = "") -> tuple[int, dict[str, Any]]:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{served.base_url}/readyz{query}")
    return answer.status_code, answer.json()


@pytest.mark.needs("postgresql")
async def test_agents_run_on_without_their_database_and_change_when_it_is_back(tmp_path: Path) -> None:
    async with scripted_llm(lambda request: say(str(request.messages[0]["content"]))) as llm:
        with postgresql() as server, limited() as limits:
            limits.gateway.database.try_again_seconds = 0.1
            project = project_of(tmp_path, llm.base_url, database=server.new_database())
            async with running(project) as served:
                made = definitions_of(served)
                await made.create("helper", definition("one"), ME)
                await applied(served)
                await ready(served, "helper")
                assert await readiness(served, "?strict=1") == (200, READY)

                server.stop()
                watch = agents_feature_of(served.gateway).watch
                await eventually(lambda: watch.is_away, what="the outage is noticed")
                assert "You say one." in (await ask(served.url("helper"), "hello")).text
                assert await readiness(served) == (200, READY | AWAY)
                assert await readiness(served, "?strict=1") == (503, READY | AWAY | {"status": "not ready"})
                assert "agents of the database: away" in served.gateway.summary
                assert not await served.gateway.until_applied("helper", 30)
                await served.reload()  # keeps them
                assert "You say one." in (await ask(served.url("helper"), "hello")).text

                server.start()
                await eventually(lambda: not watch.is_away, what="the database is back")
                assert await readiness(served, "?strict=1") == (200, READY)
                await made.replace("helper", definition("two"), ME, expected=1)
                await applied(served)
                assert "You say two." in (await ask(served.url("helper"), "hello")).text


@pytest.mark.needs("postgresql")
async def test_a_start_without_the_database_hosts_its_agents_when_it_is_there(tmp_path: Path) -> None:
    async with scripted_llm(lambda request: say(str(request.messages[0]["content"]))) as llm:
        with postgresql() as server, limited() as limits:
            project = project_of(tmp_path, llm.base_url, database=server.new_database())
            async with running(project) as served:
                await definitions_of(served).create("helper", definition("one"), ME)
            server.stop()
            limits.gateway.database.first_try_seconds = limits.gateway.database.try_again_seconds = 0.1
            async with running(project) as served:
                assert list(served.gateway.agents) == ["filed"]
                assert await readiness(served) == (200, READY | AWAY | {"agents": 1})
                assert not (await ask(served.url("filed"), "hello")).is_error
                server.start()
                await ready(served, "helper")
                assert "You say one." in (await ask(served.url("helper"), "hello")).text
                assert await readiness(served, "?strict=1") == (200, READY)
