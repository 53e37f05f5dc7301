"""The end of an agent's connections."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fast_agent.mcp.mcp_connection_manager import MCPConnectionManager, ServerConnection

from pallas_gateway.runtime.downstreams.connections.connection_manager import LazyConnectionManager


def test_an_agent_without_connections_ends_them_without_waiting() -> None:
    connections = LazyConnectionManager(cast("Any", None))
    ending = connections.disconnect_all()

    with pytest.raises(StopIteration) as ended:
        ending.send(None)  # outside of an event loop's task, where a timer or a lock would fail

    assert ended.value.value is False


async def test_a_connection_that_is_being_opened_is_waited_for() -> None:
    connections = LazyConnectionManager(cast("Any", None))
    async with connections._lock:
        ending = asyncio.create_task(connections.disconnect_all())
        await asyncio.sleep(0)

        assert not ending.done()

    assert await ending is False


async def test_connections_that_are_replaced_all_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reconnect(self: MCPConnectionManager, server_name: str, **_: Any) -> ServerConnection:
        self.running_servers[server_name] = made = connection()
        return made

    def connection() -> ServerConnection:
        return cast("ServerConnection", SimpleNamespace(is_healthy=lambda: True))

    monkeypatch.setattr(MCPConnectionManager, "reconnect_server", reconnect)
    connections = LazyConnectionManager(cast("Any", None))
    opened = connections.running_servers["notes"] = connection()
    connections.running_servers["files"] = connection()
    replaced = await connections.reconnect_server("notes")
    del connections.running_servers["files"]
    latest = await connections.reconnect_server("notes")

    assert [*connections.running_servers.values()] == [opened, replaced, latest]
