"""The end of an agent's connections."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

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
