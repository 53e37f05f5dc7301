"""Checks of results by sessions that have no listing yet."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from mcp_types import CallToolResult, TextContent

from pallas_gateway.runtime.downstreams import result_checks


class _Hanging:
    """A session whose check lists the tools first, of a server that never sends the list."""

    async def validate_tool_result(self, name: str, result: CallToolResult) -> None:
        del name, result
        await asyncio.Event().wait()


async def test_a_list_that_never_comes_leaves_a_result_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_checks, "PAGES_SECONDS", 0.01)
    session = cast("Any", _Hanging())
    result_checks.read_misfits(session)
    result = CallToolResult(content=[TextContent(type="text", text="booked")])
    async with asyncio.timeout(20):
        await session.validate_tool_result("book", result)
    assert result == CallToolResult(content=[TextContent(type="text", text="booked")])
