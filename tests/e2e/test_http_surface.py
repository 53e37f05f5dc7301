"""The gateway as plain HTTP sees it: routes, Host and Origin, CORS, body sizes, probes and metrics."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.doors.mcp.endpoint import McpEndpoint
from tests.support.calling import EACH_VERSION, ask
from tests.support.clients import INITIALIZE_VERSIONS, MODERN_VERSION, raw_client, tool_params
from tests.support.gateway import Agent, Running, gateway_and_model, running, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, hang, say
from tests.support.waiting import Gate, eventually

MCP = "/agents/echo/mcp"
REGISTRY, LIST = "/.well-known/mcp/server.json", "/v0.1/servers"
OPEN_PATHS = ("/livez", "/readyz", "/metrics", REGISTRY, LIST)
ACCEPT = {"accept": "application/json, text/event-stream"}
CALL: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": tool_params("echo", {"message": "hello"}),
}
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "page", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
MODERN_HEADERS = {"mcp-protocol-version": MODERN_VERSION, "mcp-method": "tools/call", "mcp-name": "echo"}
GUARDED: dict[str, Any] = {
    "deployment": {"host": "gw.example.net"},
    "gateway": {
        "public_url": "https://agents.example.com/base",
        "allowed_hosts": ["extra.example.org"],
        "allowed_origins": ["https://app.example.com"],
    },
}


@asynccontextmanager
async def echo_gateway(path: Path, **options: Any) -> AsyncGenerator[tuple[Running, httpx.AsyncClient]]:
    """A gateway with one agent, and a client of its port."""
    async with running(write_project(path, {"echo": Agent()}, **options)) as served, browser(served.base_url) as http:
        yield served, http


def browser(base_url: str) -> httpx.AsyncClient:
    """An HTTP client that follows no redirect."""
    return httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=30, follow_redirects=False)


async def post(http: httpx.AsyncClient, headers: Mapping[str, str] | None = None, path: str = MCP) -> httpx.Response:
    return await http.post(path, json=CALL, headers={**ACCEPT, **(headers or {})})


UNKNOWN = ("/agents/nope/mcp", "/agents/nope/mcp/", "/agents/ECHO/mcp", "/agents/%22%7d%0a/mcp")
NOT_SERVED = ("/agents", "/agents/", "/agents/echo", "/agents/echo/", f"{MCP}/more", "/agents//mcp")
BUT_POST = ("GET", "DELETE", "HEAD", "PUT", "PATCH", "OPTIONS", "BREW")
WITH_SLASH = tuple(f"{path}/" for path in OPEN_PATHS if path != LIST)
# fmt: off
ROUTES: list[tuple[tuple[str, ...], tuple[str, ...], int, dict[str, str], str]] = [
    # methods                              paths                           comes and the headers       says
    (("POST",),                            (MCP, f"{MCP}/", f"{MCP}?x=1"), 200, {},                   '"text":"hello"'),
    (BUT_POST,                             (MCP, f"{MCP}/"),               405, {"allow": "POST"},      ""),
    (BUT_POST,                             ("/mcp", "/mcp/"),              405, {"allow": "POST"},      ""),
    (("POST",),                            ("/mcp", "/mcp/"),              200, {},                     "agent-echo"),
    (("GET", "POST", "DELETE"),            UNKNOWN,                        404, {},                     "no agent"),
    (("GET", "POST", "DELETE"),            WITH_SLASH,                     404, {},                     '"error"'),
    (("GET", "POST", "DELETE", "OPTIONS"), NOT_SERVED,                     404, {},                     '"error"'),
    (("GET",),                             (*OPEN_PATHS, f"{LIST}/"),      200, {},                     ""),
    (("POST", "PUT", "DELETE", "OPTIONS"), (*OPEN_PATHS, "/"),             405, {"allow": "GET, HEAD"}, ""),
]
# fmt: on


async def test_each_route_takes_its_methods_and_no_others(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path) as (_, http):
        for methods, paths, status, headers, says in ROUTES:
            for method, path in product(methods, paths):
                answer = await http.request(method, path, json=CALL, headers=ACCEPT)
                assert (method, path, answer.status_code) == (method, path, status)
                assert answer.headers.items() >= headers.items()
                assert "location" not in answer.headers
                assert says in answer.text
                assert status != 404 or answer.json()["error"]
        for path in (*OPEN_PATHS, "/", "/docs/use/clients.md"):
            get, head = [await http.request(method, path, headers=ACCEPT) for method in ("GET", "HEAD")]
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("version", [*INITIALIZE_VERSIONS, MODERN_VERSION])
async def test_a_streamed_answer_tells_proxies_not_to_buffer_it(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A silent call of 2026-07-28 becomes a stream with its first ping.
    monkeypatch.setattr(McpEndpoint, "ping_seconds", 0.05)
    gate = Gate()
    async with (
        gateway_and_model(tmp_path, {"echo": Agent()}, lambda _: hang(gate)) as (served, _),
        raw_client(served.url("echo"), protocol_version=version) as client,
        client.in_flight("tools/call", tool_params("echo", {"message": "hello"})) as call,
    ):
        await eventually(lambda: call.has_headers, what="the beginning of the stream")
        gate.open()
        reply = await call.reply()

    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.result["content"][0]["text"] == "released"


OWN_HOSTS = [
    *("localhost", "localhost:1", "127.0.0.1:24200", "[::1]", "[::1]:24200"),
    *("gw.example.net", "gw.example.net:8080", "extra.example.org", "extra.example.org:1"),
    *("agents.example.com", "agents.example.com:8443", "AGENTS.example.com"),
]
FOREIGN_HOSTS = [
    *("evil.example", "evil.example:24200", "", "*", "0.0.0.0", "169.254.169.254", "[::]"),  # noqa: S104  said, not bound
    *("agents.example.com.evil.example", "evil-agents.example.com", "example.com", "sub.agents.example.com"),
    *("localhost.evil.example", "127.0.0.1.evil.example", "evil.example:80@localhost", "localhost@evil.example"),
]
OWN_ORIGINS = [
    *("http://localhost:3000", "https://localhost", "http://127.0.0.1:8080", "http://[::1]:5173"),
    *("https://agents.example.com", "https://agents.example.com:8443", "http://gw.example.net:24200"),
    "https://app.example.com",
]
FOREIGN_ORIGINS = [
    *("https://evil.example", "null", "file://", "https://xagents.example.com", "https://user@evil.example"),
    *("https://agents.example.com.evil.example", "https://localhost.evil.example", "http://127.0.0.1.evil.example"),
    *("https://app.example.com.evil.example", "https://app.example.com:444", "http://app.example.com"),
    *("https://sub.app.example.com", "https://extra.example.org.evil.example"),
    *("http://evil.example:24200", "http://[::2]:24200", "http://[::1].evil.example"),
]


async def test_the_guards_let_own_names_and_configured_pages_in_and_run_nothing_for_others(tmp_path: Path) -> None:
    own = ("localhost:24200", "agents.example.com")
    async with echo_gateway(tmp_path, **GUARDED) as (served, http):
        hosts = {host: (await post(http, {"host": host})).status_code for host in OWN_HOSTS + FOREIGN_HOSTS}
        pages = {
            (origin, host): (await post(http, {"origin": origin, "host": host})).status_code
            for origin, host in product(OWN_ORIGINS + FOREIGN_ORIGINS, own)
        }
        ran = served.metric("pallas_send_message_total", agent="echo", outcome="ok")

    assert hosts == dict.fromkeys(OWN_HOSTS, 200) | dict.fromkeys(FOREIGN_HOSTS, 421)
    assert pages == dict.fromkeys(product(OWN_ORIGINS, own), 200) | dict.fromkeys(product(FOREIGN_ORIGINS, own), 403)
    assert ran == len(OWN_HOSTS) + len(own) * len(OWN_ORIGINS)


async def test_probes_metrics_and_registry_stand_outside_the_guard(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, **GUARDED) as (_, http):
        for path in OPEN_PATHS:
            answer = await http.get(path, headers={"host": "10.1.2.3:24200", "origin": "https://evil.example"})
            assert (path, answer.status_code) == (path, 200)
            assert "access-control-allow-origin" not in answer.headers


async def test_a_configured_page_is_told_what_it_may_send_and_read(tmp_path: Path) -> None:
    sent = {"authorization", "content-type", "last-event-id", "mcp-protocol-version", "mcp-session-id"}
    sent |= {"mcp-method", "mcp-name"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": ", ".join(sorted(sent))}
    page = {"origin": "https://app.example.com"}
    async with echo_gateway(tmp_path, **GUARDED) as (_, http):
        preflight = await http.options(MCP, headers={**page, **asked})
        answer = await post(http, page)
        registry = await http.get(REGISTRY, headers=page)

    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example.com"
    assert "POST" in _listed(preflight, "access-control-allow-methods")
    assert sent <= {name.lower() for name in _listed(preflight, "access-control-allow-headers")}
    for response in (answer, registry):
        assert response.headers["access-control-allow-origin"] == "https://app.example.com"
        assert "Origin" in _listed(response, "vary")
        exposed = {name.lower() for name in _listed(response, "access-control-expose-headers")}
        assert {"mcp-session-id", "mcp-protocol-version", "www-authenticate", "retry-after"} <= exposed


async def test_another_page_is_allowed_nothing(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, **GUARDED) as (_, http):
        for origin in ("https://evil.example", "https://app.example.com.evil.example", "null"):
            asked = {"origin": origin, "access-control-request-method": "POST"}
            answers = [await http.options(MCP, headers=asked), await post(http, {"origin": origin})]
            assert [(origin, answer.status_code) for answer in answers] == [(origin, 400), (origin, 403)]
            assert not any("access-control-allow-origin" in answer.headers for answer in answers)


async def test_without_configured_origins_no_response_speaks_of_them(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path) as (_, http):
        page = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
        answers = [
            await http.options(MCP, headers=page),
            await post(http, page),
            await http.get(REGISTRY, headers=page),
        ]

    assert [name for answer in answers for name in answer.headers if name.startswith("access-control")] == []


def _listed(response: httpx.Response, header: str) -> set[str]:
    return {part.strip() for part in response.headers[header].split(",")}


async def _in_pieces(body: bytes, size: int = 65_536) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_body_of_the_limit_is_taken_and_a_larger_one_is_413_which_the_client_sees(
    version: str, tmp_path: Path
) -> None:
    async with (
        echo_gateway(tmp_path, gateway={"max_body_bytes": 4_000}) as (served, http),
        raw_client(served.url("echo"), protocol_version=version) as client,
    ):
        headers = client.headers_of("tools/call", {"name": "echo"})
        call = client.body_of("tools/call", tool_params("echo", {"message": "hello"}), request_id=1)
        taken = await http.post(MCP, content=json.dumps(call).ljust(4_000).encode(), headers=headers)
        assert "hello" in taken.text
        for body in (b" " * size for size in (4_001, 70_000, 8_000_000)):
            for content in (body, _in_pieces(body)):
                answer = await http.post(MCP, content=content, headers=headers)
                after = await client.call_tool("echo", {"message": "hello"})
                assert (len(body), answer.status_code) == (len(body), 413)
                assert after.result["content"][0]["text"] == "hello"


async def test_who_sends_a_large_body_where_it_is_not_wanted_gets_to_see_why(tmp_path: Path) -> None:
    wrong = {("/agents/nope/mcp", ""): 404, (MCP, "evil.example"): 421, ("/livez", ""): 405}
    async with echo_gateway(tmp_path) as (_, http):
        for (path, host), status in wrong.items():
            answer = await http.post(path, content=b" " * 8_000_000, headers={"host": host} if host else {})
            assert (path, answer.status_code) == (path, status)


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # the model's client, once
@pytest.mark.parametrize("version", EACH_VERSION)
async def test_twenty_megabytes_of_images_reach_the_model_under_the_default_limit(version: str, tmp_path: Path) -> None:
    sizes: list[list[int]] = []

    def measured(request: LlmRequest) -> Any:
        parts = [part for message in request.messages[1:] for part in message["content"] if isinstance(part, dict)]
        sizes.append([len(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"])
        return say("seen")

    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(3_000_000 - 8)).decode()  # 4 MB of text
    image = {"data": data, "mime_type": "image/png"}
    async with gateway_and_model(tmp_path, {"echo": Agent(model="generic.gpt-4o")}, measured) as (served, _):
        history = [{"role": "user", "content": "earlier", "images": [image, image]}]
        answer = await ask(served.url("echo"), "look", version=version, images=[image] * 3, history=history)

    assert (answer.text, answer.is_error) == ("seen", False)
    assert sizes == [[len("data:image/png;base64,") + len(data)] * 5]


async def _readiness(http: httpx.AsyncClient, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
    answer = await http.get(path)
    return answer.status_code, answer.json()


async def test_readiness_names_the_agents_that_are_not_up_and_why(tmp_path: Path) -> None:
    agents = {"echo": Agent(), "broken": Agent(source="raise ValueError('the key is missing')")}
    async with running(write_project(tmp_path, agents)) as served, browser(served.base_url) as http:
        relaxed, strict = await _readiness(http), await _readiness(http, "/readyz?strict=1")

    assert (relaxed[0], strict[0]) == (200, 503)
    for body in (relaxed[1], strict[1]):
        assert list(body["not_up"]) == ["broken"]
        assert body["not_up"]["broken"]["state"] == "failed"
        assert "the key is missing" in body["not_up"]["broken"]["reason"]


async def test_a_draining_gateway_is_alive_but_not_ready_and_takes_no_calls(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        gateway_and_model(tmp_path, {"echo": Agent()}, lambda _: hang(gate)) as (served, _),
        browser(served.base_url) as http,
        asyncio.TaskGroup() as calls,
    ):
        held = calls.create_task(ask(served.url("echo"), "the last call"))
        await gate.wait_for_entered()
        served.stop.set()
        await eventually(lambda: served.gateway.calls.draining, what="the drain")
        ready, alive, refused = await http.get("/readyz"), await http.get("/livez"), await post(http)
        gate.open()

    assert held.result().text == "released"
    assert (ready.status_code, ready.json()["status"]) == (503, "draining")
    assert alive.status_code == 200
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0


async def test_metrics_are_plain_text_unless_the_scraper_asks_for_another(tmp_path: Path) -> None:
    plain, openmetrics = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"
    asked = {
        None: plain,
        "*/*": plain,
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1": plain,
        "application/openmetrics-text; version=1.0.0": openmetrics,
        "application/openmetrics-text; version=newest": plain,
        f"text/plain; version={'9' * 5_000}": plain,
    }
    async with echo_gateway(tmp_path) as (_, http):
        for accept, content_type in asked.items():
            answer = await http.get("/metrics", headers={"accept": accept} if accept else None)
            assert answer.headers["content-type"].startswith(content_type), accept
            assert 'pallas_agent_info{agent="echo"' in answer.text


# What a page of another origin may send without asking first (CORS): no request of that kind does anything


async def test_a_body_is_taken_as_json_only_if_it_says_so(tmp_path: Path) -> None:
    types = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None)
    turn = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
    modern = {**CALL, "params": {**CALL["params"], "_meta": MODERN_META}}
    requests = [
        (MCP, CALL, {}),
        ("/mcp", {**CALL, "params": tool_params("agent-echo", {"message": "hello"})}, {}),
        (MCP, modern, {}),
        (MCP, modern, MODERN_HEADERS),
        ("/mcp", modern, MODERN_HEADERS),
        ("/v1/chat/completions", turn, {}),
        ("/api/v1/agents/echo/chat", {"message": "hello"}, {}),
        ("/api/v1/agents/echo/threads", {"title": "mine"}, {}),
        ("/api/v1/agents/echo/threads", None, {"origin": "http://localhost:9"}),
    ]
    on = {"openai_api": True, "database": "sqlite:///threads.db"}
    async with echo_gateway(tmp_path, gateway=on) as (served, http):
        for (path, body, headers), content_type in product(requests, types):
            content = json.dumps(body).encode() if body else b""
            typed = {"content-type": content_type} if content_type else {}
            sent = http.build_request("POST", path, content=content, headers={**ACCEPT, **headers, **typed})
            answer = await http.send(sent)
            assert (path, answer.status_code) == (path, 415)
            assert answer.json()
        threads = await http.get("/api/v1/agents/echo/threads")
        metrics = await http.get("/metrics")
    assert threads.json()["threads"] == []
    assert served.metric("pallas_send_message_total", agent="echo", outcome="ok") == 0
    assert metrics.status_code == 200


async def test_a_thread_needs_no_body_where_no_page_asks_for_it(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, gateway={"database": "sqlite:///threads.db"}) as (_, http):
        assert (await http.post("/api/v1/agents/echo/threads")).status_code == 201


# --- A page that makes its own name point at the gateway gets nothing run: raw bytes, because no HTTP client sends two
# hosts, none, or a whole URL as the target

ANSWERED, MALFORMED, UNKNOWN_PATH, FOREIGN_HOST, FOREIGN_ORIGIN = 200, 400, 404, 421, 403
HOSTS: dict[tuple[str, ...], int] = {
    **dict.fromkeys([("localhost",), ("localhost:1",), ("localhost:",)], ANSWERED),
    **dict.fromkeys([("127.0.0.1:65535",), ("[::1]",), ("[::1]:24200",)], ANSWERED),
    **dict.fromkeys([("evil.example",), ("evil.example:24200",), ("localhost.",), ("",)], FOREIGN_HOST),
    **dict.fromkeys([("localhost, evil.example",), ("localhost/evil.example",), ("localhost:80:80",)], FOREIGN_HOST),
    **dict.fromkeys([("127.1",), ("127.0.0.2",), ("2130706433",), ("0x7f.1",), ("[::2]",), ("[::1",)], FOREIGN_HOST),
    **dict.fromkeys([("[::1].evil.example",), ("[::1]evil.example:24200",)], FOREIGN_HOST),
    **dict.fromkeys([("[::ffff:127.0.0.1]",), ("[fe80::1%25lo]",)], FOREIGN_HOST),
    **dict.fromkeys([(), ("localhost", "evil.example"), ("evil.example", "localhost")], MALFORMED),
}
TARGETS = ("http://evil.example", "http://localhost", "https://localhost:443", "//evil.example", "evil.example:80")


async def status_of(
    port: int, *, hosts: Sequence[str], target: str = MCP, version: str = "1.1", extra: str = ""
) -> int:
    """The status of one call of the agent, sent as it is told."""
    body = json.dumps(CALL)
    lines = [f"POST {target} HTTP/{version}", *(f"Host: {host}" for host in hosts), *extra.splitlines()]
    lines += ["Accept: application/json, text/event-stream", "Content-Type: application/json"]
    lines += ["Connection: close", f"Content-Length: {len(body)}", "", body]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write("\r\n".join(lines).encode())
        answer = await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()
        await writer.wait_closed()
    return int(answer.split(b" ", 2)[1])


async def test_hosts_are_refused_unless_they_are_the_gateways_own_whatever_their_form(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        port = served.gateway.addresses.registry_port
        statuses = {hosts: await status_of(port, hosts=hosts) for hosts in HOSTS}
        without = await status_of(port, hosts=(), version="1.0")  # which may leave the Host out
        forwarded = await status_of(
            port, hosts=["evil.example"], extra="X-Forwarded-Host: localhost\nForwarded: host=localhost"
        )
        two_pages = await status_of(
            port, hosts=["localhost"], extra="Origin: http://evil.example\nOrigin: http://localhost"
        )
        ran = served.metric("pallas_send_message_total", agent="echo", outcome="ok")

    assert statuses == HOSTS
    assert (without, forwarded, two_pages) == (FOREIGN_HOST, FOREIGN_HOST, FOREIGN_ORIGIN)
    assert ran == list(HOSTS.values()).count(ANSWERED)


async def test_a_whole_url_as_the_target_gets_past_no_guard(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        port = served.gateway.addresses.registry_port
        statuses = {
            (target, host): await status_of(port, hosts=[host], target=target + MCP)
            for target in TARGETS
            for host in ("localhost", "evil.example")
        }
        ran = served.metric("pallas_send_message_total", agent="echo", outcome="ok")

    assert set(statuses.values()) <= {MALFORMED, UNKNOWN_PATH, FOREIGN_HOST}
    assert ran == 0


async def test_an_agents_own_port_is_guarded_too(tmp_path: Path) -> None:
    with reserved_port() as port, reserved_port() as registry_port:
        project = write_project(
            tmp_path,
            {"echo": Agent(settings={"port": port})},
            gateway={"per_port": True, "port": registry_port, "host": "127.0.0.1"},
            deployment={"registry_port": registry_port},
        )
        async with running(project):
            statuses = [
                await status_of(port, hosts=[f"{host}:{port}"], target="/mcp", extra=extra)
                for host, extra in (
                    ("localhost", ""),
                    ("evil.example", ""),
                    ("localhost", "Origin: http://evil.example"),
                )
            ]

    assert statuses == [ANSWERED, FOREIGN_HOST, FOREIGN_ORIGIN]
