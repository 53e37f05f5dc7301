"""The health gauges while no client asks for health: by rounds of the gateway's own, and by calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.calling import ask, health
from tests.support.downstreams import refusing, stateless_downstream
from tests.support.gateway import Agent, running, write_project
from tests.support.listener import reserved_port
from tests.support.one_user import named_tools, world
from tests.support.scripted_llm import call_tools, say
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gateway import Limits, Running
    from tests.support.scripted_llm import LlmRequest, Turn


def up(served: Running, server: str) -> float | None:
    labels = {"agent": "user", "server": server}
    return served.gateway.metrics.registry.get_sample_value("pallas_downstream_up", labels)


async def test_downstreams_are_checked_without_a_client_that_asks(tmp_path: Path) -> None:
    with reserved_port() as port:
        async with stateless_downstream() as tools:
            project = write_project(
                tmp_path,
                {"user": Agent(servers=["tools", "gone"])},
                servers={
                    "tools": {"transport": "http", "url": tools.url},
                    "gone": {"transport": "http", "url": f"http://127.0.0.1:{port}/mcp"},
                },
                gateway={"health_seconds": 0.05},
            )
            async with running(project) as served:
                await eventually(lambda: (up(served, "tools"), up(served, "gone")) == (1, 0))
                await tools.stop()
                await eventually(lambda: up(served, "tools") == 0)
                await tools.start()
                await eventually(lambda: up(served, "tools") == 1)


def adds(request: LlmRequest) -> Turn:
    return say("Done.") if request.tool_results else call_tools([("tools__add", {"a": 1, "b": 2})])


async def test_a_call_that_finds_a_server_gone_sets_the_gauge_and_one_that_finds_it_back(tmp_path: Path) -> None:
    async with stateless_downstream(start=False) as tools, world(tmp_path, adds, tools=tools.url) as it:
        await ask(it.url)
        await eventually(lambda: up(it.served, "tools") == 0)
        await tools.start()
        await ask(it.url)
        await eventually(lambda: up(it.served, "tools") == 1)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_refuses_every_callers_token_is_not_well(
    status: int, tmp_path: Path, limits: Limits
) -> None:
    limits.gateway.health.fresh_seconds = 0
    async with refusing(status) as server:
        forwards = {"url": server.url, "forward_inbound_auth": True}
        async with world(tmp_path, named_tools, notes=forwards) as it:
            documents = []
            for _ in range(3):
                await ask(it.url, bearer="callers-token")
                documents.append(await health(it.url))

    assert [document["status"] for document in documents] == ["ok", "ok", "degraded"]
    [found] = documents[-1]["downstream"]
    assert found["status"] == "refuses"
    assert found["error"].startswith(f"the last 3 calls: HTTP {status} ")
    assert up(it.served, "notes") == 1


async def test_what_a_server_says_of_one_caller_is_not_shown_to_others(tmp_path: Path, limits: Limits) -> None:
    limits.gateway.health.fresh_seconds = 0
    async with refusing(403, words="ann.bowles may not read the payroll") as server:
        forwards = {"url": server.url, "forward_inbound_auth": True}
        async with world(tmp_path, named_tools, notes=forwards) as it:
            for _ in range(3):
                await ask(it.url, bearer="token-of-ann")
            document = await health(it.url)

    assert document["message"] == "Refuses callers: notes (the last 3 calls: HTTP 403 Forbidden)"
    assert "ann.bowles" not in str(document)
