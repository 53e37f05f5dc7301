"""What is asked of downstreams ahead of calls: when, how often, by whom, and that none of it outlives its agent."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from fast_agent.config import MCPServerSettings, MCPSettings, Settings
from fast_agent.context import Context
from fast_agent.mcp.mcp_aggregator import MCPAggregator
from fast_agent.mcp_server_registry import ServerRegistry
from mcp_types import CallToolResult

from pallas_gateway.calls.asking.asking import declaring
from pallas_gateway.limits import ListingLimits
from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.downstreams.connections.connecting import SharedClients
from pallas_gateway.runtime.downstreams.connections.connection_manager import install
from pallas_gateway.runtime.downstreams.listings.catalog import ToolCatalog
from pallas_gateway.runtime.downstreams.listings.server_listing import ServerListing
from pallas_gateway.runtime.protocols import Downstream
from pallas_gateway.runtime.scope import CallScope, entered
from pallas_gateway.runtime.settings.hosting import prepare_servers
from tests.support.changing import ChangingTool, changing_downstream
from tests.support.fair_time import hastened
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.listener import black_hole
from tests.support.waiting import Gate, eventually, tick

LISTEN = "subscriptions/listen"


@pytest.fixture(autouse=True)
def prepared() -> None:
    preparation.prepare()


def settings_of(url: str) -> Settings:
    """fast-agent's settings with the one downstream `tools`, as the runtime prepares them."""
    return prepared_settings(url)[0]


def prepared_settings(url: str, **keys: Any) -> tuple[Settings, dict[str, Downstream]]:
    servers = {"tools": MCPServerSettings(transport="http", url=url, **keys)}
    settings = Settings(mcp=MCPSettings(servers=servers))
    return settings, prepare_servers(settings, {})


def context_of(settings: Settings) -> Context:
    return Context(config=settings, server_registry=ServerRegistry(settings))


@asynccontextmanager
async def asking(url: str, **limits: Any) -> AsyncIterator[ToolCatalog]:
    """The offers of an agent with the downstream `tools`, not asked yet."""
    settings, downstreams = prepared_settings(url)
    assert settings.mcp is not None
    given = ListingLimits(**limits)
    open_offers = ToolCatalog("agent", settings.mcp.servers, downstreams, context_of(settings), limits=given)
    try:
        yield open_offers
    finally:
        await open_offers.close()


@asynccontextmanager
async def calling(url: str, offer: ServerListing) -> AsyncIterator[Callable[[], Coroutine[Any, Any, CallToolResult]]]:
    """Uses of the tool `one` within one call that knows `offer`."""

    async def give(aggregator: MCPAggregator) -> None:
        install(offer, aggregator, "tools")

    with entered(CallScope(connect=give)):
        async with MCPAggregator(["tools"], context=context_of(settings_of(url)), name="agent") as aggregator:
            yield lambda: aggregator.call_tool("tools__one", {})


def names(offer: ServerListing | None) -> list[str] | None:
    return None if offer is None else [tool.tool.name for tool in offer.tools]


async def known(asked: ToolCatalog, *expected: str) -> ServerListing:
    """The offer, once it holds these tools."""
    await eventually(lambda: names(asked.of("tools")) == list(expected), what=f"{expected} known")
    offer = asked.of("tools")
    assert offer is not None
    return offer


async def nobody_asks(listening: int = 0) -> None:
    """Return once only so many tasks ask or listen."""
    await eventually(lambda: len([1 for one in asyncio.all_tasks() if one.get_name().startswith("ask ")]) == listening)


def connected_to(url: str) -> int:
    """How many connections to the server at `url` its clients hold open (proc_pid_net(5): remote address, state)."""
    port = f":{httpx2.URL(url).port:04X}"
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(port) and row[3] == "01" for row in rows)


@pytest.mark.parametrize("forwards_bearer", [True, False])
async def test_only_servers_that_are_listed_ahead_have_a_client_before_a_call(
    forwards_bearer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[MCPServerSettings] = []
    monkeypatch.setattr(SharedClients, "make", lambda _, settings: made.append(settings))
    settings, downstreams = prepared_settings("http://127.0.0.1:1/mcp")
    assert settings.mcp is not None
    one = replace(downstreams["tools"], forwards_bearer=forwards_bearer)
    await ToolCatalog("agent", settings.mcp.servers, {"tools": one}, context_of(settings)).close()
    assert len(made) == (0 if forwards_bearer else 1)


async def test_tools_for_clients_that_can_be_asked_are_known_to_calls_of_such_callers_alone() -> None:
    async with changing_downstream("plain", era="modern") as server, asking(server.url) as asked:
        server.tools["asks"] = ChangingTool(asks=True)
        asked.ask()
        await known(asked, "plain")
        with entered(CallScope(questions=declaring(["form"]))):
            await known(asked, "plain", "asks")
        assert names(asked.of("tools")) == ["plain"]


async def test_a_reported_change_renews_what_is_known_for_callers_that_can_be_asked() -> None:
    async with changing_downstream("plain", era="modern", tells=True) as server, asking(server.url) as asked:
        asked.ask()
        await known(asked, "plain")
        with entered(CallScope(questions=declaring(["form"]))):
            await known(asked, "plain")
            await nobody_asks(listening=1)  # the inquiry that listens for changes
            await server.change(plain=ChangingTool(), asks=ChangingTool(asks=True))
            await eventually(lambda: names(asked.latest("tools")) == ["plain", "asks"], what="the change")


async def test_what_is_known_is_asked_again_when_it_is_old_while_calls_go_on_with_it() -> None:
    now = 0.0
    async with changing_downstream("old") as server, asking(server.url, clock=lambda: now) as asked:
        asked.ask()
        await known(asked, "old")
        server.tools = {"new": ChangingTool()}
        server.recorder.clear()
        assert names(asked.of("tools")) == ["old"]
        now = asked.limits.fresh_seconds + 1
        assert names(asked.of("tools")) == ["old"]
        await known(asked, "new")
        now += asked.limits.certain_seconds
        assert asked.of("tools") is None


async def test_server_that_tells_of_changes_is_heard_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="pallas.runtime")
    async with changing_downstream("old", "kept", tells=True) as server, asking(server.url) as asked:
        asked.ask()
        await server.recorder.until(lambda seen: LISTEN in seen.rpc_methods)
        await known(asked, "old", "kept")
        await server.change(kept=ChangingTool(), new=ChangingTool())
        await known(asked, "kept", "new")
    said = [(r.added, r.removed) for r in caplog.records if r.getMessage() == "downstream tools changed"]  # type: ignore[attr-defined]
    assert said == [(["new"], ["old"])]


async def test_server_that_tells_is_asked_afresh_after_doubt_and_again_over_another_connection_if_that_fails() -> None:
    async with changing_downstream("one", tells=True) as server, asking(server.url, again_seconds=0) as asked:
        asked.ask()
        await known(asked, "one")
        asked.invalidate("tools")
        assert asked.of("tools") is None
        assert (await known(asked, "one")).discovered is not None
        await server.stop()
        server.era = "initialize"
        await server.start()
        asked.invalidate("tools")
        assert (await known(asked, "one")).discovered is None
        await server.stop()
        server.era = "modern"
        await server.start()
        asked.invalidate("tools")
        assert (await known(asked, "one")).discovered is not None


async def test_answer_from_before_a_calls_trouble_is_not_taken_for_news() -> None:
    async with changing_downstream("one") as server, asking(server.url) as asked:
        gate = server.gates["tools/list"] = Gate()
        asked.ask()
        await gate.wait_for_entered()
        asked.invalidate("tools")
        gate.let_through()
        await eventually(lambda: asked.of("tools") is None and len(gate.entered) == 2, what="another question")
        gate.open()
        await known(asked, "one")


async def test_calls_that_come_while_it_is_asked_do_not_have_it_asked_once_more() -> None:
    async with changing_downstream("one", tells=True) as server, asking(server.url) as asked:
        asked.ask()
        await server.recorder.until(lambda seen: seen.rpc_methods.count("tools/list") == 2)  # on listening, once more
        await server.recorder.until(lambda seen: [r.rpc_method for r in seen.open] == [LISTEN])
        gate = server.gates["tools/list"] = Gate()
        server.recorder.clear()
        asked.limits.fresh_seconds = -1
        asked.of("tools")
        await gate.wait_for_entered()
        for _ in range(10):
            assert names(asked.of("tools")) == ["one"]
        asked.limits.fresh_seconds = 30
        gate.open()
        await server.recorder.until(lambda seen: [r.rpc_method for r in seen.open] == [LISTEN])
        await asyncio.wait_for(asyncio.shield(server.recorder.until(lambda seen: seen.open)), 5)
        assert server.recorder.rpc_methods == ["tools/list"]


async def test_server_that_cannot_be_asked_is_not_asked_again_at_once() -> None:
    async with changing_downstream("one", start=False) as server, asking(server.url) as asked:
        asked.ask()
        await nobody_asks()  # it has failed
        await server.start()
        for _ in range(3):
            assert asked.of("tools") is None
            await nobody_asks()
        assert server.recorder.requests == []
        asked.limits.again_seconds = 0
        await known(asked, "one")


@pytest.mark.parametrize("hangs_at", ["server/discover", "initialize", "tools/list", LISTEN])
async def test_server_that_hangs_does_not_hold_the_agents_end(hangs_at: str) -> None:
    before = snapshot()
    era: Any = "initialize" if hangs_at in {"initialize", "tools/list"} else "both"
    async with changing_downstream("one", tells=True, stateless=False, era=era) as server:
        gate = server.gates[hangs_at] = Gate()
        server.gates["DELETE"] = Gate()
        async with asyncio.timeout(3):
            async with asking(server.url) as asked:
                asked.ask()
                await gate.wait_for_entered()
    await assert_nothing_left(before)


async def test_server_that_hangs_when_asked_again_over_a_kept_connection_does_not_hold_the_agents_end() -> None:
    before = snapshot()
    async with changing_downstream("one", tells=True) as server:
        async with asyncio.timeout(10):
            async with asking(server.url) as asked:
                asked.ask()
                await server.recorder.until(lambda seen: LISTEN in seen.rpc_methods)
                await known(asked, "one")
                gate = server.gates["tools/list"] = Gate()
                await server.change(two=ChangingTool())
                await gate.wait_for_entered()
    await assert_nothing_left(before)


@pytest.mark.parametrize("hangs_at", ["tools/list", "DELETE"])
async def test_asking_takes_a_bounded_time_and_ends_its_session_if_it_can(hangs_at: str) -> None:
    async with changing_downstream("one", stateless=False, era="initialize") as server, asking(server.url) as asked:
        asked.ask()
        await known(asked, "one")
        await server.recorder.until(lambda seen: any(r.method == "DELETE" for r in seen.requests))
        await server.recorder.until(lambda seen: not seen.sessions)
        asked.limits.ask_seconds = 30
        gate = server.gates[hangs_at] = Gate()
        asked.invalidate("tools")
        await gate.wait_for_entered()
        await hastened(nobody_asks())
        assert names(asked.of("tools")) == (["one"] if hangs_at == "DELETE" else None)


async def test_nothing_is_asked_after_the_end() -> None:
    with black_hole() as nowhere:
        async with asking(f"{nowhere}/mcp") as asked:
            before = snapshot()
            asked.ask()
        asked.ask()
        asked.invalidate("tools")
        assert asked.of("tools") is None
        await assert_nothing_left(before)


async def test_sockets_are_closed_when_nobody_has_used_them_for_a_while() -> None:
    async with changing_downstream("one") as server, asking(server.url, keep_alive_seconds=0.05) as asked:
        asked.ask()
        offer = await known(asked, "one")
        assert offer.http_client is not None
        await nobody_asks()
        for _ in range(2):  # the second use is after a sweep that found nothing left
            async with offer.http_client.stream("POST", server.url, json={}) as response:
                await response.aread()
            assert connected_to(server.url) == 1
            await eventually(lambda: connected_to(server.url) == 0, what="the socket closed")


async def test_second_use_of_a_server_that_is_still_being_connected_to_waits_for_the_first() -> None:
    async with changing_downstream("one", stateless=False, era="initialize") as server, asking(server.url) as asked:
        asked.ask()
        offer = await known(asked, "one")
        await nobody_asks()
        server.recorder.clear()
        gate = server.gates["initialize"] = Gate()
        async with calling(server.url, offer) as use, asyncio.TaskGroup() as group:
            uses = [group.create_task(use())]
            await gate.wait_for_entered()
            uses += [group.create_task(use()) for _ in range(3)]
            await tick()
            gate.open()
        assert [use.result().is_error for use in uses] == [False] * 4
        assert server.recorder.rpc_methods.count("initialize") == 1
        assert not server.recorder.sessions


async def test_connecting_takes_a_bounded_time_and_the_next_use_tries_again() -> None:
    async with changing_downstream("one", stateless=False, era="initialize") as server, asking(server.url) as asked:
        asked.ask()
        offer = await known(asked, "one")
        await nobody_asks()
        async with calling(server.url, replace(offer, connect_seconds=0.1)) as use:
            server.gates["initialize"] = Gate()
            assert "no answer within 0.1 s" in str((await use()).content)
            del server.gates["initialize"]
        async with calling(server.url, offer) as use:
            assert not (await use()).is_error
            await server.stop()
        async with calling(server.url, offer) as use:
            assert str((await use()).content).count("it cannot be reached") == 1


async def test_compiled_schemas_are_shared_as_long_as_they_are_those_that_are_known() -> None:
    async with changing_downstream("one") as server, asking(server.url) as asked:
        server.tools["one"] = ChangingTool({"n": 1}, {"type": "object"})
        asked.ask()
        offer = await known(asked, "one")
    first, second, third, fourth = CompilingSession(), CompilingSession(), CompilingSession(), CompilingSession()
    offer.prime(cast("Any", first))
    offer.prime(cast("Any", second))
    second._tool_output_schemas["one"] = {"type": "object", "required": ["t"]}  # it has received another listing
    await second.validate_tool_result("one", None)
    await first.validate_tool_result("one", None)
    offer.prime(cast("Any", third))
    assert third._tool_output_validators == first._tool_output_validators
    third._tool_output_validators.clear()
    offer.prime(cast("Any", fourth))
    assert fourth._tool_output_validators == first._tool_output_validators


class CompilingSession:
    """A session that accepts each result and keeps the compiled schema of its tool."""

    def __init__(self) -> None:
        self._tool_output_schemas: dict[str, Any] = {}
        self._x_mcp_header_maps: dict[str, Any] = {}
        self._tool_output_validators: dict[str, Any] = {}

    async def validate_tool_result(self, name: str, result: object) -> None:
        del result
        compiled = SimpleNamespace(schema=self._tool_output_schemas[name])
        self._tool_output_validators.setdefault(name, compiled)
