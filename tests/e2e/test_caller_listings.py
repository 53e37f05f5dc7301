"""Listings that are cached for each caller: how many requests that saves, whose they are, and what ends them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, override

import pytest
from fastmcp import FastMCP
from fastmcp.server.dependencies import get_http_headers
from fastmcp.server.middleware import Middleware
from fastmcp.tools import Tool, ToolResult

from tests.e2e.forwarding import (
    ANN,
    BOB,
    FORWARDS,
    KINDS,
    NOBODY,
    TOKENS,
    Noting,
    World,
    ask_as,
    bearers,
    noting,
    one_user,
    use_everything,
    world,
)
from tests.support.asgi import AsgiApp, Receive, Scope, Send, headers_of, respond
from tests.support.calling import EACH_VERSION, ask
from tests.support.gateway import Agent, Limits, until_idle
from tests.support.listener import reserved_port, serve_app
from tests.support.pairs import pairs
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say
from tests.support.token_endpoint import AuthorizationServer

pytestmark = pytest.mark.usefixtures("patience")
NAMES = {ANN: "ann", BOB: "bob", NOBODY: "nobody"}
LISTED = ["server/discover", "tools/list", "tools/call"]
KNOWN = ["tools/call"]


async def requests_of(it: World, notes: Noting, who: str, **more: Any) -> list[str]:
    """The JSON-RPC requests of one call at the downstream."""
    notes.recorder.clear()
    await ask_as(it, who, **more)
    await until_idle(it.served)
    return notes.recorder.rpc_methods


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_second_call_of_a_caller_sends_only_the_tool_call(version: str, tmp_path: Path) -> None:
    notes = Noting(era="modern")
    async with one_user(tmp_path, notes) as it:
        for who in TOKENS:
            assert await requests_of(it, notes, who, version=version) == LISTED
            assert await requests_of(it, notes, who, version=version) == KNOWN
            assert bearers(notes.recorder.requests) == {TOKENS[who]}


@pytest.mark.parametrize("kind", ["initialize", "stateful"])
async def test_second_call_to_a_server_of_the_older_era_only_has_its_own_session(kind: str, tmp_path: Path) -> None:
    notes = Noting(**KINDS[kind])
    async with one_user(tmp_path, notes) as it:
        sessions = set()
        for who in (ANN, BOB, ANN, BOB):
            methods = await requests_of(it, notes, who)
            sessions |= {one.headers.get("mcp-session-id") for one in notes.recorder.requests}
        assert methods == ["initialize", "notifications/initialized", "tools/call"]
        assert not [one for one in notes.recorder.requests if "cookie" in one.headers]
    assert len(sessions - {None}) == (4 if kind == "stateful" else 0)


async def test_call_that_uses_no_tool_sends_nothing_once_the_listing_is_known(tmp_path: Path) -> None:
    notes = Noting(era="modern")
    async with one_user(tmp_path, notes, script=lambda request: say(" ".join(request.tools))) as it:
        assert await requests_of(it, notes, ANN) == LISTED[:2]
        assert await requests_of(it, notes, ANN) == []
        assert await ask_as(it, ANN) == "notes__note"


async def test_listing_is_used_for_its_time_and_for_no_longer(tmp_path: Path, limits: Limits) -> None:
    now = 0.0
    limits.runtime.listings.clock = lambda: now
    notes = Noting(era="modern", settings={**FORWARDS, "listing_seconds": 20})
    async with one_user(tmp_path, notes) as it:
        assert await requests_of(it, notes, ANN) == LISTED
        now = 19.0
        assert await requests_of(it, notes, ANN) == KNOWN
        now = 20.0
        assert await requests_of(it, notes, ANN) == LISTED


@pytest.mark.parametrize("settings", [FORWARDS, {}])
async def test_listing_is_never_kept_if_it_may_be_kept_for_0_seconds(settings: dict[str, Any], tmp_path: Path) -> None:
    notes = Noting(era="modern", settings={**settings, "listing_seconds": 0})
    async with one_user(tmp_path, notes) as it:
        for _ in range(2):
            assert await requests_of(it, notes, NOBODY) == LISTED


@pytest.mark.parametrize("forwarded", [True, False])
async def test_ttl_of_a_server_that_sets_one_shortens_the_time(forwarded: bool, tmp_path: Path, limits: Limits) -> None:
    now = 0.0
    limits.runtime.listings.clock = lambda: now
    notes = Noting(era="modern", server=noting("notes", cache_ttl=5), settings=FORWARDS if forwarded else {})
    async with one_user(tmp_path, notes) as it:
        await notes_known(it, notes)
        now += 4
        assert await requests_of(it, notes, ANN) == KNOWN
        now += 2
        assert "tools/list" in await requests_of(it, notes, ANN)


async def notes_known(it: World, notes: Noting) -> None:
    while await requests_of(it, notes, ANN) != KNOWN:
        pass


async def test_exchanged_token_that_is_renewed_finds_the_callers_listing(tmp_path: Path) -> None:
    login = AuthorizationServer(expires_in=1)  # less than the reserve: each request has its token exchanged
    async with serve_app(login.app) as serving:
        exchange = {"token_endpoint": f"{serving.base_url}/token", "client_id": "pallas"}
        notes = Noting(era="modern", settings={**FORWARDS, "token_exchange": exchange})
        async with notes.serve(), world(tmp_path, {"user": Agent(["notes"])}, {"notes": notes.entry}) as it:
            for who in (ANN, BOB):
                assert await requests_of(it, notes, who) == LISTED
                assert await requests_of(it, notes, who) == KNOWN
                assert notes.recorder.requests[0].bearer == login.issued[-1]
                assert login.issued[-1].endswith(f"-for-{TOKENS[who]}")
    assert len(set(login.issued)) == len(login.issued) > 4


@pytest.mark.parametrize("per_port", [False, True])
async def test_peer_that_forwards_knows_the_listing_of_each_caller(per_port: bool, tmp_path: Path) -> None:
    notes = Noting(era="modern")
    with reserved_port() as user, reserved_port() as peer, reserved_port() as registry:
        agents = {
            "user": Agent(["peer"], settings={"port": user}),
            "peer": Agent(["notes"], settings={"port": peer}),
        }
        servers = {"peer": {"url": f"http://localhost:{peer}/mcp", **FORWARDS}}
        more: dict[str, Any] = {"gateway": {"per_port": per_port, "host": "127.0.0.1", "port": 0}}
        more["deployment"] = {"registry_port": registry}
        async with notes.serve(), world(tmp_path, agents, {**servers, "notes": notes.entry}, **more) as it:
            url = f"http://127.0.0.1:{user}/mcp" if per_port else it.url()
            for who in (ANN, BOB):
                for expected in (LISTED, KNOWN):
                    notes.recorder.clear()
                    assert "noted" in (await ask(url, who, bearer=TOKENS[who])).text
                    await until_idle(it.served)
                    assert notes.recorder.rpc_methods == expected
                    assert bearers(notes.recorder.requests) == {TOKENS[who]}


class Personal(Middleware):
    """Gives each caller a tool and a prompt of its own, and the tool that all have its own schema and description."""

    @override
    async def on_list_tools(self, context: Any, call_next: Any) -> Sequence[Tool]:
        who, tools = asking(), await call_next(context)
        schema = {"type": "object", "properties": {f"{who}s_secret": {"type": "string"}}}
        return [
            tool.model_copy(update={"parameters": schema, "description": f"Notes of {who}."})
            for tool in tools
            if tool.name in ("note", f"{who}s_tool")
        ]

    @override
    async def on_list_prompts(self, context: Any, call_next: Any) -> Any:
        return [one for one in await call_next(context) if one.name == f"{asking()}s_prompt"]

    @override
    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        del call_next
        if "fail" in (context.message.arguments or {}):
            raise ValueError("it fails")
        return ToolResult(content=f"noted for {asking()}")


def asking() -> str:
    authorization = get_http_headers(include={"authorization"}).get("authorization", "Bearer token-of-nobody")
    return authorization.removeprefix("Bearer token-of-")


def personal() -> FastMCP:
    """A server with other tools, schemas and prompts for each caller, which declares them public for an hour."""
    server = FastMCP("notes", middleware=[Personal()], cache_ttl=3600, cache_scope="public")
    for name in ("note", *(f"{who}s_tool" for who in NAMES.values())):

        @server.tool(name=name, output_schema=None)
        def note() -> str:
            """Replaced."""
            return ""

    for who in NAMES.values():

        @server.prompt(name=f"{who}s_prompt")
        def prompt() -> str:
            """Replaced."""
            return ""

    return server


@pytest.mark.parametrize(
    "kind", [kind if kind == "modern" else pytest.param(kind, marks=pytest.mark.whole) for kind in KINDS]
)
async def test_callers_see_their_own_tools_and_schemas_under_load(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def shows_tools(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say(json.dumps(request.body["tools"]) + " ".join(request.tool_results.values()))
        return call_tools([(name, {"fail": True} if fails else {}) for name in request.tools])

    caplog.set_level("DEBUG", logger="pallas")
    listed = []
    notes = Noting(**KINDS[kind], server=personal())
    async with one_user(tmp_path, notes, script=shows_tools) as it:
        for fails in (False, False, True, False):  # noqa: B007  the script reads it
            notes.recorder.clear()
            everybody = [(who, version) for who in TOKENS for version in EACH_VERSION * 2]
            answers = await asyncio.gather(*(ask_as(it, who, version=version) for who, version in everybody))
            for (who, _), seen in zip(everybody, answers, strict=True):
                assert set(re.findall("ann|bob|nobody", seen)) == {NAMES[who]}
                assert f"{NAMES[who]}s_secret" in seen
            await until_idle(it.served)
            listed.append(notes.recorder.rpc_methods.count("tools/list"))
    assert listed[0] >= len(TOKENS)
    assert listed[1] == 0
    assert listed[3] >= len(TOKENS)  # after the errors
    logged = " ".join(str(vars(record)) for record in caplog.records)
    assert not [token for token in TOKENS.values() if token and token in logged]


class Bouncer:
    """Answers the requests of some callers with a status."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {}

    def wrapping(self, app: AsgiApp) -> AsgiApp:
        async def bounced(scope: Scope, receive: Receive, send: Send) -> None:
            token = headers_of(scope).get("authorization", "") if scope["type"] == "http" else ""
            if (status := self.refused.get(token.removeprefix("Bearer "))) is not None:
                await respond(send, status, "no")
            else:
                await app(scope, receive, send)

        return bounced


@pairs({"kind": [*KINDS], "status": [401, 403, 503]})
async def test_refused_caller_has_no_listing_any_more_and_others_keep_theirs(
    status: int, kind: str, tmp_path: Path
) -> None:
    bouncer = Bouncer()
    notes = Noting(**KINDS[kind], wrapped=bouncer.wrapping)
    async with one_user(tmp_path, notes) as it:
        for who in (ANN, BOB):
            await ask_as(it, who)
        bouncer.refused["token-of-ann"] = status
        assert "noted" not in await ask_as(it, ANN)  # with the tools of the listing, whose use is refused
        assert await ask_as(it, ANN) == "no tools"
        assert await ask_as(it, ANN) == "no tools"
        assert "tools/list" not in await requests_of(it, notes, BOB)
        bouncer.refused.clear()
        assert "tools/list" in await requests_of(it, notes, ANN)
        assert "tools/list" not in await requests_of(it, notes, ANN)


async def test_refusal_in_a_call_of_one_agent_ends_the_callers_listings_of_all_agents(tmp_path: Path) -> None:
    bouncer = Bouncer()
    notes = Noting(wrapped=bouncer.wrapping)
    agents = {"user": Agent(["notes"]), "other": Agent(["notes"])}
    async with notes.serve(), world(tmp_path, agents, {"notes": notes.entry}) as it:
        for agent in agents:
            await ask_as(it, ANN, agent=agent)
        bouncer.refused["token-of-ann"] = 403
        assert "noted" not in await ask_as(it, ANN)
        assert await ask_as(it, ANN, agent="other") == "no tools"


async def test_error_of_a_tool_has_the_caller_list_again(tmp_path: Path) -> None:
    wrong = [{"who": ANN}, {"who": ANN}, {}, {"who": ANN}, {"who": ANN}]

    def script(request: LlmRequest) -> Turn:
        return use_everything(request) if request.tool_results else call_tools([("notes__note", wrong.pop(0))])

    notes = Noting(era="modern")
    async with one_user(tmp_path, notes, script=script) as it:
        seen = [await requests_of(it, notes, ANN) for _ in range(len(wrong))]
    assert seen == [LISTED, KNOWN, KNOWN, LISTED, KNOWN]


async def test_reload_with_other_settings_empties_what_is_cached(tmp_path: Path) -> None:
    notes = Noting(era="modern")
    async with one_user(tmp_path, notes) as it:
        for expected in (LISTED, KNOWN):
            assert await requests_of(it, notes, ANN) == expected
        server = {"headers": {"x-team": "blue"}}
        it.served.project.edit(lambda settings: settings["mcp"]["servers"]["notes"].update(server), CONFIG)
        await it.served.reload()
        assert await requests_of(it, notes, ANN) == LISTED
        assert {one.headers.get("x-team") for one in notes.recorder.requests} == {"blue"}


CONFIG = "fastagent.config.yaml"
