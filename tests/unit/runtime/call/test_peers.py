"""A peer as fast-agent sees it: a connected server whose tools are called in the process."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, override

import pytest
from fast_agent.config import MCPServerSettings, MCPSettings, Settings
from fast_agent.context import Context
from fast_agent.mcp.mcp_aggregator import MCPAggregator
from fast_agent.mcp_server_registry import ServerRegistry
from mcp_types import CallToolResult, TextContent, Tool

from pallas_gateway.calls.asking.asking import Questions
from pallas_gateway.calls.call import Call, Message
from pallas_gateway.calls.questions import Answer, Mode, Question
from pallas_gateway.doors.mcp.tools import health_tool, message_tool
from pallas_gateway.identity.caller import ANONYMOUS, Caller
from pallas_gateway.limits import RuntimeLimits
from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.call.peers import PeerServers
from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog
from pallas_gateway.runtime.downstreams.listings.catalog import ToolCatalog
from pallas_gateway.runtime.instance import Connections
from pallas_gateway.runtime.protocols import NestedRequest, ParentCall
from pallas_gateway.runtime.scope import CallScope, entered
from pallas_gateway.runtime.settings.hosting import prepare_servers
from pallas_gateway.urls import ALL_AGENTS
from tests.support.memory_runtime import a_spec, unread
from tests.support.waiting import eventually

URL = "http://localhost:24201/mcp"


@dataclass
class OnePeer:
    offered: Sequence[Tool] | None = field(
        default_factory=lambda: [message_tool("send_message", title="Peer", description="Asks."), health_tool()]
    )
    asked: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    answer: str = "found"

    def tools(self, peer: str, caller: Caller) -> Sequence[Tool] | None:
        assert peer in ("research", ALL_AGENTS)
        assert caller is ANONYMOUS
        return self.offered

    async def call(self, peer: str, tool: str, arguments: dict[str, Any], nested: NestedRequest) -> CallToolResult:
        del nested
        self.asked.append((peer, tool, arguments))
        return CallToolResult(content=[TextContent(type="text", text=self.answer)])


def settings_of(**server: Any) -> Settings:
    return Settings(mcp=MCPSettings(servers={"peer": MCPServerSettings(transport="http", url=URL, **server)}))


async def nothing(_: MCPAggregator) -> None:
    """The test connects."""


async def seen_by(peer: OnePeer, *, attached: bool = False, agent: str = "research", **server: Any) -> list[str]:
    """The tools that an agent with this peer has, and what one of them brings."""
    preparation.prepare()
    settings = settings_of(**server)
    downstreams = prepare_servers(settings, {URL: agent})
    servers = PeerServers(replace(a_spec("parent"), peer_calls=peer), downstreams, DownstreamLog("parent"))
    parent = ParentCall(Call("parent", Message("user", "go")), *unread())
    catalog = ToolCatalog("parent", {}, {}, None)
    context = Context(config=settings, server_registry=ServerRegistry(settings))
    with entered(CallScope(connect=nothing)):
        async with MCPAggregator(["peer"], context=context, name="parent") as aggregator:
            await Connections(catalog, DownstreamLog("parent"), RuntimeLimits()).connect(
                aggregator, peers=servers.of_call(parent)
            )
            if attached:
                await aggregator.attach_server(server_name="peer")
            tools = [tool.name for tool in (await aggregator.list_tools()).tools]
            result = await aggregator.call_tool("peer__send_message", {"message": "hi"})
            status = await aggregator.collect_server_status()
            assert "peer" in status
    return [*tools, *(block.text for block in result.content if isinstance(block, TextContent))]


TOOLS = ["peer__send_message", "peer__get_health"]


@pytest.mark.parametrize("forwards", [{}, {"auth": {"forward": "huggingface"}}], ids=["plain", "fast-agent's forward"])
async def test_a_peer_is_there_without_a_connection(forwards: dict[str, Any]) -> None:
    assert await seen_by(peer := OnePeer(), **forwards) == [*TOOLS, "found"]
    assert peer.asked == [("research", "send_message", {"message": "hi"})]


@pytest.mark.parametrize("force", [False, True])
async def test_a_peer_that_is_not_loaded_at_start_can_be_attached(force: bool) -> None:
    assert (await seen_by(OnePeer(), load_on_start=False))[:-1] == []
    assert await seen_by(OnePeer(), load_on_start=force, attached=True) == [*TOOLS, "found"]


async def test_a_peer_that_is_hidden_from_the_caller_has_no_tools() -> None:
    assert (await seen_by(OnePeer(offered=None)))[:-1] == []


async def test_half_a_surrogate_pair_in_a_peers_answer_is_replaced() -> None:
    assert await seen_by(OnePeer(answer="half \ud83d of it")) == [*TOOLS, "half ? of it"]


async def test_a_listing_is_made_once() -> None:
    downstreams = prepare_servers(settings_of(), {URL: "research"})
    spec = replace(a_spec("parent"), peer_calls=(peer := OnePeer()))
    servers = PeerServers(spec, downstreams, DownstreamLog("parent"))
    one = servers.listing(downstreams["peer"], ANONYMOUS)
    assert servers.listing(downstreams["peer"], ANONYMOUS) is one
    peer.offered = [health_tool()]
    other = servers.listing(downstreams["peer"], ANONYMOUS)
    assert other is not None
    assert [tool.namespaced_tool_name for tool in other.tools] == ["peer__get_health"]


class Person:
    client_may_leave = False

    def __init__(self) -> None:
        self.modes: Collection[Mode] = ["form"]
        self.is_asked, self.go = asyncio.Event(), asyncio.Event()

    async def put(self, question: Question) -> Answer:
        del question
        self.is_asked.set()
        await self.go.wait()
        return Answer("accepted", {})


class PeerThatAsks(OnePeer):
    """A peer that asks its caller and answers with the outcome."""

    @override
    async def call(self, peer: str, tool: str, arguments: dict[str, Any], nested: NestedRequest) -> CallToolResult:
        del peer, tool, arguments
        questions = Questions("research", nested.asker)
        answers = await asyncio.gather(*(questions.ask(Question("form", "Who?", schema={})) for _ in range(2)))
        return CallToolResult(content=[TextContent(type="text", text=one.outcome) for one in answers])


async def ignore_progress(progress: float, total: float | None, message: str | None) -> None:
    """Ignore it."""


async def test_the_time_that_a_peer_may_take_does_not_count_while_the_caller_is_asked() -> None:
    peers = prepare_servers(settings_of(), {URL: "research"})
    peers = {"peer": replace(peers["peer"], read_timeout_seconds=0.2)}
    servers = PeerServers(replace(a_spec("parent"), peer_calls=PeerThatAsks()), peers, DownstreamLog("parent"))
    person, loop = Person(), asyncio.get_running_loop()
    parent = ParentCall(Call("parent", Message("user", "go")), *unread(), Questions("parent", person))
    connection = servers.of_call(parent)["peer"]
    calling = asyncio.create_task(connection.call_tool("send_message", {}, progress_callback=ignore_progress))
    began = loop.time()
    await person.is_asked.wait()
    await eventually(lambda: loop.time() > began + 0.3)
    person.go.set()
    assert [block.text for block in (await calling).content if isinstance(block, TextContent)] == ["accepted"] * 2
