"""Prompts and resources are listed when they are used, and not with the tools."""

from contextlib import AbstractAsyncContextManager

import pytest
from fast_agent.mcp.mcp_aggregator import MCPAggregator
from fastmcp import FastMCP

from tests.support.attached import attached_to
from tests.support.downstreams import Downstream

CONNECTED = ["server/discover", "tools/list"]
APP = "ui://board/page"


def server_with_prompts(*, app: bool = False) -> FastMCP:
    """A server with a tool, two prompts and a resource; with `app`, the tool refers to the resource."""
    server = FastMCP("tools")

    @server.tool(meta={"ui": {"resourceUri": APP}} if app else None)
    def one() -> str:
        """Do one."""
        return "done"

    @server.prompt
    def hello(name: str) -> str:
        """Greet."""
        return f"Hello {name}"

    @server.prompt
    def bye() -> str:
        """Leave."""
        return "Bye"

    @server.resource(APP, mime_type="text/html;profile=mcp-app")
    def page() -> str:
        return "<p>page</p>"

    return server


def attached(*, app: bool = False) -> AbstractAsyncContextManager[tuple[MCPAggregator, Downstream]]:
    return attached_to(server_with_prompts(app=app))


async def test_connecting_lists_only_tools() -> None:
    async with attached() as (_, downstream):
        assert downstream.recorder.rpc_methods == CONNECTED


@pytest.mark.parametrize("server", [None, "tools"])
async def test_prompts_are_listed_once_when_code_asks_for_them(server: str | None) -> None:
    async with attached() as (aggregator, downstream):
        for _ in range(2):
            prompts = await aggregator.list_prompts(server)
            assert [one.name for one in prompts["tools"]] == ["hello", "bye"]
        assert downstream.recorder.rpc_methods == [*CONNECTED, "prompts/list"]


@pytest.mark.parametrize(("name", "server"), [("hello", None), ("hello", "tools"), ("tools__hello", None)])
async def test_prompt_is_found_by_its_name(name: str, server: str | None) -> None:
    async with attached() as (aggregator, downstream):
        found = await aggregator.get_prompt(name, {"name": "Ann"}, server)
        assert [getattr(one.content, "text", "") for one in found.messages] == ["Hello Ann"]
        assert downstream.recorder.rpc_methods == [*CONNECTED, "prompts/list", "prompts/get"]


async def test_prompt_that_does_not_exist_is_not_requested_by_name() -> None:
    async with attached() as (aggregator, downstream):
        missing = await aggregator.get_prompt("other", None, "tools")
        assert missing.description == "Prompt 'other' not found on server 'tools'"
        assert downstream.recorder.rpc_methods == [*CONNECTED, "prompts/list"]


async def test_resources_are_listed_if_a_tool_refers_to_one() -> None:
    async with attached(app=True) as (aggregator, downstream):
        assert downstream.recorder.rpc_methods == [*CONNECTED, "resources/list", "resources/read"]
        app = await aggregator.get_app_integration_config("tools")
        assert app is not None
        assert [str(one.uri) for one in app.resources] == [APP]
