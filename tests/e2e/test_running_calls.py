"""Running and recent calls over HTTP: what lists show, who may end which call, and what its client reads."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, override

import httpx
import pytest

from pallas_gateway.calls.asking.used_states import UsedStates
from pallas_gateway.identity.static_keys import hash_of
from pallas_gateway.shared.memory import Memory
from pallas_gateway.shared.protocol import SharedAwayError
from tests.e2e.fleet import ADA, call_by, fleet
from tests.support.askable_callers import Person, asked_at
from tests.support.asking_gateways import asked_by, gateway_of, questions
from tests.support.gateway import Agent, Running, running, until_idle, write_project
from tests.support.guarded import guarded, static_key
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.listed_calls import PATH, api_of, busy_stage, listed
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say, scripted_llm
from tests.support.threads_api import serving
from tests.support.waiting import Gate, eventually, stopwatch
from tests.support.watching import calling, stage

ENDED = "The call was ended by anonymous."
LISTS, ENDS = "view:calls", "cancel:calls"


async def ended_one(served: Running, **expected: Any) -> None:
    """End the only running call, which is listed with these values."""
    [one] = (await served.request("GET", PATH)).json()["calls"]
    assert {name: one[name] for name in expected} == expected
    assert (await served.request("DELETE", f"{PATH}/{one['id']}")).status_code == 204
    # Its clean-up may take a moment.
    assert (await served.request("DELETE", f"{PATH}/{one['id']}")).status_code in (204, 404)


async def test_a_nested_call_is_ended_by_name_and_its_parent_reads_why_its_tool_has_failed(tmp_path: Path) -> None:
    async with busy_stage(tmp_path) as (staged, gate), api_of(staged) as http:
        assert await listed(http) == {}
        async with calling(staged.url("root"), "go") as (_, call):
            await gate.wait_for_entered(1)
            running = await listed(http)
            assert (await http.delete(f"{PATH}/{running['peer']['id']}")).status_code == 204
            reply = await call.reply()
        again = await http.delete(f"{PATH}/{running['peer']['id']}")
        recent = await listed(http, "?recent=5")
        assert await listed(http) == {}

    root, peer = running["root"], running["peer"]
    assert (root["parent"], peer["parent"]) == (None, root["id"])
    assert {"api": "mcp", "caller": "anonymous", "waiting": False, "worker": 1, "step": 1}.items() <= root.items()
    assert (root["tokens"], peer["tokens"]) == (15, 0)
    assert reply.result["content"][0]["text"] == "told: The call was ended by anonymous."
    assert (again.status_code, again.json()["error"]) == (404, "not_found")
    assert (recent["peer"]["outcome"], recent["peer"]["stopReason"]) == ("error", "cancelled")
    assert (recent["root"]["outcome"], recent["root"]["stopReason"], recent["root"]["step"]) == ("ok", "endTurn", 2)
    [tool] = recent["root"]["tools"]
    assert (tool["name"], tool["ok"]) == ("peer/send_message", False)
    assert 0 <= tool["start"] <= tool["start"] + tool["seconds"] <= recent["root"]["seconds"]


# --- calls that wait, and other APIs --------------------------------------------------------------------------------


async def test_a_call_that_asks_on_its_stream_ends(tmp_path: Path) -> None:
    async with asked_by(tmp_path, person := Person(None), era="initialize") as (client, served, _):
        call = asyncio.create_task(client.call_tool("send_message", {"message": "name"}))
        await person.wait_for(1)
        await ended_one(served, waiting=True, api="mcp")
        result = await call
        assert questions(served, "form", "cancelled") == 1
    assert result.is_error
    assert getattr(result.content[0], "text", None) == ENDED


async def test_a_turn_of_a_thread_that_asks_ends_and_its_thread_says_by_whom(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        asked = await api.chat("name")
        async with api.stream(f"/threads/{asked['threadId']}/answers", {"answers": {}}) as stream:
            await stream.event("question")
            await ended_one(api.served, waiting=True, api="threads")
            error = await stream.event("error")
        last = await api.last(asked["threadId"])
        again = (await api.chat("again", threadId=asked["threadId"]))["stopReason"]
    assert (error["reason"], error["message"]) == ("cancelled", ENDED)
    assert (last["status"], last["error"]) == ("error", {"reason": "cancelled", "message": ENDED})
    assert again == "endTurn"  # the thread is free


class Away(Memory):
    """The state of a gateway whose database went away after a state was sealed."""

    @override
    async def first(self, key: str, value: str, seconds: float) -> str:
        raise SharedAwayError


async def test_a_call_ends_here_while_it_is_unknown_whether_another_replica_may_resume_it(tmp_path: Path) -> None:
    human = Agent(decorator="human_input=True")
    async with gateway_of(tmp_path, {"url": "http://127.0.0.1:9/mcp"}, human) as served:
        served.gateway.sessions.waiting_calls._used = UsedStates(Away(), "a")
        asked = await asked_at(served.url("user"), "human")
        [one] = (await served.request("GET", PATH)).json()["calls"]
        refused = await served.request("DELETE", f"{PATH}/{one['id']}")
        assert (await served.request("GET", PATH)).json()["calls"] == []
        result = (await asked.repeat()).result
    assert (refused.status_code, refused.json()["error"]) == (503, "threads_unavailable")
    assert "another replica may resume the call" in refused.json()["error_description"]
    assert result["content"][0]["text"] == ENDED


async def test_a_call_that_waits_in_a_queue_is_listed_and_ends_while_the_one_before_it_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        stage(tmp_path, lambda _: hang(gate, say("first")), gateway={"max_in_flight": 1}) as staged,
        api_of(staged) as http,
        calling(staged.url("solo"), "first") as (_, first),
    ):
        await gate.wait_for_entered(1)
        async with calling(staged.url("solo"), "second") as (_, second):
            await eventually(lambda: len(staged.served.gateway.calls.running()) == 2, what="a call in the queue")
            one, other = (await http.get(PATH)).json()["calls"]
            assert (one["step"], other["step"]) == (1, 0)
            assert (await http.delete(f"{PATH}/{other['id']}")).status_code == 204
            result = (await second.reply()).result
        assert [one["id"]] == [one["id"] for one in (await http.get(PATH)).json()["calls"]]
        gate.open()
        assert (await first.reply()).result["content"][0]["text"] == "first"
    assert result["content"][0]["text"] == ENDED


async def test_an_ended_call_releases_everything_and_its_end_is_logged_with_a_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pallas.calls")
    async with busy_stage(tmp_path) as (staged, gate):
        before = snapshot()
        async with api_of(staged) as http, calling(staged.url("root"), "go") as (_, call):
            await gate.wait_for_entered(1)
            root = (await listed(http))["root"]
            await http.delete(f"{PATH}/{root['id']}")
            await call.reply()
        await staged.llm.wait_for_aborted(1)
        await until_idle(staged.served)
        await eventually(lambda: not len(staged.served.gateway.calls.running()), what="no call in the list")
        await assert_nothing_left(before)
    fields = [vars(record) for record in caplog.records if record.msg == "call ended"]
    assert {(one["agent"], one["reason"], one.get("ended_by")) for one in fields} == {
        ("root", "cancelled", "anonymous"),
        ("peer", "cancelled", None),
    }


async def test_a_list_shows_how_far_a_call_is(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate, call_tools([("tools__echo", {"text": f"turn {request.number}"})]))

    async with (
        stage(tmp_path, script) as staged,
        api_of(staged) as http,
        calling(staged.url("solo"), "go") as (_, call),
    ):
        seen = []
        for turn in (1, 2, 3):
            await gate.wait_for_entered(turn)
            seen.append((await listed(http))["solo"])
            gate.let_through(1)
        await call.vanish()
        await eventually(lambda: not len(staged.served.gateway.calls.running()), what="the end of the call")
        ended = (await listed(http, "?recent=1"))["solo"]
    assert [(one["step"], one["tokens"]) for one in seen] == [(1, 0), (2, 15), (3, 30)]
    assert 0 < seen[0]["seconds"] < seen[1]["seconds"] < seen[2]["seconds"] < ended["seconds"]
    assert {one["startedAt"] for one in (*seen, ended)} == {ended["startedAt"]}
    assert ended["startedAt"] < ended["endedAt"]
    starts = [tool["start"] for tool in ended["tools"]]
    assert starts == sorted(starts)
    assert {tool["name"] for tool in ended["tools"]} == {"tools/echo"}


async def test_ends_and_refused_ones_are_in_the_audit_log_with_caller_and_grant(tmp_path: Path) -> None:
    audit_log = tmp_path / "audit.log"
    async with calls_of_alice_and_bob(tmp_path / "project", audit_log=str(audit_log)) as (served, ids):
        for key, status in (("alice", 404), ("seer", 403)):
            assert (await status_of(served, "DELETE", f"{PATH}/{ids['bob peer']}", key))[0] == status
        for key, name in (("alice", "alice peer"), ("ender", "bob root")):
            assert (await status_of(served, "DELETE", f"{PATH}/{ids[name]}", key))[0] == 204
        await eventually(lambda: not len(served.gateway.calls.running()), what="the end of all calls")
    lines = [json.loads(line) for line in audit_log.read_text().splitlines()]
    ends = [line for line in lines if line["action"] == "end_call"]
    assert [(one["caller"], one["call_id"], one.get("grant")) for one in ends] == [
        ("key:alice", ids["alice peer"], None),
        ("key:ender", ids["bob root"], ENDS),
    ]
    refused = [line for line in lines if line["action"] == "request"]
    assert [(one["caller"], one["agent"], one["call_id"], one["grant"], one["reason"]) for one in refused] == [
        ("key:alice", "peer", ids["bob peer"], ENDS, "no_grant"),
        ("key:seer", "peer", ids["bob peer"], ENDS, "insufficient_scope"),
    ]


async def test_calls_are_ended_while_the_gateway_drains(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        stage(tmp_path, lambda _: hang(gate)) as staged,
        api_of(staged) as http,
        calling(staged.url("solo")) as (_, call),
    ):
        await gate.wait_for_entered(1)
        staged.served.gateway.calls.drain()
        await ended_one(staged.served, agent="solo")
        result = (await call.reply()).result
        assert await listed(http) == {}
    assert result["content"][0]["text"] == ENDED


async def test_a_call_that_its_client_cancels_at_the_same_time_ends_once(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, lambda _: hang(gate)) as staged, api_of(staged) as http:
        for _ in range(5):
            gate.entered.clear()
            async with calling(staged.url("solo")) as (_, call):
                await gate.wait_for_entered(1)
                one = (await listed(http))["solo"]["id"]
                _, response = await asyncio.gather(call.vanish(), http.delete(f"{PATH}/{one}"))
                assert response.status_code in (204, 404)
            await until_idle(staged.served)
        recent = (await http.get(f"{PATH}?recent=9")).json()["calls"]
        assert len(staged.served.gateway.calls.running()) == 0
    assert [one["stopReason"] for one in recent] == ["cancelled"] * 5
    assert len({one["id"] for one in recent}) == 5


# --- rights ----------------------------------------------------------------------------------------------------------

RUNS = "run:agents:root"
KEYS = {
    "alice": (RUNS,), "bob": ("run:agents",), "seer": (LISTS,), "ender": (ENDS,), "ops": (LISTS, ENDS),
    "idle": ("view:metrics",), "agents": ("view:agents", "view:instructions", "view:gateway"),
}  # fmt: skip


@asynccontextmanager
async def calls_of_alice_and_bob(
    path: Path, *, audit_log: str | None = None, **auth: Any
) -> AsyncGenerator[tuple[Running, dict[str, str]]]:
    """`alice` and `bob` have one call of `root` each, which waits for its call of `peer`; the ids of all by names."""
    keys = [static_key(*grants, key=name, name=name) for name, grants in KEYS.items()]
    keys.append({**static_key(LISTS, ENDS, key="late", name="late"), "not_after": "2020-01-01"})
    gateway = {"auth": {"tokens": keys, **auth}, "audit_log": audit_log}
    async with busy_stage(path, **gateway) as (staged, gate), AsyncExitStack() as stack:
        ids = {}
        for count, name in enumerate(("alice", "bob"), 1):
            await stack.enter_async_context(calling(staged.url("root"), bearer=name))
            await gate.wait_for_entered(count)
        async with api_of(staged, "ops") as http:
            for one in (await http.get(PATH)).json()["calls"]:
                ids[f"{one['caller'].removeprefix('key:')} {one['agent']}"] = one["id"]
        yield staged.served, ids


async def status_of(served: Running, method: str, path: str, bearer: str | None) -> tuple[int, str]:
    """The status of a request, and the calls that it lists or the kind of its error."""
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    response = await served.request(method, path, headers=headers)
    if response.status_code == 204:
        return 204, ""
    document = response.json()
    if "calls" in document:
        return response.status_code, " ".join(sorted({one["caller"] for one in document["calls"]}))
    return response.status_code, document["error"]


LISTED = {
    None: (401, "unauthorized"), "unknown": (401, "invalid_token"), "late": (401, "invalid_token"),
    "idle": (200, ""), "agents": (200, ""),
    "alice": (200, "key:alice"), "bob": (200, "key:bob"), "seer": (200, "key:alice key:bob"), "ender": (200, ""),
    "ops": (200, "key:alice key:bob"),
}  # fmt: skip
ENDED_ALICES = {
    None: (401, "unauthorized"), "unknown": (401, "invalid_token"), "late": (401, "invalid_token"),
    "idle": (404, "not_found"),
    "agents": (404, "not_found"), "bob": (404, "not_found"), "seer": (403, "insufficient_scope"),
}  # fmt: skip


async def test_who_lists_and_ends_which_calls(tmp_path: Path) -> None:
    async with calls_of_alice_and_bob(tmp_path) as (served, ids):
        shown = {key: await status_of(served, "GET", PATH, key) for key in LISTED}
        recent = {key: (await status_of(served, "GET", f"{PATH}?recent=9", key))[0] for key in LISTED}
        refused = {key: await status_of(served, "DELETE", f"{PATH}/{ids['alice root']}", key) for key in ENDED_ALICES}
        unknown = {key: (await status_of(served, "DELETE", f"{PATH}/{'0' * 16}", key))[0] for key in LISTED}
        assert len(served.gateway.calls.running()) == 4  # none was ended
        assert (await status_of(served, "DELETE", f"{PATH}/{ids['alice peer']}", "alice"))[0] == 204
        assert (await status_of(served, "DELETE", f"{PATH}/{ids['bob root']}", "ender"))[0] == 204
        await eventually(lambda: not len(served.gateway.calls.running()), what="the end of all calls")
        after = await status_of(served, "GET", f"{PATH}?recent=9", "alice")
        assert served.metric("pallas_auth_refused_total", reason="insufficient_scope") == 1

    assert shown == LISTED
    assert recent == {key: status for key, (status, _) in LISTED.items()}
    assert refused == ENDED_ALICES
    assert unknown == {key: 401 if key in (None, "unknown", "late") else 404 for key in LISTED}
    assert after == (200, "key:alice")


async def test_anonymous_callers_with_the_grants_list_and_end_all(tmp_path: Path) -> None:
    async with calls_of_alice_and_bob(tmp_path, anonymous=[LISTS]) as (served, ids):
        assert await status_of(served, "GET", PATH, None) == LISTED["ops"]
        assert (await status_of(served, "DELETE", f"{PATH}/{ids['alice root']}", None))[0] == 401
        ends = [await status_of(served, "DELETE", f"{PATH}/{ids[name]}", "ops") for name in ("alice root", "bob root")]
    assert ends == [(204, "")] * 2


async def test_requests_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    requests = [
        ("GET", f"{PATH}?recent=0", 400, "bad_input"),
        ("GET", f"{PATH}?recent=1001", 400, "bad_input"),
        ("GET", f"{PATH}?recent=", 400, "bad_input"),
        ("GET", f"{PATH}?recent=1&recent=2", 400, "bad_input"),
        ("GET", f"{PATH}?recent=\u0661", 400, "bad_input"),
        ("GET", f"{PATH}?limit=1", 400, "bad_input"),
        ("POST", PATH, 405, "method_not_allowed"),
        ("DELETE", PATH, 405, "method_not_allowed"),
        ("GET", f"{PATH}/0123456789abcdef", 405, "method_not_allowed"),
        ("DELETE", f"{PATH}/0123456789abcdef?now=1", 400, "bad_input"),
        ("DELETE", f"{PATH}/", 404, "not_found"),
        ("DELETE", f"{PATH}/..%2f", 404, "not_found"),
        ("DELETE", f"{PATH}/{'x' * 5000}", 404, "not_found"),
    ]
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        for method, path, *answer in requests:
            assert (path, await status_of(served, method, path, None)) == (path, tuple(answer))


HOSTILE = "key:ops\x1b[31m\u202e\r\nSet-Cookie: a=b\x00\x9b" + "n" * 2000
HOSTILE_TOOL = "x\x1b[2J\u202e\r\n" + "t" * 1000


async def test_hostile_names_of_callers_and_tools_stay_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pallas.calls")
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate) if request.tool_results else call_tools([(HOSTILE_TOOL, {})])

    async with (
        scripted_llm(script) as llm,
        guarded(tmp_path, llm_url=llm.base_url, jwt={"name_claim": "name"}) as g,
        calling(g.url(), bearer=(token := g.token(name=HOSTILE, aud=[g.url(), g.public]))) as (_, call),
        httpx.AsyncClient(base_url=g.served.base_url, trust_env=False) as http,
    ):
        await gate.wait_for_entered(1)
        http.headers["authorization"] = f"Bearer {token}"
        answer = await http.get(PATH)
        [one] = answer.json()["calls"]
        assert (await http.delete(f"{PATH}/{one['id']}")).status_code == 204
        result = (await call.reply()).result
        ended = await http.get(f"{PATH}?recent=1")
    for text in (answer.text, ended.text):
        assert text.isascii()
        assert text.isprintable()
        assert len(text) < 3000
    [tool] = ended.json()["calls"][0]["tools"]
    assert tool["name"] == HOSTILE_TOOL[:100]
    assert one["caller"].startswith("token:key:ops")
    assert len(one["caller"]) < 300
    sentence = result["content"][0]["text"]
    assert sentence.startswith("The call was ended by token:key:ops�[31m��")
    assert sentence.isprintable()
    assert len(sentence) < 150
    [record] = [record for record in caplog.records if record.msg == "call ended"]
    assert str(vars(record)["ended_by"]).isprintable()


# --- over two workers -------------------------------------------------------------------------------------------------


async def result_of(http: httpx.AsyncClient, url: str, told: str) -> dict[str, Any]:
    return dict((await call_by(http, url, told))["result"])


async def listed_by(http: httpx.AsyncClient, query: str = "") -> list[dict[str, Any]]:
    document = (await http.get(PATH + query)).raise_for_status().json()
    assert "missing" not in document
    return list(document["calls"])


async def test_a_call_is_listed_and_ended_from_another_worker(tmp_path: Path) -> None:
    async with fleet(tmp_path) as served, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(served.client_of(pid)) for pid in sorted(served.pids)]
        calls = [asyncio.create_task(result_of(http, served.url("root"), "delegate hang on")) for http in clients]
        await served.gate.wait_for_entered(2)
        lists = [await listed_by(http) for http in clients]
        assert [[(one["id"], one["worker"]) for one in calls] for calls in lists[1:]] == [
            [(one["id"], one["worker"]) for one in lists[0]]
        ]
        root, of_another = sorted((one for one in lists[0] if one["agent"] == "root"), key=lambda one: one["worker"])
        assert (root["worker"], of_another["worker"]) == (1, 2)
        own = {one["id"] for one in lists[0] if one["worker"] == 1}
        for http in clients:  # each of them is told by one that has it, and by one that has not
            doomed = root if http is clients[0] else of_another
            assert (await http.delete(f"{PATH}/{doomed['id']}")).status_code == 204
        results = await asyncio.gather(*calls)
        await eventually(lambda: no_calls(clients[1]), what="the end of all calls")
        again = await clients[1].delete(f"{PATH}/{root['id']}")
        recent = await listed_by(clients[1], "?recent=3")

    assert len(own) == 2
    assert {one["content"][0]["text"] for one in results} == {"The call was ended by anonymous."}
    assert (again.status_code, again.json()["error"]) == (404, "not_found")
    assert len(recent) == 3
    assert [one["endedAt"] for one in recent] == sorted((one["endedAt"] for one in recent), reverse=True)
    assert {one["worker"] for one in recent} == {1, 2}


async def test_each_worker_decides_who_may_list_and_end_its_calls(tmp_path: Path) -> None:
    keys = {"alice": ["run:agents"], "bob": ["run:agents"], "seer": ["view:calls"]}
    tokens = [{"name": name, "sha256": hash_of(name), "grants": grants} for name, grants in keys.items()]
    async with fleet(tmp_path, auth={"tokens": tokens}) as served, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(served.client_of(pid)) for pid in sorted(served.pids)]
        clients[0].headers["authorization"] = "Bearer alice"
        call = asyncio.create_task(result_of(clients[0], served.url("peer"), "hang on"))
        await served.gate.wait_for_entered(1)
        [running] = await listed_by(clients[0])
        told = {}
        for name in (None, "bob", "seer", "alice"):
            http = clients[1]
            http.headers["authorization"] = f"Bearer {name}" if name else "Bearer"
            shown = await http.get(PATH)
            ended = await http.delete(f"{PATH}/{running['id']}")
            told[name] = shown.status_code, len(shown.json().get("calls", ())), ended.status_code
        text = (await call)["content"][0]["text"]
    assert told == {None: (401, 0, 401), "bob": (200, 0, 404), "seer": (200, 1, 403), "alice": (200, 1, 204)}
    assert text == "The call was ended by key:alice."


async def no_calls(http: httpx.AsyncClient) -> bool:
    return await listed_by(http) == []


async def test_a_call_that_was_ended_while_it_waited_is_resumed_by_no_other_worker(tmp_path: Path) -> None:
    async with fleet(tmp_path) as served, AsyncExitStack() as stack:
        doomed, other = sorted(served.pids)
        one, http = [await stack.enter_async_context(served.client_of(pid)) for pid in (doomed, other)]
        asked = [await result_of(one, served.url("peer"), "ask") for _ in range(2)]
        waiting = await listed_by(http)
        assert (await http.delete(f"{PATH}/{waiting[0]['id']}")).status_code == 204
        os.kill(doomed, signal.SIGKILL)
        await eventually(lambda: doomed not in served.pids, what="the end of the worker")
        answers = [dict.fromkeys(call["inputRequests"], ADA) for call in asked]
        ended, resumed = [
            await call_by(http, served.url("peer"), "ask", requestState=call["requestState"], inputResponses=given)
            for call, given in zip(asked, answers, strict=True)
        ]
    assert ended["error"]["data"]["reason"] == "invalid_request_state"
    assert resumed["result"]["content"][0]["text"] == '{"name": "Ada"}'


async def the_only_call(http: httpx.AsyncClient) -> dict[str, Any] | None:
    """The call, unless its worker was too busy to answer in time."""
    calls = (await http.get(PATH)).raise_for_status().json()["calls"]
    return dict(calls[0]) if calls else None


async def test_a_worker_that_does_not_answer_is_named_and_delays_nothing_for_long(tmp_path: Path) -> None:
    async with fleet(tmp_path, is_patient=False) as served, AsyncExitStack() as stack:
        one, other = sorted(served.pids)
        http = await stack.enter_async_context(served.client_of(one))
        stopped = await stack.enter_async_context(served.client_of(other))
        call = asyncio.create_task(result_of(stopped, served.url("peer"), "hang on"))
        await served.gate.wait_for_entered(1)
        running = await eventually(lambda: the_only_call(http), what="the call")
        os.kill(other, signal.SIGSTOP)
        try:
            async with stopwatch() as watch:
                document = (await http.get(PATH)).json()
                unknown = await http.delete(f"{PATH}/{running['id']}")
            assert watch.seconds < 10
        finally:
            os.kill(other, signal.SIGCONT)
        assert document == {"calls": [], "missing": [running["worker"]]}
        assert (unknown.status_code, unknown.json()["error"], unknown.headers["retry-after"]) == (503, "busy", "5")
        assert (await call)["content"][0]["text"] == "The call was ended by anonymous."  # once the worker goes on
        await eventually(lambda: no_calls(http), what="the end of the call")
