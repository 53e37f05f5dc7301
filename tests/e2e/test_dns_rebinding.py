"""A page that makes its own name point at the gateway gets nothing run: requests as browsers and forgers send them.

Raw bytes, because no HTTP client sends two hosts, none, or a whole URL as the target. The plain cases of foreign and
own names are in `test_http_surface`, the guard's own in `tests/web`.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from tests.support.clients import tool_params
from tests.support.gateway import Agent, running, write_project
from tests.support.listener import reserved_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PATH = "/agents/echo/mcp"
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool_params("echo", {"message": "hello"})}
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
ORIGINS = {
    ("http://localhost:5173",): ANSWERED,
    ("http://[::1]:5173",): ANSWERED,
    ("null",): FOREIGN_ORIGIN,
    ("http://evil.example",): FOREIGN_ORIGIN,
    ("http://evil.example:24200",): FOREIGN_ORIGIN,
    ("http://[::2]:24200",): FOREIGN_ORIGIN,
    ("http://[::1].evil.example",): FOREIGN_ORIGIN,
    ("http://evil.example", "http://localhost"): FOREIGN_ORIGIN,
}
TARGETS = ("http://evil.example", "http://localhost", "https://localhost:443", "//evil.example", "evil.example:80")


async def status_of(
    port: int, *, hosts: Sequence[str], target: str = PATH, version: str = "1.1", extra: str = ""
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
        ran = served.metric("pallas_send_message_total", agent="echo", outcome="ok")

    assert statuses == HOSTS
    assert (without, forwarded) == (FOREIGN_HOST, FOREIGN_HOST)
    assert ran == list(HOSTS.values()).count(ANSWERED)


async def test_origins_are_refused_unless_they_are_the_gateways_own_whatever_their_form(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        port = served.gateway.addresses.registry_port
        statuses = {
            origins: await status_of(port, hosts=["localhost"], extra="\n".join(f"Origin: {o}" for o in origins))
            for origins in ORIGINS
        }
        ran = served.metric("pallas_send_message_total", agent="echo", outcome="ok")

    assert statuses == ORIGINS
    assert ran == list(ORIGINS.values()).count(ANSWERED)


async def test_a_whole_url_as_the_target_gets_past_no_guard(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        port = served.gateway.addresses.registry_port
        statuses = {
            (target, host): await status_of(port, hosts=[host], target=target + PATH)
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
