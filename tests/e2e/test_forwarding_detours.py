"""Whose token goes where when the way is not straight: sessions and their streams, retries, redirects."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.forwarding import (
    ANN,
    BOB,
    FORWARDS,
    KINDS,
    NOBODY,
    OLD_PATH,
    TOKENS,
    Noting,
    ask_as,
    assert_tool_calls_are_their_callers,
    bearers,
    moved,
    one_user,
    redirecting,
    sessions_of,
    smuggled,
    use_everything,
    who_asked,
)
from tests.support.asgi import respond
from tests.support.calling import EACH_VERSION, health
from tests.support.downstreams import Recorder
from tests.support.gateway import until_idle
from tests.support.scripted_llm import call_tools, hang
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.asgi import AsgiApp, Receive, Scope, Send
    from tests.support.downstreams import HttpRequest
    from tests.support.scripted_llm import LlmRequest, Script, Turn

pytestmark = pytest.mark.usefixtures("patience")
EACH_KIND = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.whole] * (kind == "initialize")) for kind in KINDS]
)


# --- Sessions


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


# --- Trouble on the way


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
async def test_redirect_to_another_origin_takes_no_token_along(where: str, tmp_path: Path) -> None:
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

    assert bearers(elsewhere.recorder.requests) <= {None}
    assert smuggled(elsewhere.recorder) == []
    for downstream in away.values():
        paths = {
            path: bearers(r for r in downstream.recorder.requests if r.path == path) for path in (OLD_PATH, "/mcp")
        }
        assert paths[OLD_PATH] == set(TOKENS.values())
        assert paths["/mcp"] <= {None}
