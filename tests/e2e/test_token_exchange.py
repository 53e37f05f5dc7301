"""Downstreams that get a token of their own in exchange for the caller's, and what happens when there is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.asgi import AsgiApp, Receive, Scope, Send, headers_of, respond_json
from tests.support.calling import EACH_VERSION, ask, health
from tests.support.downstreams import Downstream, stateless_downstream
from tests.support.fair_time import hastened
from tests.support.gateway import Agent, Limits, Running, running, until_idle, write_project
from tests.support.listener import reserved_port, serve_app
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say, scripted_llm
from tests.support.token_endpoint import AuthorizationServer
from tests.support.waiting import Gate

SECRET = "clients-secret"
ECHO = ("notes__echo", {"text": "hi"})


@dataclass
class Takes:
    """ASGI wrapper of a downstream that answers 401 to the tokens in `revoked`, and to requests without any."""

    app: AsgiApp
    revoked: set[str] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = headers_of(scope).get("authorization", "").removeprefix("Bearer ") if scope["type"] == "http" else "-"
        if token and token not in self.revoked:
            await self.app(scope, receive, send)
        else:
            await respond_json(send, 401, {"error": "invalid_token"}, {"www-authenticate": "Bearer"})


@dataclass(frozen=True)
class World:
    """A gateway with the agent `user`, whose server `notes` wants exchanged tokens."""

    served: Running
    notes: Downstream
    login: AuthorizationServer
    takes: Takes

    @property
    def url(self) -> str:
        return self.served.url("user")

    def bearers(self) -> set[str | None]:
        return {request.bearer for request in self.notes.recorder.requests}


@asynccontextmanager
async def world(path: Path, script: Any, /, **exchange: Any) -> AsyncIterator[World]:
    """Serve it; `exchange` changes what the server's `token_exchange` says."""
    login = AuthorizationServer()
    async with AsyncExitStack() as stack:
        login.url = (await stack.enter_async_context(serve_app(login.app))).base_url + "/token"
        notes = await stack.enter_async_context(stateless_downstream("notes"))
        takes = Takes(notes.recorder.app)  # type: ignore[arg-type]  # it is being served
        notes.recorder.app = takes
        settings = {"token_endpoint": login.url, "client_id": "pallas", "client_secret": SECRET, **exchange}
        servers = {
            "notes": {
                "transport": "http",
                "url": notes.url,
                "forward_inbound_auth": True,
                "token_exchange": settings,
            }
        }
        llm = await stack.enter_async_context(scripted_llm(script))
        project = write_project(path, {"user": Agent(servers=["notes"])}, llm_url=llm.base_url, servers=servers)
        yield World(await stack.enter_async_context(running(project)), notes, login, takes)


def echo(request: LlmRequest) -> Turn:
    """A model that uses the tool once, and then says what came of it; without the tool it says so."""
    if request.tool_results:
        return say(" | ".join(request.tool_results.values()))
    return call_tools([ECHO]) if "notes__echo" in request.tools else say("no tools")


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_requests_of_each_call_carry_a_token_issued_for_its_own_caller(version: str, tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        who = {"text": request.last_user_text}
        return say("done") if request.tool_results else call_tools([("notes__echo", who)] * 2)

    names = {f"caller-{number}" for number in range(5)}
    async with world(tmp_path, script, audience="notes-api", scope="read") as it:
        for _ in range(2):  # at once, and again when the tokens are known
            await asyncio.gather(*(ask(it.url, name, version=version, bearer=name) for name in [*names] * 2))
        calls = it.notes.recorder.calls("echo")
        await until_idle(it.served)

    assert len(calls) == 40
    for call in calls:
        assert (call.bearer or "").partition("-")[2] == f"for-{call.rpc['params']['arguments']['text']}"
    assert {(one["subject_token"], one["resource"]) for one in it.login.asked} == {
        (name, it.notes.url) for name in names
    }
    assert {one["authorization"] for one in it.login.asked} == {"Basic cGFsbGFzOmNsaWVudHMtc2VjcmV0"}
    assert {(one["audience"], one["scope"]) for one in it.login.asked} == {("notes-api", "read")}
    assert len(it.login.issued) == len(names)
    assert it.bearers() == set(it.login.issued)


async def test_a_server_of_tokens_may_want_the_secret_in_the_body(tmp_path: Path) -> None:
    async with world(tmp_path, echo, client_auth="post") as it:
        assert '"hi"' in (await ask(it.url, bearer="ann")).text
    assert {one["client_secret"] for one in it.login.asked} == {SECRET}


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_revoked_token_is_exchanged_anew_once_and_the_call_goes_on(version: str, tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return echo(request) if request.tool_results else hang(gate, call_tools([ECHO]))

    async with world(tmp_path, script) as it:
        asking = asyncio.create_task(ask(it.url, version=version, bearer="ann"))
        await gate.wait_for_entered()
        it.takes.revoked.update(it.login.issued)
        it.notes.recorder.clear()
        gate.open()
        answer = await asking
        await until_idle(it.served)

    assert '"hi"' in answer.text
    assert it.login.issued == ["1-for-ann", "2-for-ann"]
    first, second, *_ = it.notes.recorder.requests
    assert [(one.rpc_method, one.status, one.bearer) for one in (first, second)] == [
        ("tools/call", 401, "1-for-ann"),
        ("tools/call", 200, "2-for-ann"),
    ]
    assert first.rpc == second.rpc


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_without_a_token_the_call_goes_on_without_those_tools_and_the_log_says_why(
    version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="pallas")
    async with world(tmp_path, echo) as it:
        it.login.refuses = True
        for _ in range(2):
            answer = await ask(it.url, version=version, bearer="anns-token")
            assert (answer.text, answer.is_error) == ("no tools", False)
        assert it.notes.recorder.requests == []
        it.login.refuses = False
        assert '"hi"' in (await ask(it.url, version=version, bearer="anns-token")).text

    said = [record for record in caplog.records if getattr(record, "server", None) == "notes"]
    assert [record.getMessage() for record in said] == [
        "downstream unreachable",
        "downstream available again",
    ]
    assert vars(said[0])["error"] == f"no token for server 'notes' from {it.login.url}: HTTP 400, invalid_grant"
    for secret in ("anns-token", SECRET):
        assert not [record for record in caplog.records if secret in repr(vars(record))]


async def test_a_token_endpoint_that_is_down_costs_the_tools_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with reserved_port() as port:
        endpoint = f"http://127.0.0.1:{port}/token"
        async with world(tmp_path, echo, token_endpoint=endpoint) as it:
            assert (await ask(it.url, bearer="ann")).text == "no tools"
            assert it.notes.recorder.requests == []
            assert (await health(it.url))["status"] == "ok"  # the server is up, and a probe exchanges nothing

    errors = [vars(record)["error"] for record in caplog.records if getattr(record, "server", None) == "notes"]
    assert errors == [f"no token for server 'notes' from {endpoint}: it cannot be reached"]


async def test_a_silent_token_endpoint_is_named_as_what_was_waited_for(
    tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits.runtime.attach_seconds = 4  # less than the time limit of an exchange
    async with world(tmp_path, echo) as it:
        it.login.gate = gate = Gate()
        asking = asyncio.create_task(ask(it.url, bearer="ann"))
        await gate.wait_for_entered()
        assert (await hastened(asking)).text == "no tools"
        assert it.notes.recorder.requests == []

    errors = [vars(record)["error"] for record in caplog.records if getattr(record, "server", None) == "notes"]
    assert errors == [f"no answer within 4 s from {it.login.url}"]


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_tool_call_without_a_token_is_an_error_that_the_model_can_read(
    version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return echo(request) if request.tool_results else hang(gate, call_tools([ECHO]))

    async with world(tmp_path, script) as it:
        it.login.expires_in = 5  # too short to be kept: each request asks anew
        asking = asyncio.create_task(ask(it.url, version=version, bearer="anns-token"))
        await gate.wait_for_entered()
        it.login.refuses = True
        gate.open()
        answer = await asking
        await until_idle(it.served)

    assert "No token could be had for the server 'notes': HTTP 400, invalid_grant." in answer.text
    assert not it.notes.recorder.calls()
    assert it.bearers() <= set(it.login.issued)
    (said,) = [record for record in caplog.records if record.getMessage() == "tool call without token"]
    assert (vars(said)["server"], vars(said)["reason"]) == ("notes", "token_exchange_failed")


async def test_a_caller_without_a_token_has_nothing_to_exchange(tmp_path: Path) -> None:
    async with world(tmp_path, echo) as it:
        await ask(it.url)
        assert it.bearers() == {None}
    assert it.login.asked == []


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_peer_gets_an_exchanged_token_and_exchanges_that_for_its_own_server(
    version: str, tmp_path: Path
) -> None:
    def script(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say(" | ".join(request.tool_results.values()))
        tool = next(name for name in ("peer__send_message", "notes__echo") if name in request.tools)
        return call_tools([(tool, {"message": "go"} if tool.startswith("peer") else {"text": "hi"})])

    login = AuthorizationServer()
    with reserved_port() as port:
        async with (
            serve_app(login.app) as listener,
            stateless_downstream("notes") as notes,
            scripted_llm(script) as llm,
        ):
            exchange = {"token_endpoint": f"{listener.base_url}/token", "client_id": "pallas"}
            marked = {"transport": "http", "forward_inbound_auth": True, "token_exchange": exchange}
            peer_url = f"http://localhost:{port}/mcp"
            servers = {"peer": {**marked, "url": peer_url}, "notes": {**marked, "url": notes.url}}
            agents = {
                "parent": Agent(servers=["peer"], settings={"depends_on": ["peer"]}),
                "peer": Agent(servers=["notes"], settings={"port": port}),
            }
            async with running(write_project(tmp_path, agents, llm_url=llm.base_url, servers=servers)) as served:
                answer = await ask(served.url("parent"), version=version, bearer="ann")
                await until_idle(served)

    assert '"hi"' in answer.text
    assert login.issued == ["1-for-ann", "2-for-1-for-ann"]
    assert [one["resource"] for one in login.asked] == [peer_url, notes.url]
    assert {one["client_id"] for one in login.asked} == {"pallas"}
    assert {request.bearer for request in notes.recorder.requests} == {"2-for-1-for-ann"}
