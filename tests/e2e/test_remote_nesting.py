"""The depth of a call goes along to other gateways, and what clients state only makes their calls shorter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.calling import EACH_VERSION, answer_of
from tests.support.clients import raw_client
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.listener import reserved_port
from tests.support.pairs import pairs
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say, scripted_llm
from tests.support.slow_proxy import slow_proxy

if TYPE_CHECKING:
    from pathlib import Path

META = "pallas/nesting"
DOORS = [("/agents/echo/mcp", "send_message"), ("/mcp", "agent-echo")]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_circle_over_other_gateways_ends_at_the_limit(mode: str, tmp_path: Path) -> None:
    def ask_again(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say(" | ".join(request.tool_results.values()))
        return call_tools([("other__send_message", {"message": "you do it"})])

    # By way of the proxy, the gateway is another one to itself.
    with reserved_port() as port:
        async with slow_proxy(port) as url, scripted_llm(ask_again) as llm:
            server = {"transport": "http", "url": f"{url}/agents/echo/mcp", "protocol_mode": mode}
            project = write_project(
                tmp_path,
                {"echo": Agent(servers=["other"])},
                llm_url=llm.base_url,
                servers={"other": server},
                gateway={"port": port, "max_nesting": 3},
            )
            async with running(project) as served:
                async with raw_client(served.url("echo")) as client:
                    answer = answer_of(await client.call_tool("send_message", {"message": "go"}))
                await until_idle(served)

    assert "was called 4 calls deep; the limit is 3" in answer.text
    assert len(llm.requests) == 2 * 4


@pairs({"stated, sent": [(4, 5), (None, 1), (-7, 1)], "era": ["initialize", "modern"]})
async def test_downstreams_of_either_era_read_the_depth(
    era: Any, stated: int | None, sent: int, tmp_path: Path
) -> None:
    def script(request: LlmRequest) -> Turn:
        return say("done") if request.tool_results else call_tools([("tools__add", {"a": 1, "b": 2})])

    async with stateless_downstream(era=era) as tools, scripted_llm(script) as llm:
        servers = {"tools": {"transport": "http", "url": tools.url}}
        project = write_project(tmp_path, {"echo": Agent(servers=["tools"])}, llm_url=llm.base_url, servers=servers)
        async with running(project) as served, raw_client(served.url("echo")) as client:
            meta = {} if stated is None else {META: stated}
            await client.call_tool("send_message", {"message": "add"}, meta=meta)

    [call] = tools.recorder.calls("add")
    assert call.rpc["params"]["_meta"][META] == sent


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_stated_depth_counts_only_towards_the_limit(version: str, tmp_path: Path) -> None:
    refused: list[Any] = [9, 9.0, 10**30]
    ignored: list[Any] = [0, 8, -1, -(10**30), True, "9", None, [9], {"a": 9}, 8.5]
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={"max_in_flight": 1})) as served:
        for path, tool in DOORS:
            async with raw_client(f"{served.base_url}{path}", protocol_version=version) as client:
                for stated in refused:
                    answer = answer_of(await client.call_tool(tool, {"message": "hi"}, meta={META: stated}))
                    assert (answer.is_error, answer.meta["stop_reason"]) == (True, "nesting_too_deep"), stated
                for stated in ignored:
                    answer = answer_of(await client.call_tool(tool, {"message": "hi"}, meta={META: stated}))
                    assert (answer.text, answer.is_error) == ("hi", False), stated
