"""Clients know the gateway by https:// only: no answer of any kind leads them to http://, or anywhere else.

Every route and every refusal, with TLS at an ingress (`public_url`) and in the gateway. One combination is left out: in
per-port mode agents' URLs follow `gateway.tls` alone, so behind an ingress they are http://; `serve` and `check` warn.
"""

from __future__ import annotations

import itertools
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

import httpx
import pytest

from pallas_gateway.config.loading.loader import Overrides
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.clients import MODERN_VERSION, tool_params
from tests.support.gateway import Agent, running, write_project
from tests.support.guarded import METADATA, Guarded, bearer, guarded
from tests.support.listener import reserved_port

PUBLIC = "https://agents.example.com/base"
LIMIT = 20_000
PAGE = "https://app.example.com"
REGISTRY = ("/.well-known/mcp/server.json", "/v0.1/servers")
PATHS = [
    *("/livez", "/readyz", "/readyz?strict=1", "/metrics", *REGISTRY, "/livez/", "/metrics/", f"{REGISTRY[0]}/"),
    *("/agents/echo/mcp", "/agents/echo/mcp/", "/agents/nope/mcp", "/agents/nope/mcp/", "/mcp", "/mcp/"),
    *(f"{METADATA}/agents/echo/mcp", f"{METADATA}/base/agents/echo/mcp", f"{METADATA}/mcp", f"{METADATA}/"),
    *("/", "/agents", "/agents/", "/agents/echo", "/agents/echo/", "/nothing", "//evil.example/agents/echo/mcp"),
]
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool_params("echo", {"message": "hello"})}
BODIES: list[Any] = [
    CALL,
    {**CALL, "params": {"name": "get_health", "arguments": {}}},
    {**CALL, "params": {"name": "nope", "arguments": {}}},
    *({"jsonrpc": "2.0", "id": 1, "method": method} for method in ("tools/list", "prompts/list", "ping", "no/such")),
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    [CALL],
    {"no": "rpc"},
]
PREFLIGHT = {"access-control-request-method": "POST"}
FORGED = {  # a proxy that is trusted and says so
    "x-forwarded-proto": "http",
    "x-forwarded-host": "plain.example.com",
    "x-forwarded-for": "203.0.113.9",
    "x-forwarded-port": "80",
}


@dataclass(frozen=True)
class Setting:
    """How the gateway is served, and how many of the requests are sent: all, or one in `step`."""

    tls: bool
    public_url: str | None
    per_port: bool
    step: int = 1

    @override
    def __str__(self) -> str:
        where = "per port" if self.per_port else "one port"
        return f"{where}, {'TLS' if self.tls else 'plain'}, {'public_url' if self.public_url else 'no public_url'}"


SETTINGS = [
    Setting(tls=False, public_url=PUBLIC, per_port=False, step=3),  # of a path 22, so nearly each with each
    pytest.param(Setting(tls=True, public_url=None, per_port=False), marks=pytest.mark.whole),
    pytest.param(Setting(tls=True, public_url=PUBLIC, per_port=True), marks=pytest.mark.whole),
]


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with ExitStack() as reserved:
        yield [reserved.enter_context(reserved_port()) for _ in range(3)]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
async def test_no_answer_leads_to_plain_http_or_elsewhere(setting: Setting, ports: list[int], tmp_path: Path) -> None:
    tls = write_certificate(tmp_path) if setting.tls else None
    async with guarded(
        tmp_path,
        agents={
            name: Agent(settings={"port": port, "icon": "/icon.svg"})
            for name, port in zip(("echo", "other"), ports[1:], strict=True)
        },
        jwt={"audience": "test", "authorization_servers": ["https://login.example.com"]},
        gateway={
            "host": "127.0.0.1",
            "port": ports[0],
            "max_body_bytes": LIMIT,
            "allowed_origins": [PAGE],
            "trusted_proxies": ["127.0.0.1"],
            **({"tls": TLS_FILES} if setting.tls else {}),
            **({"public_url": setting.public_url} if setting.public_url else {}),
        },
        deployment={"host": "127.0.0.1", "registry_port": ports[0]},
        overrides=Overrides(per_port=setting.per_port),
    ) as g:
        statuses: Counter[int] = Counter()
        scheme = "https" if setting.tls else "http"
        bases = [f"{scheme}://127.0.0.1:{port}" for port in (ports[:2] if setting.per_port else ports[:1])]
        for base in bases:
            statuses += await walked(base, tls, g, PATHS, setting.step)
        g.served.gateway.calls.draining = True  # as it is once the gateway stops
        statuses += await walked(bases[-1], tls, g, ("/agents/echo/mcp", "/mcp", "/readyz"), setting.step)

    assert {200, 204, 304, 400, 401, 403, 404, 405, 413, 421, 503} <= set(statuses)


async def walked(base: str, tls: ssl.SSLContext | None, g: Guarded, paths: Sequence[str], step: int) -> Counter[int]:
    statuses: Counter[int] = Counter()
    async with httpx.AsyncClient(base_url=base, verify=tls or True, trust_env=False, timeout=30) as http:
        for method, path, headers, body in itertools.islice(requests(g, paths), 0, None, step):
            url = httpx.URL(base).copy_with(raw_path=path.encode())
            answer = await http.request(method, url, headers=headers, json=body)
            assert_leads_nowhere(answer)
            statuses[answer.status_code] += 1
        for path in REGISTRY:
            etag = (await http.get(path)).headers.get("etag", "none")
            again = await http.get(path, headers={"if-none-match": etag})
            assert_leads_nowhere(again)
            statuses[again.status_code] += 1
    return statuses


def requests(g: Guarded, paths: Sequence[str]) -> Iterator[tuple[str, str, Mapping[str, str], Any]]:
    run = {"authorization": bearer(g.token(aud="test"))}
    view = {"authorization": bearer(g.token("view:agents", aud="test"))}
    nothing = {"authorization": bearer(g.token("", aud="test"))}
    rejected = {"authorization": bearer("garbage")}
    said: list[dict[str, str]] = [
        {**view, "origin": PAGE},
        {**run, **FORGED},
        {"forwarded": "for=203.0.113.9;proto=http;host=plain.example.com"},
        {"host": "evil.example", **run},
        {"origin": "https://evil.example", **PREFLIGHT},
        {"origin": PAGE, **PREFLIGHT},
    ]
    for path, method in itertools.product(paths, METHODS):
        for headers in said if method in ("GET", "POST", "OPTIONS") else said[:2]:
            yield method, path, {**ACCEPT, **headers}, CALL if method == "POST" else None
    for path, headers, body in itertools.product(
        ("/agents/echo/mcp", "/mcp"), (run, view, nothing, rejected), [*BODIES, "x" * LIMIT * 2]
    ):
        for modern in ({}, {"mcp-protocol-version": MODERN_VERSION}):
            yield "POST", path, {**ACCEPT, **headers, **modern}, body


ACCEPT = {"accept": "application/json, text/event-stream"}


def assert_leads_nowhere(answer: httpx.Response) -> None:
    """No redirect, and no plain URL in any header or in the body."""
    asked = f"{answer.request.method} {answer.request.url} {dict(answer.request.headers)}"
    assert answer.status_code == 304 or not answer.is_redirect, asked
    assert "location" not in answer.headers, asked
    everything = f"{answer.headers.multi_items()}\n{answer.text}".lower()
    assert "http://" not in everything.replace("\\/", "/"), (asked, everything)
    assert "plain.example.com" not in everything, asked
    assert answer.status_code != 500, asked


@pytest.mark.parametrize("trusted", [True, False])
async def test_pages_of_an_allowed_host_are_its_own_where_its_proxy_speaks_https(trusted: bool, tmp_path: Path) -> None:
    gateway = {"allowed_hosts": ["extra.example.org"], **({"trusted_proxies": ["127.0.0.1"]} if trusted else {})}
    page = {**ACCEPT, "host": "extra.example.org", "origin": "https://extra.example.org"}
    path = "/agents/echo/mcp"
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway=gateway)) as served:
        answer = await served.request("POST", path, json=CALL, headers={**page, "x-forwarded-proto": "https"})
        rebound = {
            **page,
            "host": "evil.example",
            "x-forwarded-host": "extra.example.org",
            "x-forwarded-proto": "https",
        }
        refused = await served.request("POST", path, json=CALL, headers=rebound)
        elsewhere = {**rebound, "host": "extra.example.org", "x-forwarded-host": "agents.example.com"}
        del elsewhere["origin"]
        for listing in REGISTRY:
            plain, forwarded = [await served.request("GET", listing, headers=one) for one in ({}, elsewhere)]
            assert (forwarded.status_code, forwarded.content) == (200, plain.content)
    assert (answer.status_code, refused.status_code) == (200 if trusted else 403, 421)
