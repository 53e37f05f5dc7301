"""How a call gets its downstreams and gives them back: each within its time, however a server hangs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fast_agent.config import MCPServerSettings, MCPSettings, Settings
from fast_agent.context import Context
from fast_agent.mcp.mcp_aggregator import MCPAggregator
from fast_agent.mcp_server_registry import ServerRegistry

from pallas_gateway.limits import RuntimeLimits
from pallas_gateway.repairs.fast_agent import session_ends
from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog
from pallas_gateway.runtime.downstreams.listings.catalog import ToolCatalog
from pallas_gateway.runtime.instance import Connections
from pallas_gateway.runtime.scope import CallScope, entered
from pallas_gateway.runtime.settings.hosting import prepare_servers
from tests.support.changing import changing_downstream
from tests.support.fair_time import FairLoop
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.waiting import Gate

PATIENT = 20.0
"""Seconds that nobody here waits for, and less than an HTTP client would."""


@pytest.fixture(autouse=True)
def prepared() -> None:
    preparation.prepare()


def connections(attach_seconds: float = 0.5) -> Connections:
    """Those of an agent whose downstreams nobody has asked ahead."""
    return Connections(
        ToolCatalog("agent", {}, {}, None), DownstreamLog("agent"), RuntimeLimits(attach_seconds=attach_seconds)
    )


@asynccontextmanager
async def an_aggregator(end_seconds: float = 0.1, **urls: str) -> AsyncIterator[MCPAggregator]:
    """The aggregator of one call, connected to nothing yet, whose connections end within `end_seconds`."""
    servers = {name: MCPServerSettings(transport="http", url=url) for name, url in urls.items()}
    settings = Settings(mcp=MCPSettings(servers=servers))
    prepare_servers(settings, {})
    context = Context(config=settings, server_registry=ServerRegistry(settings))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("END_SECONDS", "END_ALL_SECONDS"):
            patch.setattr(session_ends, name, end_seconds)
        async with MCPAggregator(list(urls), context=context, name="agent") as aggregator:
            yield aggregator


async def nothing(_: MCPAggregator) -> None:
    """Connect to nothing when the block begins: the test says when."""


@pytest.mark.parametrize("hangs_at", ["initialize", "tools/list"])
async def test_server_that_hangs_and_lets_no_session_end_costs_a_bounded_time(
    hangs_at: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = snapshot()
    async with (
        changing_downstream("one", stateless=False, era="initialize") as bad,
        changing_downstream("two") as good,
    ):
        bad.gates.update({hangs_at: Gate(), "DELETE": Gate()})
        with entered(CallScope(connect=nothing)):
            async with asyncio.timeout(PATIENT), an_aggregator(bad=bad.url, good=good.url) as aggregator:
                await connections().connect(aggregator)
                tools = [tool.name for tool in (await aggregator.list_tools()).tools]
    await assert_nothing_left(before)

    assert tools == ["good__two"]
    said = {record.message: vars(record) for record in caplog.records if record.name == "pallas.runtime"}
    cannot_list = "its tools cannot be listed: " if hangs_at == "tools/list" else ""
    assert said.pop("downstream unreachable")["error"] == f"{cannot_list}no answer within 0.5 s"
    assert [fields["server"] for fields in said.values()] == ([] if hangs_at == "initialize" else ["bad"])


async def test_server_that_hangs_does_not_hold_a_call_that_is_cancelled() -> None:
    before = snapshot()
    async with changing_downstream("one", stateless=False, era="initialize") as bad:
        listing = bad.gates["tools/list"] = Gate()
        bad.gates["DELETE"] = Gate()
        with entered(CallScope(connect=nothing)):
            async with asyncio.timeout(PATIENT), an_aggregator(bad=bad.url) as aggregator:
                connecting = asyncio.create_task(connections().connect(aggregator))
                await listing.wait_for_entered()
                connecting.cancel()
                await asyncio.wait({connecting})
    await assert_nothing_left(before)

    assert connecting.cancelled()


async def test_server_that_is_only_slow_has_its_session_ended() -> None:
    async with changing_downstream("one", stateless=False, era="initialize") as slow:
        listing = slow.gates["tools/list"] = Gate()
        with entered(CallScope(connect=nothing)):
            async with asyncio.timeout(PATIENT), an_aggregator(end_seconds=PATIENT, slow=slow.url) as aggregator:
                connecting = asyncio.create_task(connections(PATIENT / 2).connect(aggregator))
                await listing.wait_for_entered()
                loop = asyncio.get_running_loop()
                assert isinstance(loop, FairLoop)
                loop.skip(PATIENT / 2)
                await connecting
                assert [request.method for request in slow.recorder.requests].count("DELETE") == 1
        assert not slow.recorder.sessions


async def test_server_that_lets_no_session_end_does_not_hold_what_a_call_had(caplog: pytest.LogCaptureFixture) -> None:
    before = snapshot()
    async with changing_downstream("one", stateless=False, era="initialize") as bad:
        bad.gates["DELETE"] = Gate()
        with entered(CallScope(connect=nothing)):
            async with asyncio.timeout(PATIENT), an_aggregator(bad=bad.url) as aggregator:
                await connections(PATIENT).connect(aggregator)
                assert len((await aggregator.list_tools()).tools) == 1
    await assert_nothing_left(before)

    assert [record.message for record in caplog.records if record.name == "pallas.runtime"] == [
        "downstream session cut off"
    ]
