"""Parameters of a call, and what became of them."""

from typing import Any

from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.provider_gateways import Served

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


async def result_of(served: Served, **params: Any) -> dict[str, Any]:
    async with raw_client(served.url, protocol_version=MODERN_VERSION) as client:
        return (await client.call_tool("send_message", {"message": "hi", "params": params})).result


def notes_of(result: dict[str, Any]) -> dict[str, Any]:
    assert not result.get("isError"), result
    notes: dict[str, Any] = result["_meta"].get("pallas/params", {})
    return notes
