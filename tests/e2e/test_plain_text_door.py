"""The example of a door: a call that came in by it is answered, continued, refused and written like any other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from pallas_gateway.doors.http.bodies import AnswerAfterBody
from pallas_gateway.doors.http.host_check import HostCheck
from pallas_gateway.process.reload import SwappableApp
from tests.e2e.doors import World, world
from tests.support.asking import FORM
from tests.support.asking_gateways import HUMAN
from tests.support.documents import ROOT, pages
from tests.support.gateway import Agent, Running, gateway_and_model
from tests.support.guarded import static_key
from tests.support.plain_text_door import PATH, TextDoor
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, cut, hang, say, stream
from tests.support.waiting import Gate, eventually

ENDED = ["logged", "counted"]
OK, BADLY = ["call_end ok", *ENDED], ["call_end error", *ENDED]
MOST_LINES = 150


def mount(served: Running) -> None:
    """Serve the door at the port of a gateway, as `doors/http/app.py` serves those of the product."""
    gateway, entrance = served.gateway, served.gateway.elsewhere.app
    assert isinstance(entrance, SwappableApp)
    others = entrance.app
    door = AnswerAfterBody(HostCheck(TextDoor(gateway), gateway.configuration), gateway.limits.bodies)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_here = scope["type"] == "http" and PATH.fullmatch(scope["path"])
        await (door if is_here else others)(scope, receive, send)

    entrance.app = app


@asynccontextmanager
async def texts(path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncGenerator[World]:
    async with world(path, monkeypatch, **{"at_once": ["solo"], **settings}) as one:
        mount(one.served)
        yield one


@asynccontextmanager
async def scripted(path: Path, turn: Any, **project: Any) -> AsyncGenerator[tuple[Running, httpx.AsyncClient]]:
    """Serve `solo`, whose model gives the same turn until its tools have results."""

    def script(request: LlmRequest) -> Turn:
        return say("fine") if request.tool_results else turn

    agents = {"solo": Agent(decorator="human_input=True")}
    async with gateway_and_model(path, agents, script, **project) as (served, _):
        mount(served)
        async with httpx.AsyncClient(base_url=served.base_url, trust_env=False, timeout=60) as http:
            yield served, http


async def asked(http: httpx.AsyncClient, message: str = "hi", path: str = "/text/solo") -> str:
    response = await http.post(path, content=message)
    mark, address, question = response.text.splitlines()[-1].split(" ", 2)
    assert (response.status_code, mark, question) == (200, "?", f"solo: {FORM}")
    return address


def test_the_document_quotes_the_door() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", pages()["docs/develop/door.md"], re.MULTILINE | re.DOTALL)
    door = [line.strip() for line in (ROOT / "tests/support/plain_text_door.py").read_text().splitlines()]
    for block in blocks:
        quoted = [line.strip() for line in block.splitlines()]
        begin = door.index(quoted[0])
        assert door[begin : begin + len(quoted)] == quoted
    assert len(door) <= MOST_LINES


async def test_the_text_comes_as_the_model_says_it(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        scripted(tmp_path, stream(["one ", "two"], gate)) as (_, http),
        http.stream("POST", "/text/solo", content="hi") as response,
    ):
        pieces = response.aiter_text()
        first = await anext(pieces)
        gate.open()
        rest = [piece async for piece in pieces]
    assert (first, "".join(rest)) == ("one ", "two")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"


async def test_a_failure_has_its_status_unless_text_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with texts(tmp_path, monkeypatch) as one:
        failed = await one.http.post("/text/solo", content="failed")
    async with scripted(tmp_path / "later", cut(["once upon"])) as (_, http):
        later = await http.post("/text/solo", content="hi")
    assert (failed.status_code, failed.json()["error"]) == (502, "llm_error")
    text, failure = later.text.splitlines()
    assert (later.status_code, text) == (200, "once upon")
    assert failure.startswith("! The model could not answer")


async def test_an_answer_continues_the_call_that_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with texts(tmp_path, monkeypatch) as one:
        address = await asked(one.http, "asks fine")
        [waiting] = await one.calls()
        async with httpx.AsyncClient(base_url=one.served.base_url, trust_env=False, timeout=60) as other:
            answered = await other.post(address, content="Ada")
        await eventually(lambda: len(one.story.spans) == 2, what="both spans")
        used = await one.http.post(address, content="Ada")
        [ended] = await one.calls("?recent=1")
        usage = await one.usage()
        declined = await one.http.post(await asked(one.http, "asks fine"))
        one.story.look()
    assert (waiting["waiting"], waiting["id"]) == (True, ended["id"])
    assert (answered.status_code, answered.text, declined.text) == (200, "fine", "fine")
    assert (used.status_code, used.json()["error"]) == (404, "not_found")
    assert (usage, ended["outcome"]) == ((1, 0), "ok")
    assert [span["pallas.call_id"] for span in one.story.spans[:2]] == [ended["id"]] * 2
    first, second = (["call allowed", answer, *OK] for answer in ("answer accepted", "answer declined"))
    assert [step for step in one.story.account if step != "error"] == [*first, *second]


async def test_one_question_is_put_at_a_time_and_a_misfit_leaves_it_open(tmp_path: Path) -> None:
    number = ("__human_input", {"message": FORM, "fields": [{"name": "age", "type": "number", "required": True}]})
    async with scripted(tmp_path, call_tools([HUMAN, number])) as (_, http):
        address = await asked(http)
        address = await asked(http, "Ada", address)
        misfit = await http.post(address, content="old")
        declined = await http.post(address)
    assert (misfit.status_code, misfit.json()["error"]) == (400, "bad_input")
    assert "'age' must be of type number" in misfit.json()["error_description"]
    assert (declined.status_code, declined.text) == (200, "fine")


async def test_only_the_caller_of_a_call_continues_it_and_only_at_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = {"tokens": [static_key("run:agents", key=name, name=name) for name in ("anna", "ben")]}
    async with texts(tmp_path, monkeypatch, bearer="anna", auth=auth) as one:
        address = await asked(one.http, "asks fine")
        agent, id_ = address.rsplit("/", 1)
        call_id, ticket = id_.split(".")
        wrong = [f"/text/busy/{id_}", f"{agent}/{call_id}.0-0", f"{agent}/0.{ticket}"]
        refused = [await one.http.post(path, content="Ada") for path in wrong]
        refused += [await one.http.post(address, content="Ada", headers={"authorization": "Bearer ben"})]
        answered = await one.http.post(address, content="Ada")
    assert [(one.status_code, one.json()["error"]) for one in refused] == [(404, "not_found")] * 4
    assert answered.text == "fine"


async def test_a_client_that_leaves_and_another_request_end_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with texts(tmp_path, monkeypatch) as one:
        for path, leaves in product(("/text/solo", "ID"), (True, False)):
            address = await asked(one.http, "asks held") if path == "ID" else path
            entered = len(one.gate.entered)
            request = asyncio.create_task(one.http.post(address, content="held"))
            await one.gate.wait_for_entered(entered + 1)
            one.story.begin()
            if leaves:
                request.cancel()
                account = BADLY
            else:
                [call] = await one.calls()
                await one.http.delete(f"/api/v1/calls/{call['id']}")
                ended, account = await request, ["end_call accepted", *BADLY, "error"]
                assert (ended.status_code, ended.json()["error"]) == (502, "cancelled"), path
                assert ended.json()["error_description"] == "The call was ended by anonymous.", path
            await one.over()
            assert one.story.account == account, path
            assert [line["reason"] for line in one.story.lines] == ["cancelled"], path
            assert await one.calls() == [], path


async def test_refusals_have_their_status_and_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    auth = {"tokens": [static_key(f"{run}:agents", key=run, name=run) for run in ("run", "view")]}
    settings = {"at_once": ["limited"], "bearer": "run", "auth": auth, "max_body_bytes": 1000}
    table: tuple[tuple[str, str, str, dict[str, str], int, str], ...] = (
        ("POST", "none", "hi", {}, 404, "no agent 'none'"),
        ("GET", "solo", "", {}, 405, "method_not_allowed"),
        ("POST", "solo", "x" * 1001, {}, 413, "body_too_large"),
        ("POST", "solo", "hi", {"host": "other.example"}, 421, "Host 'other.example'"),
        ("POST", "solo", "hi", {"authorization": ""}, 401, "unauthorized"),
        ("POST", "solo", "hi", {"authorization": "Bearer no"}, 401, "invalid_token"),
        ("POST", "solo", "hi", {"authorization": "Bearer view"}, 403, "insufficient_scope"),
        ("POST", "solo", " ", {}, 400, "bad_input"),
        ("POST", "broken", "hi", {}, 503, "agent_unavailable"),
        ("POST", "limited", "hi", {}, 429, "limited"),
        ("POST", "busy", "hi", {}, 503, "busy"),
    )
    async with texts(tmp_path, monkeypatch, **settings) as one:
        held = [asyncio.create_task(one.http.post(f"/text/{name}", content="held")) for name in ("limited", "busy")]
        await one.gate.wait_for_entered(2)
        for method, name, body, headers, status, reason in table:
            one.story.begin()
            response = await one.http.request(method, f"/text/{name}", content=body, headers=headers)
            said, which = response.json(), (method, name, headers)
            assert (response.status_code, said["error"][: len(reason)]) == (status, reason), which
            assert " " in said.get("error_description", said["error"]), which
            is_call = status in {400, 403, 429, 503}
            assert [line["reason"] for line in one.story.lines] == [reason] * is_call, which
            assert one.story.steps.count("refusal counted") == is_call, which
            audited = [entry.get("reason") for entry in one.story.audited if entry["action"] in {"call", "call_end"}]
            assert (audited[-1:] == [reason]) == is_call, which
        one.gate.open()
        assert [(await one).text for one in held] == ["late", "late"]


async def test_a_drain_refuses_new_calls_and_ends_one_that_asks(tmp_path: Path) -> None:
    gate = Gate()
    async with scripted(tmp_path, hang(gate, call_tools([HUMAN]))) as (served, http):
        request = asyncio.create_task(http.post("/text/solo", content="hi"))
        await gate.wait_for_entered(1)
        served.stop.set()
        await eventually(lambda: served.gateway.calls.draining, what="the drain")
        refused = await http.post("/text/solo", content="hi")
        gate.open()
        response = await request
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert (response.status_code, response.json()["error"]) == (503, "stopped")
