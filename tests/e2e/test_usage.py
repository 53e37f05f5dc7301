"""Usage over HTTP: calls and tokens by caller and agent, limits, and who sees which of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.calls.used import UsageKey, Used
from pallas_gateway.features.usage.feature import UsageFeature
from pallas_gateway.features.usage.usage_table import MOST_ACCOUNTS
from tests.e2e.fleet import WorkerManager, fleet
from tests.support.agents_api import agents_api
from tests.support.calling import ask
from tests.support.gateway import Agent, running, write_project
from tests.support.guarded import static_key
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, fail, say
from tests.support.waiting import eventually
from tests.support.watching import Stage, speaker, stage

PATH = "/api/v1/usage"
KEYS = {name: f"pgw_the-key-of-{name}" for name in ("anna", "ben", "boss")}
NOTHING = {"today": [], "total": [], "complete": True}
RULES = [
    {"caller": "key:*", "agent": "*", "calls_per_minute": 60, "tokens_per_day": 5000},
    {"name": "few", "agent": "p*", "per": "caller_and_agent", "calls_at_once": 2, "enforce": False},
    {"caller": "key:boss", "calls_at_once": 3},
    {"agent": "secret", "per": "agent", "calls_at_once": 3},
]


def script(request: LlmRequest) -> Turn:
    if request.last_user_text == "fail":
        return fail(400)
    if speaker(request) == "peer" or request.tool_results:
        return say("done")
    return call_tools([("peer__send_message", {"message": "and now?"})])


@asynccontextmanager
async def company(path: Path, **gateway: Any) -> AsyncGenerator[Stage]:
    """`root`, which calls its peer `peer` once, and `secret`, which no caller but boss may view."""
    with reserved_port() as port:
        agents = {
            "root": Agent(["tools", "peer"]),
            "peer": Agent(["tools"], settings={"port": port}),
            "secret": Agent(["tools"]),
        }
        servers = {"peer": {"url": f"http://localhost:{port}/mcp"}}
        async with stage(path, script, agents, peers=servers, gateway=gateway) as staged:
            yield staged


def auth(**more: Any) -> dict[str, Any]:
    own = [f"run:agents:{name}" for name in ("root", "peer")]
    grants = {"anna": own, "ben": own, "boss": ["run:agents", "view:calls"]}
    return {"tokens": [static_key(*grants[name], key=key, name=name) for name, key in KEYS.items()], **more}


async def get(staged: Stage, name: str | None = None, query: str = "", method: str = "GET") -> httpx.Response:
    headers = {"authorization": f"Bearer {KEYS[name]}"} if name else {}
    return await staged.served.request(method, PATH + query, headers=headers)


async def usage(staged: Stage, name: str | None = None, query: str = "") -> dict[str, Any]:
    response = await get(staged, name, query)
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    return dict(response.json())


def counted(rows: list[dict[str, Any]], *names: str) -> dict[tuple[str, ...], tuple[int, int, int, int]]:
    """Calls, refused and nested calls, and tokens of all kinds, by the values of `names`."""
    return {
        tuple(row[name] for name in names): (
            row["calls"],
            row["refused"],
            row["nestedCalls"],
            sum(row["tokens"].values()),
        )
        for row in rows
    }


async def test_callers_see_their_own_usage_and_a_caller_with_the_grant_that_of_all(tmp_path: Path) -> None:
    async with company(tmp_path, auth=auth()) as staged:
        for name, times in (("anna", 2), ("ben", 1)):
            for _ in range(times):
                assert (await ask(staged.url("root"), bearer=KEYS[name])).text == "done"
        refused = await ask(staged.url("peer"), bearer=KEYS["ben"], images=["no base64"])
        anna, ben, boss = [await usage(staged, name) for name in KEYS]
        by_agent = (await usage(staged, "boss", "?by=agent"))["all"]
        by_caller = (await usage(staged, "boss", "?by=caller"))["all"]
        metric = {
            (name, agent): staged.served.metric("pallas_caller_tokens_total", caller=f"key:{name}", agent=agent)
            for name in ("anna", "ben")
            for agent in ("root", "peer")
        }

    assert refused.is_error
    assert (anna["caller"], ben["caller"], boss["caller"]) == ("key:anna", "key:ben", "key:boss")
    assert [one["own"]["today"] for one in (anna, ben, boss)] == [one["own"]["total"] for one in (anna, ben, boss)]
    assert "all" not in anna
    assert "all" not in ben
    own = counted(anna["own"]["today"], "agent")
    assert own == {("root",): (2, 0, 0, own["root",][3]), ("peer",): (0, 0, 2, own["peer",][3])}
    assert all(tokens > 0 for *_, tokens in own.values())
    assert boss["own"] == NOTHING
    root, peer = own["root",][3] // 2, own["peer",][3] // 2
    assert counted(boss["all"]["total"], "caller", "agent") == {
        ("key:anna", "root"): (2, 0, 0, 2 * root),
        ("key:anna", "peer"): (0, 0, 2, 2 * peer),
        ("key:ben", "root"): (1, 0, 0, root),
        ("key:ben", "peer"): (0, 1, 1, peer),
    }
    assert metric == {
        ("anna", "root"): 2 * root,
        ("anna", "peer"): 2 * peer,
        ("ben", "root"): root,
        ("ben", "peer"): peer,
    }
    assert counted(by_agent["today"], "agent") == {("root",): (3, 0, 0, 3 * root), ("peer",): (0, 1, 3, 3 * peer)}
    assert counted(by_caller["today"], "caller") == {
        ("key:anna",): (2, 0, 2, 2 * (root + peer)),
        ("key:ben",): (1, 1, 1, root + peer),
    }


async def test_a_caller_sees_its_limits_and_no_agent_that_it_may_not_view(tmp_path: Path) -> None:
    async with company(tmp_path, auth=auth(), limits={"rules": RULES}) as staged:
        limits = (await usage(staged, "anna"))["limits"]
        of_boss = (await usage(staged, "boss"))["limits"]

    assert [(one["rule"], one["per"], one["agents"], one["kind"], one["limit"], one["enforced"]) for one in limits] == [
        ("rule-1", "caller", ["root", "peer"], "calls_per_minute", 60, True),
        ("rule-1", "caller", ["root", "peer"], "tokens_per_day", 5000, True),
        ("few", "caller_and_agent", ["peer"], "calls_at_once", 2, False),
    ]
    assert [one["rule"] for one in of_boss] == ["rule-1", "rule-1", "few", "rule-3", "rule-4"]


@pytest.mark.parametrize("store", [{}, {"store": "database"}], ids=["memory", "database"])
async def test_a_caller_sees_what_it_has_used_of_its_limits_and_never_the_use_of_others(
    store: dict[str, str], tmp_path: Path
) -> None:
    rules = [
        {"caller": "key:*", "calls_per_minute": 60, "tokens_per_day": 5000},
        {"agent": "peer", "per": "caller_and_agent", "calls_at_once": 2},
        {"agent": "root", "per": "agent", "calls_per_minute": 60},
    ]
    limits = {"rules": rules, **store}
    async with company(tmp_path, auth=auth(), limits=limits, database="sqlite:///threads.db") as staged:
        for name, times in (("anna", 2), ("ben", 1)):
            for _ in range(times):
                await ask(staged.url("root"), bearer=KEYS[name])
        anna, ben, boss = [await usage(staged, name) for name in KEYS]

    def used(document: dict[str, Any]) -> dict[tuple[str, str], int | None]:
        return {(one["rule"], one["kind"]): one["used"] for one in document["limits"]}

    def tokens(document: dict[str, Any]) -> int:
        return sum(sum(row["tokens"].values()) for row in document["own"]["today"])

    assert tokens(anna) == 2 * tokens(ben) > 0
    for document, calls in ((anna, 2), (ben, 1), (boss, 0)):
        assert used(document) == {
            ("rule-1", "calls_per_minute"): calls,
            ("rule-1", "tokens_per_day"): tokens(document),
            ("rule-2", "calls_at_once"): 0,
            ("rule-3", "calls_per_minute"): None,
        }
    resets = {(one["rule"], one["kind"]): one["resetSeconds"] for one in anna["limits"]}
    assert 0 < resets["rule-1", "calls_per_minute"] <= 60
    assert 0 < resets["rule-1", "tokens_per_day"] <= 86_400
    assert resets["rule-2", "calls_at_once"] is resets["rule-3", "calls_per_minute"] is None


async def test_without_auth_every_caller_sees_the_usage_of_all(tmp_path: Path) -> None:
    async with company(tmp_path, prices={"generic.scripted": {"input": 1, "output": 1}}) as staged:
        await ask(staged.url("peer"))
        seen = await usage(staged)

    assert counted(seen["own"]["today"], "agent").keys() == {("peer",)}
    assert counted(seen["all"]["today"], "caller", "agent").keys() == {("anonymous", "peer")}
    assert seen["own"]["today"][0]["cost"] is not None


async def test_usage_of_ten_thousand_callers_leaves_the_event_loop_free_for_calls(tmp_path: Path) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        usage = served.gateway.find(UsageFeature)
        assert usage is not None
        for number in range(MOST_ACCOUNTS):
            owner = f"https://login.example.test|{number}"
            usage.source.add(UsageKey.of(f"token:{number}", owner, "echo"), Used(calls=1, input=10))
        async with httpx.AsyncClient(base_url=served.base_url, trust_env=False) as http:
            await http.get("/livez")
            counting = asyncio.create_task(count_turns())
            answer = (await http.get(PATH)).json()
            counting.cancel()

    assert len(answer["all"]["today"]) == len(answer["all"]["total"]) == MOST_ACCOUNTS
    assert answer["all"]["today"][0]["caller"] == "token:0"
    assert (
        turns > 6 * MOST_ACCOUNTS / 100 / 2
    )  # sums, texts and totals of two periods in parts of 100; not all are long


def of_days(rows: list[dict[str, Any]], *names: str) -> dict[tuple[str, ...], tuple[int, int, int, dict[str, int]]]:
    """Calls, refused and nested calls, and failures, by the values of `names`."""
    return {
        tuple(row[name] for name in names): (row["calls"], row["refused"], row["nestedCalls"], row["failures"])
        for row in rows
    }


async def test_usage_of_days_is_that_of_all_runs_with_failures_by_their_reasons(tmp_path: Path) -> None:
    kept = {
        "auth": auth(),
        "database": "sqlite:///pallas.db",
        "prices": {"test-model": {"input": 1000, "output": 1000}},
    }
    async with company(tmp_path, **kept) as staged:
        await ask(staged.url("root"), bearer=KEYS["anna"])
    async with company(tmp_path, **kept) as staged:
        await ask(staged.url("root"), bearer=KEYS["anna"])
        await ask(staged.url("root"), "fail", bearer=KEYS["ben"])
        await ask(staged.url("peer"), bearer=KEYS["ben"], images=["no base64"])
        anna, ben, boss = [await usage(staged, name, "?days=7") for name in KEYS]
        by_agent, by_model = [(await usage(staged, "boss", f"?days=1&by={by}"))["days"] for by in ("agent", "model")]

    assert sum(row["calls"] for row in anna["own"]["total"]) == 1  # since the start
    days = boss["days"]
    assert (days["complete"], days["since"], days["own"], days["owned"]) == (True, boss["day"], [], [])
    assert {row["day"] for row in days["all"]} == {boss["day"]}
    assert of_days(days["all"], "caller", "agent", "model") == {
        ("key:anna", "root", "test-model"): (2, 0, 0, {}),
        ("key:anna", "peer", "test-model"): (0, 0, 2, {}),
        ("key:ben", "root", ""): (1, 0, 0, {"llm_error": 1}),
        ("key:ben", "peer", ""): (0, 1, 0, {"bad_image": 1}),
    }
    assert of_days(by_agent["all"], "agent") == {
        ("root",): (3, 0, 0, {"llm_error": 1}),
        ("peer",): (0, 1, 2, {"bad_image": 1}),
    }
    assert of_days(by_model["all"], "model") == {
        ("test-model",): (2, 0, 2, {}),
        ("",): (1, 1, 0, {"llm_error": 1, "bad_image": 1}),
    }
    root = next(row for row in anna["days"]["own"] if row["agent"] == "root")
    assert root["tokens"] == {name: 2 * count for name, count in anna["own"]["total"][1]["tokens"].items()}
    assert root["cost"] == pytest.approx(sum(root["tokens"].values()) / 1000)
    assert "all" not in anna["days"]
    assert "ben" not in str(anna)
    assert "anna" not in str(ben)


async def test_owners_of_agents_read_the_numbers_of_all_calls_without_names(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make(wait=True)
        for key in ("runner", "owner"):
            assert not (await ask(api.served.url("poet"), "hello", bearer=key)).is_error

        async def read(key: str, by: str = "") -> dict[str, Any]:
            answer = await api.http.get(f"/usage?days=7{by}", headers={"Authorization": f"Bearer {key}"})
            return dict(answer.raise_for_status().json())

        owner, other, total = await read("owner"), await read("editor"), await read("owner", "&by=caller")
    assert of_days(owner["days"]["owned"], "agent", "model") == {("poet", "passthrough"): (2, 0, 0, {})}
    assert of_days(owner["days"]["own"], "agent") == {("poet",): (1, 0, 0, {})}
    assert "runner" not in str(owner)
    assert other["days"]["owned"] == other["days"]["own"] == []
    assert [row["calls"] for row in total["days"]["owned"]] == [2]


@pytest.mark.parametrize("gateway", [{}, {"database": "sqlite:///pallas.db", "usage_days": 0}], ids=["none", "off"])
async def test_without_stored_days_the_answer_has_none(gateway: dict[str, Any], tmp_path: Path) -> None:
    async with company(tmp_path, auth=auth(), **gateway) as staged:
        await ask(staged.url("peer"), bearer=KEYS["anna"])
        anna = await usage(staged, "anna", "?days=7&by=model")
    assert anna["days"] is None
    assert anna["own"]["total"][0]["calls"] == 1


async def test_a_result_has_what_the_agents_that_were_called_have_used_as_well(tmp_path: Path) -> None:
    prices = {"test-model": {"input": 1000, "output": 1000}}
    shared = {"prices": prices, "openai_api": True, "database": "sqlite:///pallas.db"}
    async with company(tmp_path, **shared) as staged:
        root, peer = (await ask(staged.url("root"))).meta, (await ask(staged.url("peer"))).meta
        message = {"model": "root", "messages": [{"role": "user", "content": "hi"}]}
        completion = (await staged.served.request("POST", "/v1/chat/completions", json=message)).json()
        turn = (await staged.served.request("POST", "/api/v1/agents/root/chat", json={"message": "hi"})).json()

    assert "usage_with_nested" not in peer
    both = root["usage_with_nested"]
    assert both == {kind: tokens + peer["usage"][kind] for kind, tokens in root["usage"].items()}
    assert root["cost_with_nested"] == pytest.approx(root["cost"] + peer["cost"])
    assert completion["pallas"] == {"usage_with_nested": both, "cost_with_nested": root["cost_with_nested"]}
    assert (turn["usageWithNested"], turn["costWithNested"]) == (both, root["cost_with_nested"])
    assert turn["usage"] == root["usage"]


READ = {
    None: (401, "unauthorized"), "unknown": (401, "invalid_token"), "expired": (401, "invalid_token"),
    "nothing": (200, "own"), "view:agents": (200, "own"), "run:agents": (200, "own"), "run:agents:peer": (200, "own"),
    "view:instructions": (200, "own"), "view:metrics": (200, "own"), "view:gateway": (200, "own"),
    "cancel:calls": (200, "own"), "view:calls": (200, "all"),
}  # fmt: skip


async def test_who_reads_the_usage_of_all(tmp_path: Path) -> None:
    keys = [static_key(name, key=name, name=name.replace(":", "-")) for name in READ if name and ":" in name]
    keys.append(static_key(key="nothing", name="nothing"))
    keys.append({**static_key("view:calls", key="expired", name="expired"), "not_after": "2020-01-01"})

    async def read(name: str | None) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {name}"} if name else {}
        answer = await staged.served.request("GET", PATH, headers=headers)
        document = answer.json()
        return answer.status_code, document.get("error") or ("all" if "all" in document else "own")

    async with company(tmp_path, auth={"tokens": keys}) as staged:
        seen = {name: await read(name) for name in READ}

    assert seen == READ


async def test_anonymous_callers_share_addresses_so_they_see_nothing_with_auth(tmp_path: Path) -> None:
    async with company(tmp_path, auth=auth(anonymous=["run:agents"])) as staged:
        response = await get(staged)
        with_key = await get(staged, "anna")

    assert response.status_code == 401
    assert with_key.status_code == 200


async def test_a_request_that_asks_for_something_else_is_refused(tmp_path: Path) -> None:
    requests = [
        ("?by=account", "GET", 400, "'by' must be 'caller', 'agent' or 'model'."),
        ("?by=model", "GET", 400, "'by=model' requires 'days'."),
        ("?days=0", "GET", 400, "'days' must be at least 1."),
        ("?by=agent&by=caller", "GET", 400, "Parameter 'by' is given twice"),
        ("?owner=key%3Aben", "GET", 400, "Unknown parameter 'owner'"),
        ("?%1b%5b31m=1", "GET", 400, "Unknown parameter"),
        ("", "POST", 405, "Use GET, HEAD."),
    ]
    async with company(tmp_path, auth=auth()) as staged:
        for query, method, status, says in requests:
            response = await get(staged, "anna", query, method)
            assert (query, response.status_code) == (query, status)
            assert says in response.json()["error_description"]
            assert "\x1b" not in response.json()["error_description"]


# --- over two workers -------------------------------------------------------------------------------------------------

GRANTS = {"anna": ["run:agents"], "ben": ["run:agents"], "boss": ["run:agents", "view:calls"]}
AUTH = {"tokens": [static_key(*GRANTS[name], key=key, name=name) for name, key in KEYS.items()]}


async def read(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    response = await http.get(PATH, headers={"authorization": f"Bearer {KEYS[name]}"})
    assert response.status_code == 200, response.text
    return dict(response.json())


def calls(rows: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    return {(row.get("caller", ""), row["agent"]): row["calls"] for row in rows}


async def call(served: WorkerManager, pid: int, name: str, times: int = 1) -> None:
    with served.only(pid):
        for _ in range(times):
            assert not (await ask(served.url("peer"), "hello", bearer=KEYS[name])).is_error


async def test_each_worker_answers_for_all_and_callers_see_only_their_own(tmp_path: Path) -> None:
    async with fleet(tmp_path, auth=AUTH) as served, AsyncExitStack() as stack:
        one, other = sorted(served.pids)
        clients = [await stack.enter_async_context(served.client_of(pid)) for pid in (one, other)]
        await call(served, one, "anna", 2)
        await call(served, other, "anna")
        await call(served, other, "ben")

        async def all_counted() -> bool:
            seen = [(await read(http, "boss"))["all"]["today"] for http in clients]
            return [calls(rows) for rows in seen] == [{("key:anna", "peer"): 3, ("key:ben", "peer"): 1}] * 2

        await eventually(all_counted, what="the reports of both workers")
        for http in clients:
            anna, ben = await read(http, "anna"), await read(http, "ben")
            assert (calls(anna["own"]["today"]), calls(ben["own"]["total"])) == ({("", "peer"): 3}, {("", "peer"): 1})
            assert "all" not in anna
            assert "key:ben" not in str(anna)
            assert "key:anna" not in str(ben)


async def test_workers_add_their_calls_up_in_the_database_also_of_one_that_has_ended(tmp_path: Path) -> None:
    async with fleet(tmp_path, auth=AUTH, database="sqlite:///pallas.db") as served, AsyncExitStack() as stack:
        one, other = sorted(served.pids)
        http = await stack.enter_async_context(served.client_of(one))
        await call(served, one, "anna")
        await call(served, other, "anna", 2)
        os.kill(other, signal.SIGTERM)
        await eventually(lambda: other not in served.pids, what="the end of the worker")

        async def days() -> dict[tuple[str, str], int]:
            answer = await http.get(f"{PATH}?days=1", headers={"authorization": f"Bearer {KEYS['boss']}"})
            return calls(answer.json()["days"]["all"])

        assert await days() == {("key:anna", "peer"): 3}


async def test_usage_of_a_worker_that_was_stopped_is_kept_without_waiting_for_its_next_report(tmp_path: Path) -> None:
    async with fleet(tmp_path, auth=AUTH) as served, AsyncExitStack() as stack:
        one, other = sorted(served.pids)
        http = await stack.enter_async_context(served.client_of(one))
        await call(served, other, "anna")
        os.kill(other, signal.SIGTERM)
        await eventually(lambda: other not in served.pids, what="the end of the worker")

        async def counted() -> bool:
            return calls((await read(http, "anna"))["own"]["today"]) == {("", "peer"): 1}

        await eventually(counted, what="the call of the stopped worker")  # which reports no more


async def test_a_killed_worker_takes_the_calls_since_its_last_report_with_it(tmp_path: Path) -> None:
    async with fleet(tmp_path, auth=AUTH) as served, AsyncExitStack() as stack:
        one, other = sorted(served.pids)
        http = await stack.enter_async_context(served.client_of(one))
        await call(served, other, "anna")

        async def reported() -> bool:
            return calls((await read(http, "anna"))["own"]["total"]) == {("", "peer"): 1}

        await eventually(reported, what="the report of the worker")
        await call(served, other, "anna")
        os.kill(other, signal.SIGKILL)
        await eventually(lambda: other not in served.pids and len(served.pids) == 2, what="another worker")
        kept = calls((await read(http, "anna"))["own"]["total"])
        await call(served, one, "anna")
        after = calls((await read(http, "anna"))["own"]["total"])

    assert kept[("", "peer")] in (1, 2)  # the second is reported if a report was due in between
    assert after[("", "peer")] == kept[("", "peer")] + 1
