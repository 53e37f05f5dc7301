"""Calls of MCP clients that become tasks: `io.modelcontextprotocol/tasks` over plain HTTP, at two processes."""

import re
import signal
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path

from pallas_gateway.shared.database.tables import task_steps
from tests.support.clients import RawClient, raw_client
from tests.support.leases import let_leases_end
from tests.support.task_worlds import (
    ACKNOWLEDGED,
    APPROVES,
    DECLARED,
    DONE,
    EXTENSION,
    ROUNDS,
    YES,
    answered,
    call,
    request,
    world,
)
from tests.support.waiting import eventually

PATIENCE_SECONDS = 60


def without_ids(text: str) -> str:
    """An answer without what differs from call to call."""
    return re.sub(r"[0-9a-f]{16}|\"duration_seconds\": ?[0-9.]+|'duration_seconds': [0-9.]+", "…", text)


async def test_a_long_call_becomes_a_task_that_asks_and_has_the_whole_result(database_url: str, tmp_path: Path) -> None:
    async with world(database_url, tmp_path, settings=APPROVES) as gateway:
        created = (await call(gateway.here)).result
        id_ = created["taskId"]
        working = await gateway.get(id_)
        gateway.tools.gate.open()
        asks = await gateway.status(id_, "input_required")
        ((key, question),) = asks["inputRequests"].items()
        misfit = {"action": "accept", "content": {"decision": "perhaps"}}
        refused = await request(gateway.here, "tasks/update", id_, inputResponses={key: misfit})
        ignored = await request(gateway.here, "tasks/update", id_, inputResponses={"unknown": {"a": 1}})
        still = await gateway.get(id_)
        ended = await answered(gateway, id_)
        late = await request(gateway.here, "tasks/update", id_, inputResponses={key: YES})
        steps = await gateway.rows(task_steps)
    assert created["status"] == working["status"] == "working"
    assert (created["resultType"], working["resultType"]) == ("task", "complete")
    assert (created["ttlMs"], created["pollIntervalMs"]) == (86_400_000, 2000)
    assert created["createdAt"] == ended["createdAt"]
    assert question["method"] == "elicitation/create"
    assert refused.error["code"] == -32602
    assert ignored.result.keys() <= ACKNOWLEDGED
    assert still["inputRequests"].keys() == {key}
    assert late.result.keys() <= ACKNOWLEDGED
    assert ended["result"]["content"] == [{"type": "text", "text": DONE}]
    assert ended["result"]["_meta"]["pallas/call"]["agent"] == "solo"
    assert gateway.tool_calls == ["one", "two", "three"]
    assert steps == 0


async def test_a_call_that_ends_in_time_and_one_whose_client_declares_nothing_are_answered_without_a_task(
    database_url: str, tmp_path: Path
) -> None:
    async with world(database_url, tmp_path, tasks={"after_seconds": 60}) as gateway:
        gateway.tools.gate.open()
        direct, without = await call(gateway.here), await call(gateway.here, meta={})
        discovered = (await gateway.here.discover()).result["capabilities"]
        rows = await gateway.rows()
    assert direct.result["content"] == without.result["content"] == [{"type": "text", "text": DONE}]
    assert direct.result["resultType"] == without.result["resultType"] == "complete"
    assert discovered["extensions"] == {EXTENSION: {}}
    assert rows == 0


async def test_requests_about_tasks_are_refused_alike_for_foreign_unknown_and_expired_ones(tmp_path: Path) -> None:
    keys = {"ada": "a" * 24, "bob": "b" * 24}
    auth = {
        "tokens": [
            {"name": name, "sha256": sha256(key.encode()).hexdigest(), "grants": ["run:agents"]}
            for name, key in keys.items()
        ]
    }
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, auth=auth) as gateway:

        async def of(name: str, agent: str) -> RawClient:
            address = f"{gateway.served.base_url}{agent}"
            return await stack.enter_async_context(
                raw_client(address, protocol_version="2026-07-28", bearer=keys[name])
            )

        async with AsyncExitStack() as stack:
            ada, bob = await of("ada", "/agents/solo/mcp"), await of("bob", "/agents/solo/mcp")
            id_ = await gateway.begin(ada)
            others = [bob, await of("ada", "/agents/second/mcp"), await of("bob", "/mcp")]
            refused = [
                (await request(one, method, id_, inputResponses={})).error
                for one in others
                for method in ("tasks/get", "tasks/update", "tasks/cancel")
            ]
            refused.append((await request(ada, "tasks/get", "unknown")).error)
            at_all = await request(await of("ada", "/mcp"), "tasks/get", id_)
            undeclared = await request(ada, "tasks/get", id_, meta={})
            renamed = await ada.request("tasks/get", {"taskId": id_}, meta=DECLARED, headers={"mcp-name": "other"})
            body = ada.body_of("tasks/get", {"taskId": id_}, meta=DECLARED, request_id=1)
            unnamed = (await ada.post(body, headers=ada.headers_of("tasks/get"))).json()
            removed = [await request(ada, f"tasks/{what}", id_) for what in ("list", "result")]
            cancelled = [await request(ada, "tasks/cancel", id_) for _ in range(2)]
            await gateway.tools.gate.wait_for_cancelled(1)
            last = await request(ada, "tasks/get", id_)
    assert [one["code"] for one in refused] == [-32602] * 10
    assert len({one["message"] for one in refused}) == 1
    assert at_all.result["status"] == unnamed["result"]["status"] == "working"
    assert (undeclared.status, undeclared.error["code"]) == (400, -32021)
    assert undeclared.error["data"]["requiredCapabilities"] == {"extensions": {EXTENSION: {}}}
    assert (renamed.status, renamed.error["code"]) == (400, -32020)
    assert [one.error["code"] for one in removed] == [-32601] * 2
    assert all(one.result.keys() <= ACKNOWLEDGED for one in cancelled)
    assert last.result["status"] == "cancelled"
    assert "result" not in last.result


async def test_an_agent_that_requires_tasks_refuses_others_and_one_that_never_has_them_answers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, settings={"tasks": "required"}, most={"second": {"tasks": "never"}}) as gateway:
        refused = await call(gateway.here, meta={})
        id_ = await gateway.begin(message="nothing")
        ended = await gateway.status(id_)
        address = f"{gateway.served.base_url}/agents/second/mcp"
        async with raw_client(address, protocol_version="2026-07-28") as second:
            direct = await call(second, "nothing")
            unknown = await request(second, "tasks/get", id_)
    assert (refused.status, refused.error["code"]) == (400, -32021)
    assert ended["result"]["content"] == [{"type": "text", "text": "nothing"}]
    assert direct.result["resultType"] == "complete"
    assert unknown.error["code"] == -32601


async def test_a_caller_has_so_many_tasks_and_its_next_call_is_answered_as_without_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, tasks={"most_per_caller": 1}) as gateway:
        first = await gateway.begin()
        direct = await call(gateway.here, "nothing")
        await request(gateway.here, "tasks/cancel", first)
        second = await gateway.begin()
        gateway.tools.gate.open()
        ended = await gateway.status(second)
    assert direct.result["resultType"] == "complete"
    assert ended["status"] == "completed"


async def test_a_failure_of_the_agent_is_a_completed_task_with_an_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, tasks={"timeout_seconds": 0.2}) as gateway:
        id_ = await gateway.begin()
        ended = await gateway.status(id_)
    assert ended["status"] == "completed"
    assert ended["result"]["_meta"]["pallas/call"]["stopped"] == "deadline"


async def test_another_process_goes_on_with_a_task_after_a_kill_and_runs_nothing_twice(
    database_url: str, tmp_path: Path
) -> None:
    async with world(database_url, tmp_path, two=True, settings=APPROVES, audit_log="${AUDIT_LOG}") as gateway:
        id_ = await gateway.begin(gateway.there)
        await gateway.tools.gate.wait_for_entered(1)
        gateway.other.signal(signal.SIGKILL)
        gateway.tools.gate.open()
        await let_leases_end(database_url)
        ended = await answered(gateway, id_)
        assert gateway.continued("killed") == gateway.served.metric("pallas_task_wait_seconds_count") == 1
        assert 0 <= gateway.served.metric("pallas_task_wait_seconds_sum") < PATIENCE_SECONDS
        assert gateway.served.metric("pallas_task_lost_tools_total", agent="solo") == 1
        assert gateway.served.metric("pallas_tasks_ended_total", agent="solo", status="completed") == 1
        audited = gateway.audited()
    assert audited[0] == ("task_continued", "killed")
    assert audited[-1] == ("call_end", "endTurn")
    assert ended["status"] == "completed"
    assert gateway.tool_calls == ["one", "two", "three"]
    assert "result is not known" in str(gateway.llm.requests[-1].tool_results)
    assert len(gateway.llm.requests) == len(ROUNDS) + 1


async def test_an_answer_at_another_process_wakes_a_task_whose_process_was_killed(
    database_url: str, tmp_path: Path
) -> None:
    async with world(database_url, tmp_path, two=True, settings=APPROVES) as gateway:
        gateway.tools.gate.open()
        id_ = await gateway.begin(gateway.there)
        await gateway.status(id_, "input_required")
        gateway.other.signal(signal.SIGKILL)
        await let_leases_end(database_url)
        ended = await answered(gateway, id_)
        assert gateway.continued("answered") == 1
    assert ended["result"]["content"] == [{"type": "text", "text": DONE}]
    assert gateway.tool_calls == ["one", "two", "three"]


async def test_a_task_that_needs_the_token_of_its_caller_fails_with_its_process(
    database_url: str, tmp_path: Path
) -> None:
    async with world(database_url, tmp_path, two=True, audit_log="${AUDIT_LOG}") as gateway:
        created = await gateway.there.call_tool(
            "send_message", {"message": "go"}, meta=DECLARED, headers={"authorization": "Bearer secret-of-a-caller"}
        )
        id_ = created.result["taskId"]
        gateway.other.signal(signal.SIGKILL)
        await let_leases_end(database_url)
        ended = await gateway.get(id_)
        gateway.tools.gate.open()
        audited = gateway.audited()
    assert audited == [("call_end", "process_ended")]
    assert ended["status"] == "failed"
    assert ended["error"]["data"] == {"reason": "process_ended"}
    assert "result" not in ended


async def test_a_cancellation_at_another_process_ends_the_run(database_url: str, tmp_path: Path) -> None:
    async with world(database_url, tmp_path, two=True) as gateway:
        id_ = await gateway.begin(gateway.there)
        await gateway.tools.gate.wait_for_entered(1)
        await request(gateway.here, "tasks/cancel", id_)
        await gateway.tools.gate.wait_for_cancelled(1)
        ended = await gateway.get(id_)
    assert ended["status"] == "cancelled"


async def test_clients_that_declare_nothing_see_nothing_of_tasks(tmp_path: Path) -> None:
    seen = []
    for off in (False, True):
        async with world(f"sqlite:///{tmp_path}/{off}.db", tmp_path / str(off), off=off) as gateway:
            async with raw_client(gateway.here.url, protocol_version="2025-11-25") as older:
                shaken = await older.initialize()
                calls = [await call(older, "nothing", meta={}), await call(gateway.here, "nothing", meta={})]
            seen.append([without_ids(one.text or str(one.messages)) for one in (shaken, *calls)])
            rows = await gateway.rows()
        assert rows == 0
    assert seen[0] == seen[1]


async def test_a_task_of_an_agent_that_is_gone_fails_with_that_reason(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, two=True, audit_log="${AUDIT_LOG}") as gateway:
        id_ = await gateway.begin(gateway.there)
        gateway.served.project.edit(lambda document: document["agents"].pop("solo"))
        await gateway.served.reload()
        gateway.other.signal(signal.SIGKILL)
        gateway.tools.gate.open()
        await let_leases_end(url)
        async with raw_client(f"{gateway.served.base_url}/mcp", protocol_version="2026-07-28") as everything:
            gateway.here = everything
            ended = await gateway.status(id_)
        audited = gateway.audited()
    assert audited[-1] == ("call_end", "agent_gone")
    assert ended["status"] == "failed"
    assert ended["error"]["data"] == {"reason": "agent_gone"}


async def test_a_caller_that_may_no_longer_run_the_agent_answers_no_question_of_its_task(tmp_path: Path) -> None:
    key = {"name": "ada", "sha256": sha256(b"a" * 24).hexdigest(), "grants": ["run:agents"]}
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world(url, tmp_path, settings=APPROVES, auth={"tokens": [key]}) as gateway:
        gateway.tools.gate.open()
        address = f"{gateway.served.base_url}/agents/solo/mcp"
        async with raw_client(address, protocol_version="2026-07-28", bearer="a" * 24) as ada:
            gateway.here = ada
            id_ = await gateway.begin()
            asked = (await gateway.status(id_, "input_required"))["inputRequests"]
            gateway.served.project.edit(
                lambda document: document["gateway"]["auth"]["tokens"][0].update(grants=["view:agents"])
            )
            await gateway.served.reload()
            refused = await request(ada, "tasks/update", id_, inputResponses=dict.fromkeys(asked, YES))
            unreadable = await request(ada, "tasks/get", "a\0b")
            still = await gateway.get(id_)
    assert refused.error["code"] == unreadable.error["code"] == -32602
    assert still["inputRequests"].keys() == asked.keys()


async def test_a_task_that_no_process_runs_is_listed_and_ended_at_another_gateway(
    database_url: str, tmp_path: Path
) -> None:
    async with world(database_url, tmp_path, two=True, settings=APPROVES, audit_log="${AUDIT_LOG}") as gateway:
        gateway.tools.gate.open()
        id_ = await gateway.begin(gateway.there)
        await gateway.status(id_, "input_required")
        [elsewhere] = await gateway.listed()
        gateway.other.signal(signal.SIGKILL)
        await let_leases_end(database_url)
        [at_rest] = await gateway.listed()
        waiting = lambda: gateway.served.metric("pallas_tasks", status="input_required") == 1  # noqa: E731
        await eventually(waiting, what="the task in the metrics")
        codes = [(await gateway.api.delete(f"/calls/{at_rest['id']}")).status_code for _ in range(2)]
        ended, after, audited = await gateway.get(id_), await gateway.listed(), gateway.audited()
        assert gateway.served.metric("pallas_tasks_ended_total", agent="solo", status="cancelled") == 1
    shown = {"agent": "solo", "caller": "anonymous", "api": "mcp", "parent": None, "worker": None, "waiting": True}
    long = {"status": "input_required", "statusMessage": "solo step 4 (tool)", "runs": 1, "step": 2}
    assert {**elsewhere, **shown, **long, "atRest": False} == elsewhere
    assert {**elsewhere, "atRest": True, "seconds": at_rest["seconds"]} == at_rest
    assert codes == [204, 404]
    assert ended["status"] == "cancelled"
    assert after == []
    assert audited == [("task_cancelled", None), ("call_end", "cancelled")]


async def test_a_task_that_runs_here_is_listed_once_and_without_the_database_the_list_says_what_is_missing(
    tmp_path: Path,
) -> None:
    async with world(f"sqlite:///{tmp_path}/threads.db", tmp_path) as gateway:
        await gateway.begin()
        assert gateway.served.metric("pallas_tasks_created_total", agent="solo", api="mcp") == 1
        whole = (await gateway.api.get("/calls")).json()
        (tmp_path / "threads.db").unlink()
        away = (await gateway.api.get("/calls")).json()
        unknown = await gateway.api.delete(f"/calls/{'0' * 16}")
        gateway.tools.gate.open()
    assert [(one["worker"], "status" in one) for one in whole["calls"]] == [(1, False)]
    assert "tasksMissing" not in whole
    assert (away["tasksMissing"], [one["id"] for one in away["calls"]]) == (True, [whole["calls"][0]["id"]])
    assert (unknown.status_code, unknown.json()["error"]) == (503, "threads_unavailable")


async def test_callers_list_and_end_their_own_tasks_and_with_grants_those_of_others(
    database_url: str, tmp_path: Path
) -> None:
    grants = {"ada": [], "bob": [], "viewer": ["view:calls"], "ops": ["cancel:calls"]}
    tokens = [
        {"name": name, "sha256": sha256(name.encode() * 8).hexdigest(), "grants": ["run:agents", *more]}
        for name, more in grants.items()
    ]
    async with world(database_url, tmp_path, two=True, auth={"tokens": tokens}) as gateway:
        of = {name: {"authorization": f"Bearer {name * 8}"} for name in grants}
        async with raw_client(gateway.there.url, protocol_version="2026-07-28", bearer="ada" * 8) as ada:
            await gateway.begin(ada)
        await gateway.tools.gate.wait_for_entered(1)
        seen = {name: await gateway.listed(**headers) for name, headers in of.items()}
        [task] = seen["ada"]
        codes = {name: (await gateway.api.delete(f"/calls/{task['id']}", headers=of[name])).status_code for name in
                 ("bob", "viewer", "ops", "ada")}  # fmt: skip
        await gateway.tools.gate.wait_for_cancelled(1)
    assert {name: len(found) for name, found in seen.items()} == {"ada": 1, "bob": 0, "viewer": 1, "ops": 0}
    assert task["caller"] == "key:ada"
    assert codes == {"bob": 404, "viewer": 403, "ops": 204, "ada": 404}
