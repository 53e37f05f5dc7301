"""Requests of one agent's endpoint: who gets a session id, and which methods there are."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from pallas_gateway.core.calls import Calls
from pallas_gateway.core.gateway import Gateway
from pallas_gateway.doors.http.access import RequestedEndpoint
from pallas_gateway.doors.http.agent_routes import serve
from pallas_gateway.doors.mcp.envelope import McpRequest
from pallas_gateway.doors.mcp.mcp_servers import McpServers
from pallas_gateway.urls import ALL_AGENTS
from tests.support.asgi import Message, Scope, Send, read_body, respond_json

SESSION = "mcp-session-id"
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}


class Endpoint:
    """Stands for the endpoint of an agent's MCP server: reads the request, then answers with what it read."""

    async def handle(self, request: McpRequest, send: Send) -> None:
        body = await read_body(request.receive)
        await respond_json(send, 200, {"bytes": len(body)})


GATEWAY = cast(
    "Gateway",
    SimpleNamespace(
        agents={"echo": SimpleNamespace()},
        configuration=SimpleNamespace(deployment=SimpleNamespace(gateway=SimpleNamespace(max_body_bytes=10_000))),
        authenticator=None,
        calls=Calls(),
        draining=False,
    ),
)
SERVERS = cast(
    "McpServers",
    SimpleNamespace(
        by_agent={"echo": SimpleNamespace(endpoint=Endpoint())},
        all_agents=SimpleNamespace(endpoint=Endpoint()),
    ),
)


class Answered:
    """One request to the agent's endpoint and its answer."""

    def __init__(self, *pieces: bytes, method: str = "POST", **headers: str) -> None:
        self.headers: dict[str, str] = {}
        self.status = 0
        self.body = b""
        self.scope: Scope = {
            "type": "http",
            "method": method,
            "path": "/agents/echo/mcp",
            "headers": [
                (name.replace("_", "-").encode(), value.encode())
                for name, value in {"content-type": "application/json", **headers}.items()
            ],
        }
        last = len(pieces) - 1
        self._incoming: list[Message] = [
            {"type": "http.request", "body": piece, "more_body": number < last} for number, piece in enumerate(pieces)
        ]

    async def receive(self) -> Message:
        return self._incoming.pop(0)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        self.body += message.get("body", b"")


async def answered(*pieces: bytes, endpoint: str = "echo", **options: Any) -> Answered:
    one = Answered(*pieces, **options)
    await serve(GATEWAY, SERVERS, RequestedEndpoint(endpoint, endpoint), Request(one.scope, one.receive), one.send)
    return one


def encoded(request: object, **options: Any) -> bytes:
    return json.dumps(request, **options).encode()


async def test_each_client_that_initializes_gets_an_opaque_id_of_its_own() -> None:
    ids = [(await answered(encoded(INITIALIZE))).headers[SESSION] for _ in range(20)]
    assert len(set(ids)) == 20
    assert all(len(one) >= 16 and one.isascii() and one.isprintable() for one in ids)


@pytest.mark.parametrize(
    "pieces",
    [
        [encoded(INITIALIZE, separators=(",", ":"))],
        [encoded(INITIALIZE, indent=2)],
        [b'{"jsonrpc": "2.0", ', b'"id": 1, "method": "initialize", ', b'"params": {}}'],
    ],
    ids=["compact", "indented", "in pieces"],
)
async def test_however_the_request_is_written_and_sent_it_arrives_whole(pieces: list[bytes]) -> None:
    one = await answered(*pieces, mcp_protocol_version="2025-06-18")
    assert SESSION in one.headers
    assert json.loads(one.body)["bytes"] == sum(map(len, pieces))


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (encoded({**INITIALIZE, "method": "tools/list"}), {}),
        (encoded({**INITIALIZE, "method": "notifications/initialized"}), {}),
        (encoded({"method": "tools/call", "params": {"arguments": {"message": '"method": "initialize"'}}}), {}),
        (encoded(INITIALIZE), {"mcp_session_id": "of-the-client"}),
        (encoded(INITIALIZE), {"mcp_protocol_version": "2026-07-28"}),
        (b"", {}),
    ],
    ids=["another request", "initialized", "only spoken of", "has one already", "2026-07-28", "nothing"],
)
async def test_nobody_else_gets_one(body: bytes, headers: dict[str, str]) -> None:
    one = await answered(body, **headers)
    assert one.status == 200
    assert SESSION not in one.headers


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_there_is_no_session_to_listen_to_or_to_end(method: str) -> None:
    one = await answered(b"", method=method, mcp_session_id="any")
    assert (one.status, one.headers["allow"]) == (405, "POST")


async def test_the_endpoint_of_all_agents_hands_out_ids_too() -> None:
    assert SESSION in (await answered(encoded(INITIALIZE), endpoint=ALL_AGENTS)).headers
