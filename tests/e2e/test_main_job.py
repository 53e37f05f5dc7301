"""The main job end to end: real listener, real clients of both eras, a scripted model, real downstreams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.clients import EACH_ERA, Connect, text_of
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.scripted_llm import Turn, call_tools, say, scripted_llm

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("connect", EACH_ERA)
async def test_an_agent_answers_clients_of_each_era(connect: Connect, tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served, connect(served.url("echo")) as client:
        tools = await client.list_tools()
        answer = await client.call_tool("send_message", {"message": "hello", "conversation_id": "c-1"})

    assert [tool.name for tool in tools] == ["send_message", "echo", "get_health"]
    assert text_of(answer) == "hello"
    assert answer.meta is not None
    assert answer.meta["pallas/call"]["conversation_id"] == "c-1"


@pytest.mark.usefixtures("brief_sockets")
@pytest.mark.parametrize("connect", EACH_ERA)
async def test_an_agent_uses_its_downstream_and_leaves_nothing_behind(connect: Connect, tmp_path: Path) -> None:
    script: list[Turn] = [call_tools([("tools__add", {"a": 1, "b": 2})]), say("It is 3.")]
    async with scripted_llm(script) as llm, stateless_downstream() as tools:
        servers = {"tools": {"transport": "http", "url": tools.url}}
        project = write_project(tmp_path, {"adder": Agent(servers=["tools"])}, llm_url=llm.base_url, servers=servers)
        async with running(project) as served:
            before = snapshot()
            async with connect(served.url("adder")) as client:
                answer = await client.call_tool("adder", {"message": "what is 1 + 2?"})
            await until_idle(served)
            await assert_nothing_left(before)

        assert text_of(answer) == "It is 3."
        assert [call.tool for call in tools.recorder.calls("add")] == ["add"]
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            ["agents.yaml", "fastagent.config.yaml", project.package]
        )
