"""The audit log of a gateway that serves: who was allowed what, by real clients, and without what they said."""

from __future__ import annotations

import asyncio
import json
import signal
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from pallas_gateway.features.audit.chain import Head
from pallas_gateway.features.audit.verifying import verify
from tests.e2e.fleet import fleet
from tests.support.askable_callers import Person, accept, client_of, told
from tests.support.asking import asking_downstream
from tests.support.asking_gateways import gateway_of
from tests.support.calling import ask
from tests.support.commands import PATIENT_GATEWAY, started
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.guarded import STATIC_KEY, static_key
from tests.support.waiting import eventually

LOG = "audit.log"
SECRET = "what-the-caller-says"


def lines(*files: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


def facts(line: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in names)


async def test_calls_refusals_and_reloads_are_in_the_log_of_a_guarded_gateway(tmp_path: Path) -> None:
    auth = {"tokens": [static_key("run:agents:research", "view:agents:other")]}
    agents = {name: Agent() for name in ("research", "other", "hidden")}
    async with running(write_project(tmp_path, agents, gateway={"audit_log": LOG, "auth": auth})) as served:
        called = await ask(served.url("research"), SECRET, bearer=STATIC_KEY)
        async with httpx.AsyncClient(trust_env=False) as http:
            statuses = [
                (await http.post(served.url("research"), json={})).status_code,
                (await http.post(served.url("research"), json={}, headers={"authorization": "Bearer x"})).status_code,
                (await http.post(served.url("none"), json={}, headers=bearer())).status_code,
                (await http.post(served.url("hidden"), json={}, headers=bearer())).status_code,
                (await http.post(served.url("other"), json=call(), headers=bearer())).status_code,
            ]
            statuses.append((await http.get(f"{served.base_url}/metrics", headers=bearer())).status_code)
        assert statuses == [401, 401, 404, 404, 403, 403]
        await served.reload()
        await until_idle(served)

    start, allowed, ended, *refused, reloaded, stop = lines(tmp_path / LOG)
    assert (start["action"], stop["action"]) == ("start", "stop")
    who = ("key:ci", "127.0.0.1")
    assert facts(allowed, "action", "outcome", "caller", "address", "agent", "api", "grant", "call_id", "parent") == (
        *("call", "allowed", *who, "research", "mcp", "run:agents:research", called.meta["call_id"], None),
    )
    assert facts(ended, "action", "outcome", "caller", "address", "call_id", "reason") == (
        *("call_end", "ok", *who, called.meta["call_id"], "endTurn"),
    )
    assert ended["seconds"] >= 0
    assert [facts(one, "action", "outcome", "caller", "address", "agent", "grant", "reason") for one in refused] == [
        ("request", "refused", "anonymous", "127.0.0.1", None, None, "no_token"),
        ("request", "refused", "anonymous", "127.0.0.1", None, None, "invalid_token"),
        ("request", "refused", *who, None, None, "no_grant"),
        ("request", "refused", *who, "hidden", "view:agents:hidden", "no_grant"),
        ("call", "refused", *who, "other", "run:agents:other", "insufficient_scope"),
        ("request", "refused", *who, None, "view:metrics", "insufficient_scope"),
    ]
    assert facts(reloaded, "action", "outcome", "problems", "worker") == ("reload", "ok", 0, 1)
    assert verify([tmp_path / LOG]).findings == []
    assert SECRET not in (tmp_path / LOG).read_text()


async def test_agents_that_a_reload_changes_are_in_the_log(tmp_path: Path) -> None:
    agents = {name: Agent() for name in ("others", "titled", "goes", "breaks")}
    async with running(write_project(tmp_path, agents, gateway={"audit_log": LOG})) as served:
        served.project.write_module("breaks", "this is no Python")

        def edit(document: dict[str, Any]) -> None:
            document["agents"]["comes"] = document["agents"].pop("goes")
            document["agents"]["titled"]["title"] = "Another title"

        served.project.edit(edit)
        await served.reload()

    start, *changed, reloaded, stop = lines(tmp_path / LOG)
    assert [facts(one, "action", "outcome", "agent", "reason", "worker") for one in changed] == [
        ("agent", "added", "comes", None, 1),
        ("agent", "changed", "others", None, 1),
        ("agent", "changed", "titled", None, 1),
        ("agent", "removed", "goes", None, 1),
        ("agent", "kept", "breaks", "import_failed", 1),
    ]
    assert [one["action"] for one in (start, reloaded, stop)] == ["start", "reload", "stop"]


def bearer() -> dict[str, str]:
    return {"authorization": f"Bearer {STATIC_KEY}"}


def call() -> dict[str, Any]:
    params = {"name": "send_message", "arguments": {"message": SECRET}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def test_approvals_and_answers_are_in_the_log_without_their_content(tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"]})
    async with (
        asking_downstream("initialize") as downstream,
        gateway_of(tmp_path, {"url": downstream.url}, agent, gateway={"audit_log": LOG}) as served,
    ):
        for word, answer in (("name", accept(name=SECRET)), ("wipe", accept(decision="once"))):
            async with client_of(served.url("user"), Person(answer)) as client:
                await told(client, word)

    answered = [one for one in lines(tmp_path / LOG) if one["action"] in {"approve", "answer"}]
    assert [facts(one, "action", "outcome", "kind", "tool", "caller", "agent") for one in answered] == [
        ("answer", "accepted", "form", None, "anonymous", "user"),
        ("approve", "accepted", "approval", "asking/wipe", "anonymous", "user"),
    ]
    calls = {one["call_id"] for one in lines(tmp_path / LOG) if one["action"] == "call"}
    assert {one["call_id"] for one in answered} == calls
    assert SECRET not in (tmp_path / LOG).read_text()
    assert verify([tmp_path / LOG]).findings == []


async def test_calls_are_refused_while_the_log_cannot_be_written_and_is_required(tmp_path: Path) -> None:
    gateway = {"audit_log": "later/audit.log", "audit_required": True}
    async with running(write_project(tmp_path, {"research": Agent()}, gateway=gateway)) as served:
        refused = await ask(served.url("research"))
        assert refused.is_error
        assert "cannot write its audit log" in refused.text
        assert served.metric("pallas_calls_refused_total", agent="research", reason="audit_unavailable") == 1
        await served.gateway.metrics.update()
        assert served.metric("pallas_audit_up", output="file") == 0
        (tmp_path / "later").mkdir()
        assert not (await ask(served.url("research"))).is_error
        await served.gateway.metrics.update()
        assert served.metric("pallas_audit_up", output="file") == 1
        assert served.metric("pallas_audit_sequence", output="file") == 2
        digits = f"{int(served.metric('pallas_audit_head', output='file')):013x}"

    second = (tmp_path / "later" / LOG).read_bytes().splitlines()[1]
    assert sha256(second).hexdigest().startswith(digits)
    written = lines(tmp_path / "later" / LOG)
    assert [one["action"] for one in written] == ["call", "call_end", "stop"]


async def test_calls_go_on_while_the_log_is_rotated(tmp_path: Path) -> None:
    file = tmp_path / LOG
    project = write_project(tmp_path, {"research": Agent()}, gateway={"audit_log": LOG, "audit_sync": "line"})
    rotated = []
    async with running(project) as served:
        for number in range(3):
            calls = asyncio.gather(*(ask(served.url("research"), str(one)) for one in range(10)))
            rotated.append(file.rename(tmp_path / f"{LOG}.{number}"))
            assert not any(answer.is_error for answer in await calls)

    assert verify([*rotated, file]).findings == []
    ended = [one["call_id"] for one in lines(*rotated, file) if one["action"] == "call_end"]
    assert len({*ended}) == len(ended) == 30


async def test_stdout_has_the_lines_of_a_gateway_whose_log_is_a_dash(tmp_path: Path) -> None:
    write_project(tmp_path / "project", {"research": Agent()}, gateway={"audit_log": "-", "host": "127.0.0.1"})
    with started(["serve"], tmp_path / "project", command=PATIENT_GATEWAY) as program:
        await asyncio.to_thread(program.wait_for, "Try:")
        await ask(f"{program.url}/agents/research/mcp")
        program.signal(signal.SIGTERM)
        printed = program.end()

    audited = tmp_path / "audited"
    audited.write_text("".join(line for line in printed.out.splitlines(keepends=True) if line.startswith("{")))
    assert [one["action"] for one in lines(audited)] == ["start", "call", "call_end", "stop"]
    assert verify([audited]).findings == []


async def test_all_workers_write_one_log(tmp_path: Path) -> None:
    async with fleet(tmp_path, audit_log=LOG) as served:
        answers = await asyncio.gather(*(ask(served.url("root"), f"delegate {number}") for number in range(12)))
        ids = {one.meta["call_id"] for one in answers}
        file = served.folder / LOG
        await eventually(lambda: file.read_text().count("call_end") >= 24, what="the ends of all calls")
        await eventually(lambda: served.metric("pallas_audit_sequence", output="file"), what="the parent's report")
        head = Head.parse(served.records("audit log head")[-1]["head"])

    written = lines(file)
    assert verify([file], [head]).findings == []
    begun = {one["call_id"]: one for one in written if one["action"] == "call"}
    assert {one["call_id"] for one in written if one["action"] == "call_end"} == begun.keys()
    assert {one["call_id"] for one in begun.values() if one["agent"] == "root"} == ids
    assert {one["parent"] for one in begun.values() if one["agent"] == "peer"} == ids
    assert [written[0]["action"], written[-1]["action"]] == ["start", "stop"]
