"""The check of every MCP message: what it accepts, what it finds, and that the suite's traffic passes it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from pallas_gateway.doors.mcp.envelope import McpRequest
from tests.support import protocol_messages
from tests.support.asgi import Message, Send
from tests.support.clients import INITIALIZE_VERSIONS, MODERN_VERSION, modern_client, raw_client
from tests.support.downstreams import refusing
from tests.support.gateway import Agent, running, write_project
from tests.support.protocol_messages import MISFITS, checked_answers, misfits
from tests.support.stdio_processes import Processes

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
META = {"io.modelcontextprotocol/protocolVersion": MODERN_VERSION, "io.modelcontextprotocol/clientCapabilities": {}}
TOOL = {"name": "add", "inputSchema": {"type": "object"}}
FITTING: list[tuple[str, dict[str, Any], str | None]] = [
    *((version, LIST, None) for version in INITIALIZE_VERSIONS),
    (MODERN_VERSION, {**LIST, "params": {"_meta": META}}, None),
    ("2025-06-18", {"jsonrpc": "2.0", "id": 1, "result": {"tools": [TOOL]}}, "tools/list"),
    ("2025-06-18", {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no JSON"}}, None),
    ("2025-06-18", {"jsonrpc": "2.0", "id": 1, "result": {}}, "ping"),
]
WRONG: list[tuple[str, dict[str, Any], str | None]] = [
    *((version, {**LIST, "params": None}, None) for version in (*INITIALIZE_VERSIONS, MODERN_VERSION)),
    ("2025-06-18", {**LIST, "params": {"cursor": 5}}, None),
    ("2025-06-18", {**LIST, "method": "tools/guess"}, None),
    ("2025-03-26", {**LIST, "method": "elicitation/create"}, None),
    (MODERN_VERSION, LIST, None),
    ("2025-06-18", {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "add"}]}}, "tools/list"),
    ("2025-06-18", {"jsonrpc": "2.0", "id": 1, "result": None}, "ping"),
    ("2025-06-18", {"id": 1, "result": {}}, "ping"),
    ("2025-06-18", {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}, None),
]


@pytest.mark.parametrize(("version", "message", "answered"), FITTING)
def test_messages_of_the_protocol_fit(version: str, message: dict[str, Any], answered: str | None) -> None:
    assert misfits(message, version, answered=answered) == []


@pytest.mark.parametrize(("version", "message", "answered"), WRONG)
def test_null_instead_of_an_object_and_wrong_members_do_not_fit(
    version: str, message: dict[str, Any], answered: str | None
) -> None:
    assert misfits(message, version, answered=answered)


async def test_a_message_to_a_downstream_over_http_is_checked() -> None:
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
    async with refusing(503) as downstream, httpx.AsyncClient() as http:
        await http.post(downstream.url, json={**LIST, "params": None}, headers=headers)
    found = MISFITS.take()
    assert [one for one in found if "ListToolsRequest: params: null" in one]


def test_a_message_to_a_program_is_checked(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.settings()
    greeting = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
    (tmp_path / "messages").write_text("".join(f"{json.dumps(one)}\n" for one in (greeting, {**LIST, "params": None})))
    found = MISFITS.take()
    assert [one for one in found if "InitializeRequest: params" in one]
    assert [one for one in found if "ListToolsRequest: params: null" in one]


@pytest.mark.parametrize(("kind", "form"), [("application/json", "{}"), ("text/event-stream", "data: {}\r\n\r\n")])
async def test_an_answer_to_a_client_is_checked(kind: str, form: str) -> None:
    answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "add"}]}})
    http = SimpleNamespace(headers={"mcp-protocol-version": "2025-06-18"})
    request = cast("McpRequest", SimpleNamespace(body=json.dumps(LIST).encode(), http=http))

    async def handle(_: Any, __: McpRequest, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
        await send({"type": "http.response.body", "body": form.replace("{}", answer).encode()})

    sent: list[Message] = []

    async def keep(message: Message) -> None:
        sent.append(message)

    await checked_answers(handle)(None, request, keep)
    assert len(sent) == 2
    assert [one for one in MISFITS.take() if '"inputSchema" is a required property' in one]


async def test_the_answers_of_every_gateway_of_this_process_and_of_raw_clients_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(protocol_messages, "misfits", lambda message, version, answered: [f"{version} {answered}"])
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        async with modern_client(served.url("echo")) as client:
            await client.list_tools()
        asked += MISFITS.take()
        async with raw_client(served.url("echo")) as raw:
            await raw.list_tools()
        asked += MISFITS.take()
    assert asked.count("to a client: 2026-07-28 tools/list") == 1
    assert asked.count("to a client: 2025-03-26 tools/list") == 2
