"""Usage over two workers in processes of their own: each answers for all, also after one of them has ended."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from tests.e2e.fleet import fleet
from tests.support.calling import ask
from tests.support.guarded import static_key
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.e2e.fleet import WorkerManager

PATH = "/api/v1/usage"
KEYS = {name: f"pgw_the-key-of-{name}" for name in ("anna", "ben", "boss")}
GRANTS = {"anna": ["run:agents"], "ben": ["run:agents"], "boss": ["run:agents", "view:calls"]}
AUTH = {"tokens": [static_key(*GRANTS[name], key=key, name=name) for name, key in KEYS.items()]}


async def read(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    response = await http.get(PATH, headers={"authorization": f"Bearer {KEYS[name]}"})
    assert response.status_code == 200, response.text
    return dict(response.json())


def calls(rows: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    return {(row.get("caller", ""), row["agent"]): row["calls"] for row in rows}


async def call(served: WorkerManager, pid: int, name: str, times: int = 1) -> None:
    """Calls that the worker answers."""
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
