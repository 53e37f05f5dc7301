"""The gate before the agents alone: what a body, headers and a path decide. The rest is in e2e/test_identity."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp

from pallas_gateway.composition.features import FEATURES
from pallas_gateway.config.loading.configuration import Configuration, StoredIdentity
from pallas_gateway.config.loading.fastagent_file import FastAgentFile
from pallas_gateway.config.model.deployment import Deployment
from pallas_gateway.core.feature import PortRoutes
from pallas_gateway.core.gateway import Gateway
from pallas_gateway.doors.http import protected_resource
from pallas_gateway.doors.http.access import RequestedEndpoint, admitted
from pallas_gateway.doors.http.agent_routes import named_by_path
from pallas_gateway.doors.http.app import create_app
from pallas_gateway.doors.mcp.envelope import McpRequest
from pallas_gateway.doors.mcp.mcp_servers import McpServers
from pallas_gateway.identity.caller import CALLER_KEY, Caller
from pallas_gateway.identity.grants import EVERYTHING
from pallas_gateway.identity.secret import Secret
from pallas_gateway.identity.static_keys import hash_of
from pallas_gateway.telemetry.metrics import AUTH_REFUSALS
from pallas_gateway.urls import Addresses
from tests.support.asgi import Message as AsgiMessage
from tests.support.asgi import Scope
from tests.support.challenges import parse_challenge
from tests.support.memory_runtime import MemoryRuntime

KEYS = {"viewer": ["view:agents:echo"], "runner": ["run:agents:echo"], "nobody": []}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "send_message", "arguments": {}}}
HEALTH = {**CALL, "params": {"name": "get_health"}}
BARE = 'Bearer realm="pallas-gateway"'
JWT = {"issuer": "https://login.example.com", "jwks_uri": "https://login.example.com/jwks"}


AGENTS = {name: {"module": name} for name in ("echo", "other")}


def gateway_of(auth: Mapping[str, Any] | None, agents: Mapping[str, Any] = AGENTS, **gateway: Any) -> Gateway:
    document: dict[str, Any] = {
        "name": "demo",
        "agents": agents,
        "gateway": {"max_body_bytes": 1000, **gateway, **({"auth": auth} if auth is not None else {})},
    }
    deployment = Deployment.model_validate(document)
    configuration = Configuration(deployment, Path("agents.yaml"), {}, FastAgentFile())
    return Gateway(configuration, Addresses(configuration), MemoryRuntime({}), features=FEATURES)


def app_of(gateway: Gateway, ports: Mapping[int, PortRoutes]) -> ASGIApp:
    return create_app(gateway, McpServers(gateway), ports)


def with_keys(**auth: Any) -> Gateway:
    tokens = [{"name": name, "sha256": hash_of(name), "grants": grants} for name, grants in KEYS.items()]
    return gateway_of({"tokens": tokens, **auth})


class Asked:
    """One request for an agent and what came of it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body: Any = None
        self.caller: Caller | None = None
        self.passed_on: bytes | None = None
        self.unread = 0

    async def send(self, message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif self.headers.get("content-type") == "application/json":
            self.body = json.loads(message["body"])


async def ask(
    gateway: Gateway,
    *headers: tuple[str, str],
    path: str = "/agents/echo/mcp",
    pieces: list[bytes] | None = None,
    bearer: str | None = None,
) -> Asked:
    asked = Asked()
    parts = [json.dumps(CALL).encode()] if pieces is None else pieces
    incoming = [{"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts]
    token = [("authorization", f"Bearer {bearer}")] if bearer is not None else []
    sent = [("content-type", "application/json"), *headers, *token]
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in sent],
    }

    async def receive() -> AsgiMessage:
        return incoming.pop(0)

    name = named_by_path(path)
    request = await admitted(gateway, RequestedEndpoint(name, name), Request(scope, receive))
    asked.unread = len(incoming)
    if isinstance(request, McpRequest):
        asked.status, asked.passed_on, asked.caller = 200, request.body, scope[CALLER_KEY]
    else:
        await request(scope, receive, asked.send)
    return asked


async def test_without_authentication_everybody_passes_with_the_token_they_brought() -> None:
    gateway = gateway_of(None)
    assert (await ask(gateway, bearer="anns")).caller == Caller(bearer=Secret("anns"), grants=EVERYTHING)
    assert (await ask(gateway)).caller == Caller(grants=EVERYTHING)
    assert (await ask(gateway, path="/agents/none/mcp")).body["error"] == "no agent 'none'"


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(HEALTH),
        json.dumps({**CALL, "method": "tools/list"}),
        json.dumps({**CALL, "method": "initialize"}),
        json.dumps([CALL]),  # a batch: the MCP server refuses it
        "not JSON",
        "",
    ],
    ids=lambda body: body[:40],
)
async def test_who_may_view_may_send_whatever_calls_no_agent_and_it_arrives_whole(body: str) -> None:
    gateway = gateway_of({"tokens": [_key("viewer")]}, max_body_bytes=1_000_000)
    whole = body.encode()
    asked = await ask(gateway, bearer="viewer", pieces=[whole[:10], whole[10:]])
    assert (asked.status, asked.passed_on) == (200, whole)


def _key(name: str) -> dict[str, object]:
    return {"name": name, "sha256": hash_of(name), "grants": KEYS[name]}


@pytest.mark.parametrize(
    "params",
    [CALL["params"], {"name": "echo"}, {"name": "unknown"}, {"name": ["get_health"]}, {}, None, "get_health"],
    ids=str,
)
async def test_who_may_only_view_may_not_call(params: object) -> None:
    body = json.dumps({**CALL, "params": params}).encode()
    asked = await ask(with_keys(), bearer="viewer", pieces=[body[:30], body[30:]])
    assert (asked.status, asked.passed_on) == (403, None)
    assert asked.body["error"] == "insufficient_scope"


async def test_body_too_deep_to_parse_is_refused_as_a_call() -> None:
    gateway = gateway_of({"tokens": [_key("viewer")]}, max_body_bytes=1_000_000)
    body = json.dumps(CALL).encode()[:-1] + b', "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    asked = await ask(gateway, bearer="viewer", pieces=[body])
    assert (asked.status, asked.passed_on) == (403, None)


@pytest.mark.parametrize(("declared", "unread"), [("1800", 3), ("9" * 5000, 3), ("many", 1), (None, 1)])
async def test_a_body_that_is_too_large_is_not_read_any_further(declared: str | None, unread: int) -> None:
    pieces = [b"x" * 600, b"y" * 600, b"z" * 600]
    headers = [("content-length", declared)] if declared else []
    asked = await ask(gateway_of(None), *headers, pieces=pieces)
    assert (asked.status, asked.unread) == (413, unread)


async def test_a_request_whose_client_leaves_is_dropped() -> None:
    async def receive() -> AsgiMessage:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(ClientDisconnect):
        await admitted(gateway_of(None), RequestedEndpoint("echo", "echo"), Request(scope, receive))


async def test_two_tokens_are_one_too_many() -> None:
    asked = await ask(with_keys(), ("authorization", "Bearer viewer"), bearer="runner")
    assert asked.status == 401
    assert asked.body["error_description"] == "the request has more than one Authorization header"


@pytest.mark.parametrize("prefix", ["", "/pallas"], ids=["prefix removed by the proxy", "prefix kept"])
def test_metadata_of_a_public_url_with_a_path_names_the_agent_as_clients_know_it(prefix: str) -> None:
    gateway = gateway_of({"jwt": JWT}, public_url="https://x.example.com/pallas")
    response = protected_resource.respond(gateway, None, f"{protected_resource.WELL_KNOWN}{prefix}/agents/echo/mcp")
    assert json.loads(bytes(response.body))["resource"] == "https://x.example.com/pallas/agents/echo/mcp"
    url = f"https://x.example.com/pallas{protected_resource.WELL_KNOWN}/agents/echo/mcp"
    assert protected_resource.metadata_url(gateway, "echo") == url


async def test_a_preflight_lets_pages_of_any_origin_read_metadata() -> None:
    table = app_of(gateway_of({"jwt": JWT}), {24200: PortRoutes(agents_by_path=True)})
    path = f"{protected_resource.WELL_KNOWN}/agents/echo/mcp"
    status, headers, _ = await get(table, 24200, path, method="OPTIONS", origin="https://inspector.example.com")
    assert (status, headers["access-control-allow-origin"]) == (204, "*")
    assert headers["access-control-allow-headers"] == "*"


@pytest.mark.parametrize(
    "path", ["", "/", "/agents/a b/mcp", "/agents/echo", "/mcp/x", "/agents//mcp", '/agents/"/mcp']
)
def test_other_paths_have_no_metadata(path: str) -> None:
    gateway = gateway_of({"jwt": JWT})
    assert protected_resource.respond(gateway, None, f"{protected_resource.WELL_KNOWN}{path}").status_code == 404


@pytest.mark.parametrize(
    ("jwt", "scopes"),
    [
        ({"scopes_supported": ["run:agents", "offline_access"]}, ["run:agents", "offline_access"]),
        ({"grants_claim": "permissions"}, None),  # asking for a scope would not bring them
        ({"grants_claim": "scp"}, ["run:agents:echo"]),
    ],
)
def test_clients_are_told_to_ask_for_what_helps(jwt: dict[str, Any], scopes: list[str] | None) -> None:
    gateway = gateway_of({"jwt": {**JWT, **jwt}})
    path = f"{protected_resource.WELL_KNOWN}/agents/echo/mcp"
    document = json.loads(bytes(protected_resource.respond(gateway, None, path).body))
    assert document.get("scopes_supported") == scopes


async def test_a_call_of_somebody_who_may_only_view_is_counted_as_a_refused_one() -> None:
    gateway = with_keys()
    await ask(gateway, bearer="viewer")
    await ask(gateway, bearer="guessed")
    await ask(gateway, path="/agents/other/mcp", bearer="viewer")
    value = gateway.metrics.registry.get_sample_value
    assert value("pallas_calls_refused_total", {"agent": "echo", "reason": "insufficient_scope"}) == 1
    assert value("pallas_send_message_total", {"agent": "echo", "outcome": "error"}) == 1
    counts = {reason: value("pallas_auth_refused_total", {"reason": reason}) for reason in AUTH_REFUSALS}
    assert counts == {
        **dict.fromkeys(AUTH_REFUSALS, 0), "insufficient_scope": 1, "invalid_token": 1, "no_grant": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("jwt", "scope"),
    [({}, "run:agents:echo"), ({"scopes_supported": ["agents"]}, "agents"), ({"grants_claim": "roles"}, None)],
)
async def test_a_refusal_asks_for_a_scope_only_where_one_helps(jwt: dict[str, Any], scope: str | None) -> None:
    gateway = with_keys(jwt={**JWT, **jwt})
    for asked in (await ask(gateway), await ask(gateway, bearer="viewer")):
        assert parse_challenge(asked.headers["www-authenticate"]).parameters.get("scope") == scope


async def test_a_port_where_agents_are_elsewhere_does_not_tell_which_there_are() -> None:
    agents = {"echo": {"module": "echo", "port": 24301}, "other": {"module": "other"}}
    gateway = gateway_of({"jwt": JWT}, per_port=True, agents=agents)
    table = app_of(gateway, {24200: PortRoutes(registry=True), 24301: PortRoutes(agent="echo")})
    seen = set()
    for name in ("echo", "other", "absent"):
        for path in (f"/agents/{name}/mcp", f"{protected_resource.WELL_KNOWN}/agents/{name}/mcp"):
            status, headers, _ = await get(table, 24200, path)
            seen.add((path.startswith("/agents"), status, headers.get("www-authenticate")))
    assert seen == {(True, 401, BARE), (False, 404, None)}


async def test_per_port_there_are_not_all_agents_at_mcp_of_any_port() -> None:
    table = app_of(gateway_of(None, per_port=True), {24200: PortRoutes(registry=True)})
    status, _, body = await get(table, 24200, "/mcp")
    assert status == 404
    assert json.loads(body)["error"].startswith("each agent is at /mcp on a port of its own")


async def get(
    app: Any, port: int, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    sent: list[AsgiMessage] = []

    async def receive() -> AsgiMessage:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: AsgiMessage) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http",
        "method": method,
        "path": path,
        "scheme": "http",
        "query_string": b"",
        "server": ("127.0.0.1", port),
        "headers": [(b"host", b"localhost:24200"), *((k.encode(), v.encode()) for k, v in headers.items())],
    }
    await app(scope, receive, send)
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], told, b"".join(message.get("body", b"") for message in sent[1:])


async def test_owners_and_editors_of_an_agent_of_the_database_pass_without_a_grant_to_run_it() -> None:
    gateway = with_keys()
    gateway.configuration = replace(gateway.configuration, stored={"echo": StoredIdentity("1", 1, "key:nobody")})
    owner = await ask(gateway, bearer="nobody")
    assert owner.caller is not None
    assert owner.caller.grants.deciding("run:agents", "echo") == "owner"
    seen = [(await ask(gateway, path=f"/agents/{name}/mcp", bearer="nobody")).status for name in ("echo", "other")]
    assert (owner.status, seen) == (200, [200, 404])
    gateway.configuration = replace(gateway.configuration, stored={})  # a file has claimed the name
    assert (await ask(gateway, bearer="nobody")).status == 404
