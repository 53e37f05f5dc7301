"""Tasks of MCP clients while processes are killed and replaced, databases away, callers gone and requests hostile.

Each counts the tool calls at the downstream and the requests at the model.
"""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import batched
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Table, exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from pallas_gateway.core.long_calls.records import LONGEST_REQUEST
from pallas_gateway.identity.secret import Secret
from pallas_gateway.shared.database.connections import Database
from pallas_gateway.shared.database.tables import METADATA, now, processes, tasks
from tests.e2e.canaries import leaks
from tests.e2e.fleet import WorkerManager
from tests.support import scripted_llm
from tests.support.clients import RawClient, tool_params
from tests.support.crowds import crowd
from tests.support.gateway import until_idle
from tests.support.leases import let_leases_end, let_tasks_expire
from tests.support.postgresql import postgresql
from tests.support.stored_threads import threads_of
from tests.support.task_worlds import (
    ACKNOWLEDGED,
    APPROVES,
    DECLARED,
    DONE,
    ROUNDS,
    YES,
    answered,
    call,
    request,
    world,
)
from tests.support.waiting import Gate, eventually

CANARY = "canarycallersbearer"
ADA = {"name": "ada", "sha256": sha256(b"a" * 24).hexdigest(), "grants": ["run:agents"]}


@crowd(3, 100)
async def test_a_drain_makes_tasks_of_running_calls_and_another_process_goes_on(
    database_url: str, tmp_path: Path, size: int
) -> None:
    async with world(database_url, tmp_path, two=True, tasks={"after_seconds": 3600}) as gateway:
        calling = [asyncio.create_task(call(gateway.there)) for _ in range(size)]
        await gateway.tools.gate.wait_for_entered(size)
        gateway.other.signal(signal.SIGTERM)
        created = [(await one).result for one in calling]
        gateway.tools.gate.open()
        ended = [await gateway.status(one["taskId"]) for one in created]
        assert gateway.continued("drained") == size
        code = (await asyncio.to_thread(gateway.other.end)).code
    assert [one["resultType"] for one in created] == ["task"] * size
    assert code == 0
    assert [one["result"]["content"] for one in ended] == [[{"type": "text", "text": DONE}]] * size
    assert Counter(gateway.tool_calls) == dict.fromkeys(("one", "two", "three"), size)
    assert len(gateway.llm.requests) == size * (len(ROUNDS) + 1)


async def test_the_database_away_is_an_error_of_each_request_and_the_task_goes_on_afterwards(tmp_path: Path) -> None:
    file = tmp_path / "threads.db"
    async with world(f"sqlite:///{file}", tmp_path, settings=APPROVES) as gateway:
        id_ = await gateway.begin()
        await gateway.tools.gate.wait_for_entered(1)
        away = file.rename(tmp_path / "away.db")
        gateway.tools.gate.open()
        sent = {"tasks/get": {}, "tasks/update": {"inputResponses": {"f00": YES}}, "tasks/cancel": {}}
        refused = [await request(gateway.here, method, id_, **more) for method, more in sent.items()]
        assert gateway.tool_calls == ["one"]
        [running] = await gateway.listed()
        kept = await gateway.api.delete(f"/calls/{running['id']}")  # else another process could go on with it
        away.rename(file)
        await gateway.database_is(up=True)
        ended = await answered(gateway, id_)
    assert (kept.status_code, kept.json()["error"]) == (503, "threads_unavailable")
    assert [(one.status, one.error["code"]) for one in refused] == [(200, -32603)] * 3
    assert {one.error["data"]["reason"] for one in refused} == {"threads_unavailable"}
    assert ended["result"]["content"] == [{"type": "text", "text": DONE}]
    assert gateway.tool_calls == ["one", "two", "three"]


@pytest.mark.parametrize("change", ["key removed", "right gone"])
async def test_a_caller_that_may_not_run_the_agent_any_more_has_its_task_cancelled_where_it_would_go_on(
    tmp_path: Path, change: str
) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, two=True, auth={"tokens": [ADA]}, bearer="a" * 24) as gateway:
        await gateway.begin(gateway.there)
        await gateway.tools.gate.wait_for_entered(1)

        def edit(document: dict[str, Any]) -> None:
            [key] = document["gateway"]["auth"]["tokens"]
            key.update({"name": "bob"} if change == "key removed" else {"grants": ["view:agents"]})

        gateway.served.project.edit(edit)
        await gateway.served.reload()
        await gateway.kill_other()
        await gateway.has_status("cancelled")
    assert gateway.tool_calls == ["one"]
    assert len(gateway.llm.requests) == 1


async def test_a_result_is_kept_until_it_expires_and_a_task_at_rest_that_expires_fails(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, two=True, settings=APPROVES) as gateway:
        gateway.tools.gate.open()
        ended = await gateway.begin(message="nothing")
        await gateway.status(ended, "completed")
        asks = await gateway.begin(gateway.there)
        await gateway.status(asks, "input_required")
        await let_tasks_expire(url)
        expired = await request(gateway.here, "tasks/get", ended)
        still = await gateway.get(asks)  # its process lives, and ends it by itself
        await gateway.kill_other()
        failed = await gateway.status(asks)
    assert expired.error["code"] == -32602
    assert still["status"] == "input_required"
    assert (failed["status"], failed["error"]["data"]) == ("failed", {"reason": "process_ended"})
    assert gateway.tool_calls == ["one"]


async def test_a_task_of_a_request_that_is_too_long_to_be_stored_stays_in_its_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, two=True) as gateway:
        long = "x" * LONGEST_REQUEST
        stays, moves = [await gateway.begin(gateway.there, message) for message in (long, "go")]
        await gateway.tools.gate.wait_for_entered(2)
        is_stored = await gateway.stored(select(func.count()).where(tasks.c.request.is_not(None)))
        await gateway.kill_other()
        failed, completed = await gateway.status(stays), await gateway.status(moves)
    assert is_stored == 1
    assert (failed["status"], failed["error"]["data"]) == ("failed", {"reason": "process_ended"})
    assert completed["status"] == "completed"
    assert gateway.tool_calls == ["one", "one", "two", "three"]


async def test_a_task_that_gets_no_slot_in_another_process_waits_and_does_not_fail(
    database_url: str, tmp_path: Path
) -> None:
    settings = {"max_in_flight": 1}
    async with world(database_url, tmp_path, two=True, settings=settings, queue_seconds=0) as gateway:
        id_ = await gateway.begin(gateway.there)
        holding = asyncio.create_task(call(gateway.here, meta={}))
        await gateway.tools.gate.wait_for_entered(2)
        gateway.other.signal(signal.SIGKILL)
        await let_leases_end(database_url)
        waits = select(tasks.c.claims).where(tasks.c.holder.is_(None), tasks.c.not_before > now())

        async def is_left() -> bool:
            return bool(await gateway.stored(waits))

        await eventually(is_left, what="a run that was refused, and is to be tried again")
        waiting = await gateway.get(id_)
        gateway.tools.gate.open()
        await holding
        await gateway.let_pauses_end()
        ended = await gateway.status(id_)
    assert waiting["status"] == "working"
    assert ended["status"] == "completed"
    assert sorted(gateway.tool_calls) == ["one", "one", "three", "three", "two", "two"]
    assert len(gateway.llm.requests) == 2 * (len(ROUNDS) + 1)


async def test_requests_about_tasks_are_guarded_as_calls_are_whatever_they_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    guarded = world(url, tmp_path, auth={"tokens": [ADA]}, bearer="a" * 24, max_body_bytes=10_000)
    async with guarded as gateway, httpx.AsyncClient(trust_env=False) as http:
        id_ = await gateway.begin()
        here, seen = gateway.here, {}
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            params: dict[str, Any] = {"taskId": id_, "inputResponses": {}}
            body = here.body_of(method, params, meta=DECLARED, request_id=1)
            headers = here.headers_of(method, params)
            renamed = {**headers, "mcp-name": "another"}
            answers = [
                await http.post(here.url, json=body, headers={**headers, "authorization": "Bearer " + "b" * 24}),
                await http.post(here.url, json=body, headers={**headers, "host": "evil.example"}),
                await http.post(here.url, json=body, headers={**headers, "origin": "http://evil.example"}),
                await http.post(here.url, json=body, headers=renamed),
                await http.post(here.url, json={**body, "more": "x" * 10_000}, headers=headers),
            ]
            seen[method] = [one.status_code for one in answers]
            assert answers[3].json()["error"]["code"] == -32020
            for hostile in (7, None, [id_], {"a": id_}, "x" * 5_000, "' OR 1=1 --", "%"):
                refused = await here.request(method, {**params, "taskId": hostile}, meta=DECLARED)
                assert refused.error["code"] in (-32602, -32020), (method, hostile)
        malformed: Any
        for malformed in ([], "f00", None):
            refused = await request(here, "tasks/update", id_, inputResponses=malformed)
            assert refused.error["code"] == -32602, malformed
        for unknown in ({"f00": 7}, {"f00": {"action": "x"}}, {"f00": None}, {"\0": {"action": "decline"}}):
            ignored = await request(here, "tasks/update", id_, inputResponses=unknown)
            assert ignored.result.keys() <= ACKNOWLEDGED
        still = await gateway.get(id_)
        gateway.tools.gate.open()
        await gateway.status(id_, "completed")
    assert [*seen.values()] == [[401, 421, 403, 400, 413]] * 3
    assert still["status"] == "working"
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


@crowd(6, 200)
async def test_tasks_whose_workers_are_killed_at_random_end_once_and_run_no_tool_twice(
    database_url: str, tmp_path: Path, size: int
) -> None:
    chance = random.Random(48)  # noqa: S311  no secret
    runs = select(func.sum(tasks.c.claims))
    async with world(
        database_url, tmp_path, two=True, workers=3, claim_seconds=3600, tasks={"most_per_caller": size}
    ) as gateway:
        workers = WorkerManager(gateway.other, tmp_path, gateway.llm, gateway.model, {})
        first = gateway.tools.gate

        def is_replaced(pid: int) -> bool:
            return bool(first.cancelled) or len(workers.pids - {pid}) == 3

        ids: list[str] = []
        for some in batched(range(size), 25):
            ids += await asyncio.gather(*(gateway.begin(gateway.there, f"go {number}") for number in some))
        await first.wait_for_entered(min(size, 50))  # a worker has at most 100 connections to a server
        for pid in sorted(workers.pids):
            os.kill(pid, signal.SIGKILL)
            await eventually(partial(is_replaced, pid), what="its end")
            if first.cancelled:
                break
        first.open()

        async def have_made(calls: int) -> bool:
            await gateway.let_pauses_end()
            is_over = not await gateway.stored(select(func.count()).where(tasks.c.ended_at.is_(None)))
            return is_over or (len(gateway.tool_calls) >= calls and len(workers.pids) == 3)

        for calls in sorted(chance.sample(range(size, len(ROUNDS) * size), max(2, size // 10))):
            await eventually(partial(have_made, calls), 300, what="the moment")
            for pid in chance.sample(sorted(workers.pids), 1 if len(workers.pids) == 3 else 0):
                with suppress(ProcessLookupError):  # it was killed just before, and was reaped meanwhile
                    os.kill(pid, signal.SIGKILL)
        await eventually(partial(have_made, 1 << 30), 600, what="the end of all")
        ended, claims = [await gateway.get(id_) for id_ in ids], int(await gateway.stored(runs))
    assert [one["status"] for one in ended] == ["completed"] * size
    assert claims
    ran, lost = gateway.tool_calls, str([one["result"] for one in ended]).count("result is not known")
    assert max(Counter(ran).values()) == 1
    assert len(ROUNDS) * size - lost <= len(ran) <= len(ROUNDS) * size
    assert len(gateway.llm.requests) <= size * (len(ROUNDS) + 1) + claims


@pytest.mark.needs("postgresql")
async def test_while_the_database_is_away_no_tool_begins_and_afterwards_all_tasks_end(tmp_path: Path) -> None:
    size = 3
    with postgresql() as server:
        async with world(server.new_database(), tmp_path, held_turn=1) as gateway:
            ids = [await gateway.begin() for _ in range(size)]
            await gateway.model.wait_for_entered(size)
            server.stop()
            gateway.model.open()
            gateway.tools.gate.open()
            await gateway.database_is(up=False)
            errors = [(await request(gateway.here, "tasks/get", id_)).error["code"] for id_ in ids * 3]
            begun = gateway.tool_calls
            server.start()
            await gateway.database_is(up=True)
            ended = [await gateway.status(id_) for id_ in ids]
    assert errors == [-32603] * 3 * size
    assert begun == []
    assert [one["result"]["content"] for one in ended] == [[{"type": "text", "text": DONE}]] * size
    assert Counter(gateway.tool_calls) == dict.fromkeys(("one", "two", "three"), size)
    assert len(gateway.llm.requests) == size * (len(ROUNDS) + 1)


async def test_the_token_of_a_caller_is_in_no_table_and_no_log_also_if_a_tool_returns_it(
    database_url: str, tmp_path: Path
) -> None:
    kept = ""
    async with world(database_url, tmp_path, two=True, settings=APPROVES, level="DEBUG") as gateway:
        gateway.tools.gate.open()
        token = {"authorization": f"Bearer {CANARY}"}
        created = await gateway.there.call_tool(
            "send_message", {"message": f"go {CANARY}"}, meta=DECLARED, headers=token
        )
        id_ = created.result["taskId"]
        await gateway.status(id_, "input_required")
        kept += await everything_in(database_url)
        ended = await answered(gateway, id_)
        kept += await everything_in(database_url)
        gateway.other.signal(signal.SIGTERM)
        log = (await asyncio.to_thread(gateway.other.end)).err
    assert gateway.tool_calls == [f"one {CANARY}", f"two {CANARY}", f"three {CANARY}"]
    assert ended["status"] == "completed"
    assert "one ****" in kept
    ours = [line for line in log.splitlines() if json.loads(line)["logger"] != "pallas.fast_agent"]
    assert "call ended" in log
    assert leaks({"database": kept, "log": "\n".join(ours), "task": json.dumps(ended)}, [CANARY]) == set()


async def everything_in(url: str) -> str:
    database = Database(Secret(url), Path("/"))
    try:
        found = [str((await database.read(partial(all_of, table=one))).all()) for one in METADATA.sorted_tables]
    finally:
        await database.close()
    files = Path(url.removeprefix("sqlite:///")).parent.glob("threads.db*") if url.startswith("sqlite") else ()
    return "".join([*found, *(one.read_bytes().decode("latin-1") for one in files)])


async def all_of(sql: AsyncConnection, table: Table) -> Any:
    return await sql.execute(select(table))


async def test_a_client_that_leaves_while_its_call_becomes_a_task_ends_it(tmp_path: Path) -> None:
    held = Gate()
    async with world(f"sqlite:///{tmp_path}/threads.db", tmp_path) as gateway:
        writing = asyncio.create_task(threads_of(gateway.served.gateway).database.write(lambda _: held.enter()))
        await held.wait_for_entered(1)
        params = tool_params("send_message", {"message": "go"})
        async with gateway.here.in_flight("tools/call", params, meta=DECLARED):
            await eventually(lambda: any("begin of task" in one.get_name() for one in asyncio.all_tasks()), what="it")
        held.open()
        await writing
        await gateway.has_status("cancelled")
        await until_idle(gateway.served)
    assert gateway.tool_calls == []


async def test_a_task_counts_once_and_is_in_the_audit_log_as_one_call(tmp_path: Path) -> None:
    rule = {"name": "one", "calls_per_minute": 1}
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, limits={"rules": [rule]}, audit_log="audit.log") as gateway:
        id_ = await gateway.begin()
        assert [(await gateway.get(id_))["status"] for _ in range(3)] == ["working"] * 3
        limited_one = await call(gateway.here)
        gateway.tools.gate.open()
        ended = await gateway.status(id_)
        log = (gateway.served.project.path / "audit.log").read_text()
    facts = ended["result"]["_meta"]["pallas/call"]
    entries = [json.loads(line) for line in log.splitlines()]
    its = [(one["action"], one["outcome"]) for one in entries if one.get("call_id") == facts["call_id"]]
    assert its == [("call", "allowed"), ("task_created", "ok"), ("call_end", "ok")]
    assert limited_one.result["_meta"]["pallas/call"]["stop_reason"] == "limited"


async def test_another_worker_goes_on_at_once_after_one_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, two=True, workers=2, claim_seconds=3600, held_turn=1) as gateway:
        workers = WorkerManager(gateway.other, tmp_path, gateway.llm, gateway.model, {})
        pid = min(workers.pids)
        async with workers.client_of(pid) as http:
            id_ = await gateway.begin(RawClient(http, f"{workers.base_url}/agents/solo/mcp", "2026-07-28"))
        await gateway.model.wait_for_entered(1)
        its_row = exists().where(processes.c.process == await gateway.stored(select(tasks.c.process)))
        os.kill(pid, signal.SIGKILL)
        await gateway.model.wait_for_entered(2)
        is_left = await gateway.stored(select(its_row))  # it would be there for minutes after its lease
        gateway.model.open()
        gateway.tools.gate.open()
        ended = await gateway.status(id_)
    assert not is_left
    assert ended["status"] == "completed"
    assert gateway.tool_calls == ["one", "two", "three"]


@pytest.mark.parametrize(("strange", "ran"), [("\0", 3), ("\ud800", 2)], ids=["NUL", "half of a surrogate pair"])
async def test_an_id_of_a_tool_call_that_databases_refuse_lets_no_task_wait(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strange: str, ran: int
) -> None:
    """The model's client sends no half of a pair: such a call fails after its next tool, as it does without a task."""
    plain = scripted_llm.call_id
    monkeypatch.setattr(scripted_llm, "call_id", lambda asked, index: plain(asked, index) + strange)
    async with world(database_url, tmp_path, two=True) as gateway:
        id_ = await gateway.begin(gateway.there)
        await gateway.tools.gate.wait_for_entered(1)
        await gateway.kill_other()
        gateway.tools.gate.open()
        ended = await gateway.status(id_)
    assert ended["status"] == "completed"
    assert ended["result"].get("isError", False) == (ran < 3)
    assert gateway.tool_calls == ["one", "two", "three"][:ran]


async def test_of_requests_that_end_a_task_at_rest_at_once_one_does(database_url: str, tmp_path: Path) -> None:
    async with world(database_url, tmp_path, two=True, settings=APPROVES, audit_log="${AUDIT_LOG}") as gateway:
        gateway.tools.gate.open()
        id_ = await gateway.begin(gateway.there)
        await gateway.status(id_, "input_required")
        await gateway.kill_other()
        [at_rest] = await gateway.listed()
        ends = (gateway.api.delete(f"/calls/{at_rest['id']}") for _ in range(4))
        codes = [one.status_code for one in await asyncio.gather(*ends)]
        audited = gateway.audited()
    assert sorted(codes) == [204, 404, 404, 404]
    assert audited == [("task_cancelled", None), ("call_end", "cancelled")]
