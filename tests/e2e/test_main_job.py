"""The main job end to end: real listener, real clients of both eras, a scripted model, real downstreams."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients import EACH_ERA, Connect, text_of
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.scripted_llm import Turn, call_tools, say
from tests.support.watching import stage


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
    async with stage(tmp_path, script, {"adder": Agent(servers=["tools"])}) as staged:
        before = snapshot()
        async with connect(staged.url("adder")) as client:
            answer = await client.call_tool("adder", {"message": "what is 1 + 2?"})
        await until_idle(staged.served)
        await assert_nothing_left(before)

    assert text_of(answer) == "It is 3."
    assert [call.tool for call in staged.tools.recorder.calls("add")] == ["add"]
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"agents.yaml", "fastagent.config.yaml", staged.served.project.package}
