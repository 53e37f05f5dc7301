"""Whose token goes where, one case at a time: callers in turn, own authorization, probes, tool lists, peers."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, override

import pytest
from fastmcp import FastMCP
from fastmcp.server.dependencies import get_http_headers
from fastmcp.server.middleware import Middleware

from tests.e2e.forwarding import (
    ANN,
    BOB,
    FORWARDS,
    KINDS,
    NOBODY,
    OWN_TOKEN,
    TOKENS,
    Noting,
    ask_as,
    assert_tool_calls_are_their_callers,
    bearers,
    noting,
    one_user,
    smuggled,
    told_the_model,
    use_everything,
    who_asked,
    world,
)
from tests.support.calling import EACH_VERSION, answer_of, ask, health
from tests.support.clients import raw_client
from tests.support.downstreams import Recorder
from tests.support.gateway import Agent, until_idle
from tests.support.listener import reserved_port, serve_app
from tests.support.scripted_llm import call_tools, hang, say
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fastmcp.tools import Tool

    from tests.support.asgi import AsgiApp, Receive, Scope, Send
    from tests.support.gateway import Limits
    from tests.support.scripted_llm import LlmRequest, Turn

pytestmark = pytest.mark.usefixtures("patience")


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_anonymous_caller_after_a_named_one_sends_no_token(version: str, tmp_path: Path) -> None:
    downstreams = [Noting(name, **kind) for name, kind in KINDS.items()]
    async with one_user(tmp_path, *downstreams) as it:
        for who in (NOBODY, ANN, NOBODY, BOB, NOBODY):
            await ask_as(it, who, version=version)
            await until_idle(it.served)
            for downstream in downstreams:
                assert bearers(downstream.recorder.requests) == {TOKENS[who]}
                assert [who_asked(call) for call in downstream.recorder.calls("note")] == [who]
                downstream.recorder.clear()


# --- Whose authorization


async def test_authorization_that_a_server_has_of_its_own_wins(tmp_path: Path) -> None:
    downstreams = [
        Noting(header, settings={**FORWARDS, "headers": {header: f"Bearer {OWN_TOKEN}"}})
        for header in ("Authorization", "authorization", "AUTHORIZATION")
    ]
    async with one_user(tmp_path, *downstreams) as it:
        for who in TOKENS:
            assert (await ask_as(it, who)).count(" noted ") == len(downstreams)
        await until_idle(it.served)

    assert [bearers(downstream.recorder.requests) for downstream in downstreams] == [{OWN_TOKEN}] * len(downstreams)


async def test_name_and_password_in_a_servers_url_are_its_own_authorization(tmp_path: Path) -> None:
    marked, plain = Noting("marked"), Noting("plain")
    async with marked.serve(), plain.serve():
        servers: dict[str, dict[str, Any]] = {
            "marked": {"url": marked.url.replace("//", "//team:secret%21@"), **FORWARDS},
            "plain": {"url": plain.url.replace("//", "//team@")},
        }
        async with world(tmp_path, {"user": Agent(servers=list(servers))}, servers) as it:
            for who in TOKENS:
                assert (await ask_as(it, who)).count(" noted ") == len(servers)
            await health(it.url(), bearer=TOKENS[ANN])
            await until_idle(it.served)

    assert authorizations(marked.recorder) == {basic("team:secret!")}
    assert authorizations(plain.recorder) == {basic("team:")}
    assert smuggled(marked.recorder) + smuggled(plain.recorder) == []


def basic(name_and_password: str) -> str:
    return f"Basic {base64.b64encode(name_and_password.encode()).decode()}"


def authorizations(recorder: Recorder) -> set[str | None]:
    return {request.headers.get("authorization") for request in recorder.requests}


async def test_only_a_bearer_is_handed_on(tmp_path: Path) -> None:
    notes = Noting()
    async with one_user(tmp_path, notes) as it:
        for authorization in (basic("ann:secret"), "Bearer", "token-of-ann", "Digest username=ann"):
            for version in EACH_VERSION:
                await ask(it.url(), ANN, version=version, headers={"authorization": authorization})
        await until_idle(it.served)

    assert authorizations(notes.recorder) == {None}


async def test_servers_of_the_older_sse_transport_are_told_apart_the_same_way(tmp_path: Path) -> None:
    opted, closed = (Recorder(noting(name).http_app(path="/sse", transport="sse")) for name in ("opted", "closed"))
    async with serve_app(opted) as one, serve_app(closed) as other:
        servers: dict[str, dict[str, Any]] = {
            "opted": {"transport": "sse", "url": f"{one.base_url}/sse", **FORWARDS},
            "closed": {"transport": "sse", "url": f"{other.base_url}/sse"},
        }
        async with world(tmp_path, {"user": Agent(servers=list(servers))}, servers) as it:
            for who, token in TOKENS.items():
                opted.clear()
                assert (await ask_as(it, who)).count(" noted ") == 2
                await until_idle(it.served)
                assert bearers(opted.requests) == {token}
            await health(it.url(), bearer=TOKENS[ANN])

    assert bearers(closed.requests) == {None}
    assert smuggled(opted) + smuggled(closed) == []


TEAM = """
from fast_agent import FastAgent

fast = FastAgent("user", parse_cli_args=False)


@fast.agent(name="scout", instruction="You are scout.", servers=["notes", "closed"])
async def scout() -> None: ...


@fast.agent(name="user", instruction="You are user.", agents=["scout"], default=True)
async def user() -> None: ...
"""


async def test_agents_that_an_agent_uses_as_tools_carry_its_callers_token(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if "agent__scout" in request.tools and not request.tool_results:
            return call_tools([("agent__scout", {"message": request.last_user_text})] * 2)
        return use_everything(request)

    notes, closed = Noting(), Noting("closed", settings={})
    async with notes.serve(), closed.serve():
        servers = {"notes": notes.entry, "closed": closed.entry}
        async with world(tmp_path, {"user": Agent(source=TEAM)}, servers, script=script) as it:
            await asyncio.gather(*(ask_as(it, who) for who in TOKENS))
            await until_idle(it.served)

    assert len(notes.recorder.calls("note")) == 2 * len(TOKENS)
    assert_tool_calls_are_their_callers(notes.recorder)
    assert bearers(closed.recorder.requests) == {None}


# --- Probes


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_health_probe_carries_no_token_of_whoever_asks(version: str, tmp_path: Path, limits: Limits) -> None:
    limits.gateway.health.fresh_seconds = 0
    downstreams = [Noting(name, **kind) for name, kind in KINDS.items()]
    async with one_user(tmp_path, *downstreams) as it:
        await ask_as(it, ANN, version=version)
        await until_idle(it.served)
        for downstream in downstreams:
            downstream.recorder.clear()
        for who in (ANN, BOB):
            assert (await health(it.url(), version=version, bearer=TOKENS[who]))["status"] == "ok"

    assert [bearers(downstream.recorder.requests) for downstream in downstreams] == [{None}] * len(downstreams)


async def test_callers_who_ask_for_health_at_once_share_a_round_without_a_token(tmp_path: Path) -> None:
    gate = Gate()

    def holding(app: AsgiApp) -> AsgiApp:
        async def held(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await gate.enter()
            await app(scope, receive, send)

        return held

    notes = Noting(wrapped=holding)
    async with one_user(tmp_path, notes) as it, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(raw_client(it.url(), protocol_version=version, bearer=TOKENS[who]))
            for version in EACH_VERSION
            for who in TOKENS
        ]
        asking = [asyncio.create_task(client.call_tool("get_health")) for client in clients]
        await gate.wait_for_entered()
        gate.open()
        assert [json.loads(answer_of(await reply).text)["status"] for reply in asking] == ["ok"] * len(clients)

    assert notes.recorder.rpc_methods == ["initialize"]
    assert bearers(notes.recorder.requests) == {None}


# --- Tool lists that depend on the token


class OnlyTheirs(Middleware):
    """Shows each caller the tool that is named after its token, and nobody else's."""

    @override
    async def on_list_tools(self, context: Any, call_next: Any) -> Sequence[Tool]:
        authorization = get_http_headers(include={"authorization"}).get("authorization")
        theirs = their_tool(authorization and authorization.removeprefix("Bearer "))
        return [tool for tool in await call_next(context) if tool.name == theirs]


def personal(name: str) -> FastMCP:
    """A server whose tools depend on who asks, and which claims that its lists may be shared and kept for an hour."""
    server = FastMCP(name, middleware=[OnlyTheirs()], cache_ttl=3600, cache_scope="public")

    for tool in ("ann", "bob", "nobody"):

        @server.tool(name=tool)
        def note(who: str) -> str:
            """Note who asked."""
            return f"noted {who}"

    return server


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("version", EACH_VERSION)
async def test_tool_lists_are_never_mixed_between_callers(version: str, at_once: bool, tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say(" ".join(request.tools))
        turn = call_tools([(tool, {"who": request.last_user_text}) for tool in request.tools])
        return hang(gate, turn) if at_once else turn

    downstreams = [Noting(name, **kind, server=personal(name)) for name, kind in KINDS.items()]
    everybody = [ANN, NOBODY, BOB, ANN, BOB, NOBODY]
    async with one_user(tmp_path, *downstreams, script=script) as it:
        if at_once:
            asking = [asyncio.create_task(ask_as(it, who, version=version)) for who in everybody]
            await gate.wait_for_entered(len(everybody))
            gate.open()
            seen = [await asked for asked in asking]
        else:
            seen = [await ask_as(it, who, version=version) for who in everybody]

    assert seen == [" ".join(f"{name}__{their_tool(TOKENS[who])}" for name in KINDS) for who in everybody]
    for downstream in downstreams:
        assert {(call.tool, call.bearer) for call in downstream.recorder.calls()} == {
            (their_tool(token), token) for token in TOKENS.values()
        }


def their_tool(token: str | None) -> str:
    return token.removeprefix("token-of-") if token else "nobody"


# --- Peers


@pytest.mark.parametrize("marked", [True, False])
async def test_token_goes_from_hop_to_hop_where_each_of_them_was_marked(marked: bool, tmp_path: Path) -> None:
    """`user` calls `middle`, that calls `last`, that calls `notes`; `marked` says if `last` is, for `middle`."""
    notes, closed = Noting(), Noting("closed", settings={})
    async with notes.serve(), closed.serve():
        with reserved_port() as middle, reserved_port() as last:
            agents = {
                "user": Agent(servers=["middle"]),
                "middle": Agent(servers=["last"], settings={"port": middle}),
                "last": Agent(servers=["notes", "closed"], settings={"port": last}),
            }
            servers: dict[str, dict[str, Any]] = {
                "middle": {"url": f"http://localhost:{middle}/mcp", **FORWARDS},
                "last": {"url": f"http://localhost:{last}/mcp", "forward_inbound_auth": marked},
                "notes": notes.entry,
                "closed": closed.entry,
            }
            async with world(tmp_path, agents, servers) as it:
                for version in EACH_VERSION:
                    for who in TOKENS:
                        assert (await ask_as(it, who, version=version)).count(" noted ") == 2
                await until_idle(it.served)

    carried = {who_asked(call): call.bearer for call in notes.recorder.calls("note")}
    assert carried == (TOKENS if marked else dict.fromkeys(TOKENS))
    assert bearers(notes.recorder.requests) == set(carried.values())
    assert bearers(closed.recorder.requests) == {None}
    assert smuggled(notes.recorder) + smuggled(closed.recorder) + told_the_model(it.llm) == []
