"""The envelope of an MCP request is parsed at most once; what may be a call counts as one."""

import json
from typing import Any, override

import pydantic_core
import pytest
from starlette.requests import Request

from pallas_gateway.doors.mcp.envelope import McpRequest
from tests.support.clients import MODERN_VERSION

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "send_message", "arguments": {}}}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}


def a_request(content: Any, version: str = "2025-11-25") -> McpRequest:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return McpRequest(Request({"type": "http", "headers": [(b"mcp-protocol-version", version.encode())]}), body)


@pytest.mark.parametrize("version", ["2025-11-25", MODERN_VERSION])
def test_the_envelope_is_parsed_once_however_often_it_is_asked(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def parse(body: bytes) -> Any:
        parsed.append(body)
        return json.loads(body)

    monkeypatch.setattr(pydantic_core, "from_json", parse)
    request = a_request(CALL, version)
    assert (request.initializes, request.calls_agent, request.tool) == (False, True, "send_message")
    assert request.call is not None
    assert (request.call.id, request.call.method) == (1, "tools/call")
    assert parsed == [request.body]


def test_a_request_that_is_neither_call_nor_initialize_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pydantic_core, "from_json")
    request = a_request({**CALL, "method": "tools/list"})
    assert (request.call, request.initializes) == (None, False)


def test_a_long_body_is_parsed_and_not_searched_for_its_method() -> None:
    class Searched(bytes):
        searches = 0

        @override
        def __contains__(self, part: Any) -> bool:
            self.searches += 1
            return super().__contains__(part)

    body = Searched(
        json.dumps({**CALL, "params": {"name": "send_message", "arguments": {"data": "A" * 100_000}}}), "utf8"
    )
    request = a_request(body)

    assert (request.initializes, request.call is not None, body.searches) == (False, True, 0)


@pytest.mark.parametrize(
    ("content", "tool", "is_well_formed"),
    [
        (CALL, "send_message", True),
        ({**CALL, "params": {"name": ["send_message"]}}, "", True),
        ({"method": "tools/call"}, "", False),
        (json.dumps(CALL).encode("utf-16"), "send_message", False),
        (json.dumps({**CALL, "more": "\ud800"}).encode(), "send_message", False),
        ({**CALL, "method": "ping"}, None, False),
        ([CALL], None, False),
        (INITIALIZE, None, False),
        (b"tools/call", None, False),
        (b"[" * 100_000, "", False),
        (b'{"method": "tools/call", "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "", False),
        (b"{}," * 1_000_000, "", False),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_may_be_a_call_counts_as_one_and_only_a_well_formed_one_is_answered(
    content: Any, tool: str | None, is_well_formed: bool
) -> None:
    request = a_request(content)
    assert (request.tool, request.call is not None) == (tool, is_well_formed)
    assert request.initializes == (content is INITIALIZE)
