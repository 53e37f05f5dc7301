"""The `ttlMs` of a tool listing is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastmcp import FastMCP
from mcp.client.session import ClientSession

from pallas_gateway.repairs.mcp.listing_ttl import changed
from pallas_gateway.runtime import preparation
from tests.support.attached import attached_to


@pytest.mark.parametrize(("ttl", "kept"), [(5, 5.0), (None, None)])
async def test_a_session_has_the_ttl_of_its_latest_listing(ttl: int | None, kept: float | None) -> None:
    preparation.prepare()
    server = FastMCP("tools", cache_ttl=ttl) if ttl else FastMCP("tools")

    @server.tool
    def one() -> str:
        """Do one."""
        return "done"

    async with attached_to(server) as (aggregator, _):
        session: Any = aggregator._require_connection_manager().running_servers["tools"].client.session  # type: ignore[union-attr]
        assert session.pallas_ttl_seconds == kept


def test_a_later_listing_replaces_the_ttl() -> None:
    session = SimpleNamespace()
    absorb = changed(lambda *_, **__: "absorbed", ClientSession)
    for milliseconds, seconds in ((1500, 1.5), (0, None)):
        assert absorb(session, SimpleNamespace(ttl_ms=milliseconds), complete=True) == "absorbed"
        assert session.pallas_ttl_seconds == seconds
