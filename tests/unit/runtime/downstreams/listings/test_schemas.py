"""Schemas of tools: what the metaschema allows passes, whatever its kind; anything else is told with its place."""

import asyncio
import threading
from typing import Any

import pytest

from pallas_gateway.runtime.downstreams.listings import schemas
from pallas_gateway.runtime.downstreams.listings.schemas import schema_fault
from tests.support.waiting import tick

DRAFT_4 = "http://json-schema.org/draft-04/schema"


def nested(depth: int, schema: dict[str, Any]) -> dict[str, Any]:
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        {
            "type": "object",
            "properties": {"a": {"type": ["string", "null"], "default": None}, "b": True},
            "required": ["a"],
        },
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"enum": [1, "x"]}, {"const": 2}]}}},
        {"type": "object", "x-own": 3, "propertyNames": {"pattern": "^a"}},
        {"$schema": "urn:unknown", "type": "object"},
        {"$schema": DRAFT_4, "minimum": 1, "exclusiveMinimum": True},
        {"type": "object", "description": "x" * schemas._LARGEST, "minimum": "too large to be checked"},
    ],
)
async def test_a_schema_has_no_fault(schema: dict[str, Any] | None) -> None:
    assert await schema_fault("inputSchema", schema) is None


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "strnig"}, "inputSchema.type: 'strnig' is not valid under any of the given schemas"),
        (
            {"properties": {"a": {"items": [1]}}},
            "inputSchema.properties.a.items: [1] is not of type 'object', 'boolean'",
        ),
        ({"required": True}, "inputSchema.required: True is not of type 'array'"),
        ({"required": ["a", "a"]}, "inputSchema.required: ['a', 'a'] has non-unique elements"),
        ({"minimum": 1, "exclusiveMinimum": True}, "inputSchema.exclusiveMinimum: True is not of type 'number'"),
        ({"$schema": ["x"]}, "inputSchema.$schema is not text"),
        (nested(150, {"x-own": 1}), "inputSchema is nested too deeply"),
        (nested(2000, {}), "inputSchema is nested too deeply"),
    ],
)
async def test_a_fault_is_told_with_its_place(schema: dict[str, Any], fault: str) -> None:
    assert await schema_fault("inputSchema", schema) == fault


async def test_equal_schemas_are_checked_once_and_verdicts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(schemas, "_checked", lambda place, _: checked.append(place))
    monkeypatch.setattr(schemas, "_MOST_VERDICTS", 1)
    monkeypatch.setattr(schemas, "_verdicts", {})
    for number in (1, 1, 2, 1):
        await schema_fault(f"{number}", {"x-own": number})
    assert checked == ["1", "2", "1"]


async def test_checks_that_take_long_leave_the_threads_of_the_loop_to_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(schemas, "_checked", lambda *_: "a fault" if may_end.wait(60) else None)
    monkeypatch.setattr(schemas, "_verdicts", {})
    checks = [asyncio.create_task(schema_fault("place", {"x-own": one})) for one in range(40)]
    await tick()
    try:
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(str, "a call") == "a call"
    finally:
        may_end.set()
    assert {*await asyncio.gather(*checks)} == {"a fault"}
