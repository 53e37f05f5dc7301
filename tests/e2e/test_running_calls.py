"""Running and recent calls over HTTP: what lists show, who may end which call, and what its client reads."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, override

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from pallas_gateway.calls.asking.used_states import UsedStates
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.shared.memory import Memory
from pallas_gateway.shared.protocol import SharedAwayError
from tests.support.askable_callers import Person, asked_at, client_of
from tests.support.asking import asking_downstream
from tests.support.asking_gateways import gateway_of, questions
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.guarded import guarded, static_key
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.listed_calls import PATH, api_of, busy_stage, listed
from tests.support.listener import reserved_port
from tests.support.scripted_llm import call_tools, hang, say, scripted_llm
from tests.support.threads_api import serving
from tests.support.waiting import Gate, eventually
from tests.support.watching import calling, stage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.support.gateway import Running
    from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn

ENDED = "The call was ended by anonymous."
LISTS, ENDS = "view:calls", "cancel:calls"


async def ended_one(base_url: str, **expected: Any) -> None:
    """End the only running call, which is listed with these values."""
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as http:
        [one] = (await http.get(PATH)).json()["calls"]
        assert {name: one[name] for name in expected} == expected
        assert (await http.delete(f"{PATH}/{one['id']}")).status_code == 204
        assert (await http.delete(f"{PATH}/{one['id']}")).status_code in (204, 404)  # its clean-up may take a moment


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


async def test_the_client_of_an_ended_call_reads_who_has_ended_it(tmp_path: Path) -> None:
    async with busy_stage(tmp_path) as (staged, gate), api_of(staged) as http:
        async with calling(staged.url("root"), "go") as (_, call):
            await gate.wait_for_entered(1)
            root = (await listed(http))["root"]["id"]
            ends = await asyncio.gather(*(http.delete(f"{PATH}/{root}") for _ in range(2)))
            result = (await call.reply()).result
        recent = await listed(http, "?recent=5")

    assert {one.status_code for one in ends} <= {204, 404}
    assert result["isError"]
    assert result["content"][0]["text"] == "The call was ended by anonymous."
    assert result["_meta"]["pallas/call"]["stop_reason"] == "cancelled"
    assert {one["stopReason"] for one in recent.values()} == {"cancelled"}


# --- calls that wait, and other APIs --------------------------------------------------------------------------------


async def test_a_call_that_asks_on_its_stream_ends(tmp_path: Path) -> None:
    async with (
        asking_downstream("initialize") as downstream,
        gateway_of(tmp_path, {"url": downstream.url}) as served,
        client_of(served.url("user"), person := Person(None)) as client,
    ):
        call = asyncio.create_task(client.call_tool("send_message", {"message": "name"}))
        await person.wait_for(1)
        await ended_one(served.base_url, waiting=True, api="mcp")
        result = await call
        assert questions(served, "form", "cancelled") == 1
    assert result.is_error
    assert getattr(result.content[0], "text", None) == ENDED


async def test_a_turn_of_a_thread_that_asks_ends_and_its_thread_says_by_whom(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        asked = await api.chat("name")
        async with api.stream(f"/threads/{asked['threadId']}/answers", {"answers": {}}) as stream:
            await stream.event("question")
            await ended_one(api.served.base_url, waiting=True, api="threads")
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
    async with (
        gateway_of(tmp_path, {"url": "http://127.0.0.1:9/mcp"}, human) as served,
        httpx.AsyncClient(base_url=served.base_url, trust_env=False) as http,
    ):
        served.gateway.sessions.waiting_calls._used = UsedStates(Away(), "a")
        asked = await asked_at(served.url("user"), "human")
        [one] = (await http.get(PATH)).json()["calls"]
        refused = await http.delete(f"{PATH}/{one['id']}")
        assert (await http.get(PATH)).json()["calls"] == []
        result = (await asked.repeat()).result
    assert (refused.status_code, refused.json()["error"]) == (503, "threads_unavailable")
    assert "another replica may resume the call" in refused.json()["error_description"]
    assert result["content"][0]["text"] == ENDED


async def test_clients_of_the_openai_api_read_who_has_ended_their_call(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, lambda _: hang(gate), gateway={"openai_api": True}) as staged:
        base_url = f"{staged.served.base_url}/v1"
        async with AsyncOpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
            call = asyncio.create_task(
                client.chat.completions.create(model="solo", messages=[{"role": "user", "content": "go"}])
            )
            await gate.wait_for_entered(1)
            await ended_one(staged.served.base_url, api="openai", step=1)
            with pytest.raises(openai.APIStatusError, match=ENDED) as raised:
                await call
    assert (raised.value.status_code, raised.value.code) == (502, "cancelled")
    assert raised.value.response.headers["x-should-retry"] == "false"


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


@pytest.mark.parametrize("per_port", [True, False])
async def test_calls_are_listed_on_the_main_port_alone(per_port: bool, tmp_path: Path) -> None:
    with reserved_port() as own, reserved_port() as registry:
        project = write_project(
            tmp_path, {"echo": Agent(settings={"port": own})}, deployment={"registry_port": registry}
        )
        overrides = Overrides(per_port=True) if per_port else Overrides(agent="echo")
        async with running(project, overrides=overrides), httpx.AsyncClient(trust_env=False) as http:
            main, other = (registry, own) if per_port else (own, None)
            assert (await http.get(f"http://127.0.0.1:{main}{PATH}")).json() == {"calls": []}
            if other is not None:
                assert (await http.get(f"http://127.0.0.1:{other}{PATH}")).status_code == 404


async def test_calls_are_ended_while_the_gateway_drains(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        stage(tmp_path, lambda _: hang(gate)) as staged,
        api_of(staged) as http,
        calling(staged.url("solo")) as (_, call),
    ):
        await gate.wait_for_entered(1)
        staged.served.gateway.calls.drain()
        await ended_one(staged.served.base_url, agent="solo")
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
    async with httpx.AsyncClient(base_url=served.base_url, trust_env=False, headers=headers) as http:
        response = await http.request(method, path)
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


async def test_hosts_and_origins_of_others_neither_list_nor_end_calls(tmp_path: Path) -> None:
    evil = {"host": "rebound.example.test"}, {"origin": "https://evil.example.test"}
    async with (
        running(write_project(tmp_path, {"echo": Agent()})) as served,
        httpx.AsyncClient(base_url=served.base_url, trust_env=False) as http,
    ):
        answers = [
            await http.request(method, path, headers=one)
            for one in evil
            for method, path in (("GET", PATH), ("DELETE", f"{PATH}/{'0' * 16}"))
        ]
        assert (await http.head(PATH)).status_code == 200
    assert [(one.status_code, one.json()["error"]) for one in answers] == [
        *[(421, "wrong_host")] * 2,
        *[(403, "wrong_origin")] * 2,
    ]


HOSTILE = "key:ops\x1b[31m\u202e\r\nSet-Cookie: a=b\x00\x9b" + "n" * 2000
HOSTILE_TOOL = "x\x1b[2J\u202e\r\n" + "t" * 1000


async def test_hostile_names_of_callers_and_tools_stay_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pallas.calls")
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate) if request.tool_results else call_tools([(HOSTILE_TOOL, {})])

    async with (
        scripted_llm(script) as llm,
        hostile_gateway(tmp_path, llm) as (served, token),
        calling(served.url("research"), bearer=token) as (_, call),
        httpx.AsyncClient(base_url=served.base_url, trust_env=False) as http,
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


@asynccontextmanager
async def hostile_gateway(path: Path, llm: ScriptedLlm) -> AsyncGenerator[tuple[Running, str]]:
    """A gateway, and a token whose holder has a hostile name."""
    jwt = {"name_claim": "name"}
    async with guarded(path, llm_url=llm.base_url, jwt=jwt) as g:
        yield g.served, g.token(name=HOSTILE, aud=[g.url(), g.public])
