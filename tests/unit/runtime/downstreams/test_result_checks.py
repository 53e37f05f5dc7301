"""Checks of results by sessions that have no listing yet."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest
from mcp_types import CallToolResult, TextContent

from pallas_gateway.runtime.downstreams import result_checks


class _Hanging:
    """A session of a server that never sends its list of tools."""

    _tool_output_schemas: Mapping[str, Any] = {}

    async def list_tools(self) -> None:
        await asyncio.Event().wait()

    async def validate_tool_result(self, name: str, result: CallToolResult) -> None:
        raise AssertionError(name, result)


async def test_a_list_that_never_comes_leaves_a_result_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_checks, "PAGES_SECONDS", 0.01)
    session = cast("Any", _Hanging())
    result_checks.read_misfits(session)
    result = CallToolResult(content=[TextContent(type="text", text="booked")])
    async with asyncio.timeout(20):
        await session.validate_tool_result("book", result)
    assert result == CallToolResult(content=[TextContent(type="text", text="booked")])


REFERENCES = {f"s{number}": {"allOf": [{"$ref": f"#/$defs/s{number + 1}"}] * 2} for number in range(9)}


@pytest.mark.parametrize(
    ("schema", "structured", "is_cheap"),
    [
        ({"type": "object", "properties": {"seat": {"type": "integer"}}}, {"seat": 5}, True),
        ({"type": "object", "properties": {"seat": {"$ref": "#/$defs/seat"}}}, {"seat": 5}, True),
        ({"type": "object", "properties": {"seat": {"pattern": "^(a+)+$"}}}, {"seat": "a"}, False),
        ({"type": "object", "patternProperties": {"^(a+)+$": {}}}, {"a": 1}, False),
        ({"type": "array", "uniqueItems": True}, [1], False),
        ({"type": "object", "$defs": REFERENCES}, {"a": 1}, False),
        ({"type": "object"}, {"a": "x" * (64 * 1024)}, False),
    ],
    ids=["plain", "a reference", "a pattern", "names by a pattern", "distinct items", "references", "a large result"],
)
def test_only_results_whose_check_ends_soon_are_checked(schema: object, structured: object, *, is_cheap: bool) -> None:
    assert result_checks.is_cheap(schema, structured) is is_cheap
