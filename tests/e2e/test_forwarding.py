"""Whose token goes where, one case at a time: callers in turn, own authorization, probes, tool lists, peers."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.forwarding import (
    ANN,
    BOB,
    FORWARDS,
    KINDS,
    NOBODY,
    OLD_PATH,
    OWN_TOKEN,
    TOKENS,
    Noting,
    ask_as,
    assert_tool_calls_are_their_callers,
    bearers,
    moved,
    noting,
    one_user,
    redirecting,
    sessions_of,
    smuggled,
    told_the_model,
    use_everything,
    who_asked,
    world,
)
from tests.support.asgi import AsgiApp, Receive, Scope, Send, respond
from tests.support.calling import EACH_VERSION, answer_of, ask, health
from tests.support.clients import raw_client
from tests.support.downstreams import HttpRequest, Recorder
from tests.support.gateway import Agent, Limits, module_of, until_idle
from tests.support.listener import reserved_port, serve_app
from tests.support.scripted_llm import LlmRequest, Script, Turn, call_tools, hang
from tests.support.waiting import Gate

pytestmark = pytest.mark.usefixtures("patience")


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_anonymous_caller_after_a_named_one_sends_no_token(version: str, tmp_path: Path) -> None:
    opted = Noting("opted", settings={"auth": {"forward": "huggingface"}})  # fast-agent's own word for it
    downstreams = [opted, *(Noting(name, **kind) for name, kind in KINDS.items())]
    async with one_user(tmp_path, *downstreams) as it:
        for who in (NOBODY, ANN, NOBODY, BOB, NOBODY):
            await ask_as(it, who, version=version)
            await until_idle(it.served)
            for downstream in downstreams:
                assert bearers(downstream.recorder.requests) == {TOKENS[who]}
                assert [who_asked(call) for call in downstream.recorder.calls("note")] == [who]
                downstream.recorder.clear()


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


TEAM = module_of(
    'agent(name="scout", instruction="You are scout.", servers=["notes", "closed"])',
    'agent(name="user", instruction="You are user.", agents=["scout"], default=True)',
)


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


# --- Detours: sessions and their streams, retries, redirects


EACH_KIND = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.whole] * (kind == "initialize")) for kind in KINDS]
)


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_stream_and_end_of_a_session_carry_the_token_of_the_call_that_has_it(
    version: str, tmp_path: Path
) -> None:
    gate = Gate()
    notes = Noting(era="initialize", stateless=False)
    async with one_user(tmp_path, notes, script=held_at(gate)) as it:
        async with asyncio.TaskGroup() as group:
            for who in TOKENS:
                group.create_task(ask_as(it, who, version=version))
            await gate.wait_for_entered(len(TOKENS))
            await notes.recorder.until(lambda recorder: len(streams(recorder)) == len(TOKENS))
            gate.open()
        await until_idle(it.served)

    sessions = sessions_of(notes.recorder).values()
    assert len(sessions) == len(TOKENS)
    for session in sessions:
        assert {request.method for request in session} == {"GET", "POST", "DELETE"}
        who = next(who_asked(request) for request in session if request.tool)
        assert bearers(session) == {TOKENS[who]}


async def test_stream_that_is_opened_anew_carries_the_same_token(tmp_path: Path) -> None:
    """A server may end the stream of a session; the client comes back for it after the pause it was told."""
    gate, cut = Gate(), CutStreams()
    notes = Noting(era="initialize", stateless=False, wrapped=cut.wrapping)
    async with one_user(tmp_path, notes, script=held_at(gate)) as it:
        async with asyncio.TaskGroup() as group:
            for who in (ANN, BOB):
                group.create_task(ask_as(it, who))
            await gate.wait_for_entered(2)
            await notes.recorder.until(lambda recorder: len(streams(recorder)) >= 6)
            gate.open()
        await until_idle(it.served)

    for session in sessions_of(notes.recorder).values():
        who = next(who_asked(request) for request in session if request.tool)
        assert len([request for request in session if request.method == "GET"]) > 1
        assert bearers(session) == {TOKENS[who]}


class CutStreams:
    """Ends every GET stream at once and has the client come back without a pause."""

    def wrapping(self, app: AsgiApp) -> AsgiApp:
        async def cutting(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["method"] == "GET":
                await respond(send, 200, "retry: 10\nid: 1\ndata:\n\n", content_type="text/event-stream")
            else:
                await app(scope, receive, send)

        return cutting


def streams(recorder: Recorder) -> list[HttpRequest]:
    return [request for request in recorder.requests if request.method == "GET"]


def held_at(gate: Gate) -> Script:
    """A model that waits at the gate before it uses its tools."""

    def script(request: LlmRequest) -> Turn:
        turn = use_everything(request)
        return turn if request.tool_results else hang(gate, turn)

    return script


@EACH_KIND
async def test_what_follows_a_refused_request_carries_the_callers_own_token(kind: str, tmp_path: Path) -> None:
    """One request is answered 503: who tries again (client or model), and the next caller, still have their own."""
    stumble = Stumble(503)
    notes = Noting(**KINDS[kind], wrapped=stumble.wrapping, settings={**FORWARDS, "listing_seconds": 0})
    methods = {"server/discover", "tools/list", "tools/call"}
    if kind != "modern":
        methods |= {"initialize", "notifications/initialized"}
    async with one_user(tmp_path, notes, script=persistent) as it:
        for method in sorted(methods):
            stumble.next_at = method
            for who in (ANN, BOB, NOBODY):
                notes.recorder.clear()
                await ask_as(it, who)
                await until_idle(it.served)
                assert bearers(notes.recorder.requests) == {TOKENS[who]}
            assert [who_asked(call) for call in notes.recorder.calls("note")] == [NOBODY]
            assert stumble.next_at is None


async def test_session_that_a_server_forgot_is_opened_anew_with_the_same_token(tmp_path: Path) -> None:
    stumble = Stumble(404)
    stumble.next_at = "tools/call"
    notes = Noting(era="initialize", stateless=False, wrapped=stumble.wrapping)
    async with one_user(tmp_path, notes) as it:
        assert "noted" in await ask_as(it, ANN)
        await until_idle(it.served)
        assert [request.rpc_method for request in notes.recorder.requests].count("initialize") == 2
        assert bearers(notes.recorder.requests) == {TOKENS[ANN]}
        assert "noted" in await ask_as(it, BOB)

    assert_tool_calls_are_their_callers(notes.recorder)


def persistent(request: LlmRequest) -> Turn:
    """A model that uses its tools once more if that failed."""
    results = " ".join(request.tool_results.values())
    return use_everything(request) if " noted " in results or len(request.tool_results) != 1 else again(request)


def again(request: LlmRequest) -> Turn:
    return call_tools([(tool, {"who": request.last_user_text}) for tool in request.tools])


class Stumble:
    """Answers one request of the JSON-RPC method `next_at` with a status, and all others well."""

    def __init__(self, status: int) -> None:
        self.next_at: str | None = None
        self._status = status

    def wrapping(self, app: AsgiApp) -> AsgiApp:
        async def stumbling(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or self.next_at is None:
                await app(scope, receive, send)
                return
            message = await receive()
            if json.loads(message.get("body") or b"{}").get("method") == self.next_at:
                self.next_at = None
                await respond(send, self._status, "not now", content_type="text/plain")
                return
            await app(scope, replayed(message, receive), send)

        return stumbling


def replayed(message: Any, receive: Receive) -> Receive:
    pending = [message]

    async def next_message() -> Any:
        return pending.pop() if pending else await receive()

    return next_message


@EACH_KIND
async def test_redirect_within_the_origin_keeps_the_token(kind: str, tmp_path: Path) -> None:
    downstreams = [moved(f"moved{status}", status, **KINDS[kind]) for status in (307, 308)]
    async with one_user(tmp_path, *downstreams) as it:
        for who, token in TOKENS.items():
            assert (await ask_as(it, who)).count(" noted ") == len(downstreams)
            await until_idle(it.served)
            for downstream in downstreams:
                for path in (OLD_PATH, "/mcp"):
                    assert bearers(r for r in downstream.recorder.requests if r.path == path) == {token}
                downstream.recorder.clear()


@pytest.mark.parametrize("where", ["another port", "another name", "another port, then back"])
async def test_a_redirect_to_another_origin_is_not_followed(where: str, tmp_path: Path) -> None:
    def away_from(name: str) -> str:
        if where == "another name":
            return away[name].url.replace("127.0.0.1", "localhost")
        return elsewhere.url if where == "another port" else elsewhere.url.removesuffix("mcp") + "back"

    elsewhere = Noting("elsewhere", wrapped=redirecting("/back", 307, lambda: away["moved307"].url))
    away = {
        (name := f"moved{status}"): Noting(
            name, wrapped=redirecting(OLD_PATH, status, partial(away_from, name)), path=OLD_PATH
        )
        for status in (301, 302, 303, 307, 308)
    }
    async with elsewhere.serve(), one_user(tmp_path, *away.values()) as it:
        for who in TOKENS:
            await ask_as(it, who)
        await health(it.url(), bearer=TOKENS[ANN])
        await until_idle(it.served)

    assert elsewhere.recorder.requests == []
    for downstream in away.values():
        assert {request.path for request in downstream.recorder.requests} == {OLD_PATH}
        assert bearers(downstream.recorder.requests) == set(TOKENS.values())
