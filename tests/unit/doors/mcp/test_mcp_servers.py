"""Agents that call each other in the process: the caller that a peer sees, what reaches it, and how its calls end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import CallToolResult

from pallas_gateway.calls.call import Call, Message, Reply
from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.doors.mcp.mcp_servers import PeerCalls
from pallas_gateway.errors import AgentUnavailableError
from pallas_gateway.identity.caller import Caller
from pallas_gateway.identity.grants import Grants
from pallas_gateway.identity.secret import Secret
from pallas_gateway.identity.static_keys import hash_of
from pallas_gateway.runtime.protocols import NestedRequest, ParentCall
from pallas_gateway.urls import ALL_AGENTS
from tests.support.memory_hosting import Hosting, hosting
from tests.support.memory_runtime import MemoryAgent, RecordingOutlet, say, tell_a_turn, unread
from tests.support.waiting import Gate, cancelled, eventually

KEY = {"name": "ci", "sha256": hash_of("own-key"), "grants": ["run:agents"]}
_of_parent: ContextVar[str] = ContextVar("of_parent", default="nothing")


def ann(*grants: str) -> Caller:
    return Caller("ann", Secret("anns"), Grants.of(grants), authenticated=True, owner="ann")


@asynccontextmanager
async def peers(path: Path, peer: MemoryAgent, **gateway: Any) -> AsyncIterator[tuple[Hosting, PeerCalls]]:
    """A gateway with the agent `peer`, ready."""
    async with hosting(path, {"peer": peer, "other": MemoryAgent()}, {"peer": {}, "other": {}}, **gateway) as host:
        await host.up("peer", "other")
        yield host, host.servers.peers


async def call(
    calls: PeerCalls,
    tool: str = "send_message",
    *,
    peer: str = "peer",
    caller: Caller | None = None,
    options: StreamOptions | None = None,
    outlet: RecordingOutlet | None = None,
    bearer: str | None = None,
) -> CallToolResult:
    """A call of `peer` that a call of `ann`, two calls deep, makes."""
    parent = Call("parent", Message("user", "go"), caller=caller or ann("run:agents"), nesting=2, call_id="above")
    request = NestedRequest(
        ParentCall(parent, *unread(options)), Secret(bearer) if bearer else None, outlet or RecordingOutlet()
    )
    return await calls.call(peer, tool, {"message": "hi"} if "health" not in tool else {}, request)


def text_of(result: CallToolResult) -> str:
    return "".join(getattr(block, "text", "") for block in result.content)


async def test_a_nested_call_has_the_caller_of_its_parent_and_the_token_of_its_own_hop(tmp_path: Path) -> None:
    async with peers(tmp_path, peer := MemoryAgent(), auth={"tokens": [KEY]}) as (_, calls):
        assert text_of(await call(calls, caller=ann("run:agents:parent"), bearer="exchanged")) == "hi"
        await call(calls)
        await call(calls, bearer="own-key")  # a key of this gateway, written into the peer's entry

    assert [(one.caller.name, one.caller.owner, one.caller.authenticated) for one in peer.calls] == [
        ("ann", "ann", True)
    ] * 3
    assert [one.caller.bearer for one in peer.calls] == [Secret("exchanged"), None, None]
    assert {(one.nesting, one.parent_call_id) for one in peer.calls} == {(3, "above")}


@pytest.mark.parametrize("peer_grants", ["inherited", "strict"])
async def test_only_strict_grants_hide_a_peer_from_callers_without_a_grant_for_it(
    peer_grants: str, tmp_path: Path
) -> None:
    auth = {"tokens": [KEY], "peer_grants": peer_grants}
    viewer, stranger = ann("run:agents:parent", "view:agents:peer"), ann("run:agents:parent")
    async with peers(tmp_path, peer := MemoryAgent(), auth=auth) as (_, calls):
        offered = [
            [tool.name for tool in calls.tools(name, one) or ()]
            for name in ("peer", ALL_AGENTS)
            for one in (ann("run:agents"), viewer, stranger)
        ]
        seen = await call(calls, caller=viewer)
        if peer_grants == "strict":
            with pytest.raises(AgentUnavailableError, match="agent 'peer' is not hosted here any more"):
                await call(calls, caller=stranger)

    own, everyone = ["send_message", "peer", "get_health"], ["agent-other", "agent-peer", "get_health"]
    if peer_grants == "inherited":
        assert (offered, seen.is_error, len(peer.calls)) == ([own] * 3 + [everyone] * 3, False, 1)
    else:
        assert offered == [own, own, [], everyone, ["get_health"], ["get_health"]]
        assert (text_of(seen), seen.is_error, peer.calls) == ("You may not call agent 'peer'.", True, [])


async def test_nothing_of_the_parents_context_reaches_the_peer(tmp_path: Path) -> None:
    seen = []

    def answer(_: Call) -> Reply:
        seen.append(_of_parent.get())
        return say("hi")

    async with peers(tmp_path, MemoryAgent(answer)) as (_, calls):
        _of_parent.set("a secret")
        await call(calls)

    assert seen == ["nothing"]


async def test_the_health_of_a_peer_is_a_tool_and_any_other_name_is_refused(tmp_path: Path) -> None:
    async with peers(tmp_path, MemoryAgent()) as (_, calls):
        assert '"status": "ok"' in text_of(await call(calls, "get_health"))
        assert text_of(await call(calls, "agent-peer", peer=ALL_AGENTS)) == "hi"
        for peer in ("peer", ALL_AGENTS):
            with pytest.raises(MCPError, match="Unknown tool 'delete_all'"):
                await call(calls, "delete_all", peer=peer)


@pytest.mark.parametrize("progress", [True, False])
async def test_a_peer_reports_progress_only_if_the_parents_client_wants_it(progress: bool, tmp_path: Path) -> None:
    outlet = RecordingOutlet()
    async with peers(tmp_path, MemoryAgent(tells=tell_a_turn)) as (_, calls):
        await call(calls, options=StreamOptions(progress=progress), outlet=outlet)

    assert [event.message for event in outlet.events] == ["peer step 1 (llm)"] * progress
    assert [payload["text"] for payload in outlet.payloads] == ["hi"]


async def test_a_peer_is_stopped_with_its_parent(tmp_path: Path) -> None:
    gate = Gate()
    async with peers(tmp_path, peer := MemoryAgent(answering=gate)) as (host, calls):
        calling = asyncio.create_task(call(calls))
        await gate.wait_for_entered()
        await cancelled(calling)
        await eventually(lambda: not host.gateway.calls.started, what="no running call")
        await peer.until(lambda one: one.disposed == one.opened)
        assert host.metric("send_message_total", agent="peer", outcome="error") == 1
        assert len(host.gateway.turns_and_nested) == 0


async def test_a_peer_that_cannot_take_calls_says_why(tmp_path: Path) -> None:
    async with peers(tmp_path, peer := MemoryAgent()) as (host, calls):
        host.agent("peer").leave("it is taken away")
        refused = await call(calls)
    assert (text_of(refused), refused.is_error) == (
        "Agent 'peer' cannot take calls: it is taken away; try again in a moment",
        True,
    )
    assert peer.calls == []


async def test_a_call_uses_the_agents_that_are_hosted_when_it_begins(tmp_path: Path) -> None:
    gate = Gate()
    async with peers(tmp_path, MemoryAgent(answering=gate)) as (host, calls):
        running = asyncio.create_task(call(calls))
        await gate.wait_for_entered()
        await host.reload({"other": {}})
        assert calls.tools("peer", ann("run:agents")) is None
        with pytest.raises(AgentUnavailableError, match="not hosted here any more"):
            await call(calls)
        gate.open()
        assert text_of(await running) == "hi"  # an agent that goes answers what came before
        await host.reload({"peer": {"description": "Back."}, "other": {}})
        await host.up("peer")
        tools = calls.tools("peer", ann("run:agents")) or ()
        assert (tools[0].description, text_of(await call(calls))) == ("Back.", "hi")
        assert calls.tools("peer", ann()) is tools  # one listing for all calls
