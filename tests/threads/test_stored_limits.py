"""Limits of gateways that count in one database: exact over replicas and workers, and through its outages."""

import asyncio
import json
import logging
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, text

from pallas_gateway.identity.secret import Secret
from pallas_gateway.limits import DatabaseLimits
from pallas_gateway.shared.database import tables
from pallas_gateway.shared.database.connections import Database
from tests.e2e.fleet import fleet
from tests.support.askable_callers import asked_at
from tests.support.asking import asking_downstream
from tests.support.asking_gateways import calls_the_tool_it_is_told, project_of
from tests.support.calling import answer_of, ask
from tests.support.clients import raw_client
from tests.support.commands import PATIENT_GATEWAY, started
from tests.support.fair_time import hastened
from tests.support.gateway import Agent, Project, Running, limited, running, write_project
from tests.support.leases import let_leases_end
from tests.support.postgresql import PostgreSql
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, hang, say, scripted_llm
from tests.support.waiting import Gate, eventually

LIMITED, OK = "limited", 200
CLIENTS = 10


@dataclass(frozen=True)
class World:
    """A model, and projects of gateways that count in one database."""

    path: Path
    url: str
    llm: ScriptedLlm
    gate: Gate

    def project(self, name: str, *rules: dict[str, Any], away: str = "count_alone", **gateway: Any) -> Project:
        limits = {"store": "database", "when_store_is_away": away, "rules": list(rules)}
        settings = {"database": self.url, "limits": limits, **gateway}
        return write_project(self.path / name, {"echo": Agent()}, llm_url=self.llm.base_url, gateway=settings)

    @asynccontextmanager
    async def gateways(
        self, *rules: dict[str, Any], count: int = 2, waits: DatabaseLimits | None = None, **settings: Any
    ) -> AsyncIterator[list[Running]]:
        async with AsyncExitStack() as stack:
            projects = [self.project(f"gateway-{number}", *rules, **settings) for number in range(count)]
            with limited() as limits:
                limits.gateway.database = waits or limits.gateway.database
                limits.gateway.database.try_again_seconds = 0.1
                yield [await stack.enter_async_context(running(project)) for project in projects]

    async def begun(self) -> list[int]:
        database = Database(Secret(self.url), Path("/"))
        try:
            rows = await database.read(lambda sql: sql.execute(select(tables.counted_calls.c.began_at)))
        finally:
            await database.close()
        return sorted(row.began_at for row in rows)


@asynccontextmanager
async def world_at(path: Path, url: str) -> AsyncIterator[World]:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate, say("done")) if request.last_user_text == "hang" else say("fine")

    async with scripted_llm(script) as llm:
        yield World(path, url, llm, gate)
        gate.open()


async def asked_often(times: int, urls: Sequence[str], outcomes: Counter[str]) -> None:
    """Call agents from several clients, each of which has a connection and calls again when it has its answer."""

    async def client(number: int) -> None:
        async with raw_client(urls[number % len(urls)]) as caller:
            for _ in range(times // CLIENTS):
                answer = answer_of(await caller.call_tool("send_message", {"message": "hello"}))
                outcomes[str(answer.meta["stop_reason"]) if answer.is_error else answer.text] += 1

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))


async def outcome(url: str, message: str = "hello") -> str:
    answer = await ask(url, message)
    return str(answer.meta["stop_reason"]) if answer.is_error else answer.text


def is_up(*gateways: Running) -> bool:
    return all(one.metric("pallas_threads_database_up", kind="postgresql") for one in gateways)


@pytest.mark.needs("postgresql")
async def test_while_the_database_is_stopped_no_call_fails_and_each_gateway_counts_alone(
    tmp_path: Path, server: PostgreSql, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pallas.threads")
    async with (
        world_at(tmp_path, server.new_database()) as world,
        world.gateways({"calls_per_minute": 1000}) as gateways,
    ):
        urls = [one.url("echo") for one in gateways]
        outcomes = Counter[str]()
        calls = asyncio.create_task(asked_often(300, urls, outcomes))
        await eventually(lambda: outcomes.total() >= 20, what="calls before the outage")
        before = outcomes.total()
        await asyncio.to_thread(server.stop)
        try:
            stopped_at = outcomes.total()
            await eventually(lambda: outcomes.total() >= stopped_at + 40, what="calls of the outage")
            assert not is_up(*gateways)
            away = [(await get(one, "/readyz")).json()["limits"] for one in gateways]
            seen = outcomes.total()
        finally:
            await asyncio.to_thread(server.start)
        await eventually(lambda: is_up(*gateways), what="the end of the outage")
        back_at = outcomes.total()
        await calls
        begun = len(await world.begun())
        ready = [(await get(one, "/readyz")).json() for one in gateways]
    assert outcomes == {"fine": 300}
    assert seen - stopped_at >= 40
    # Calls that began while it stopped or started may be counted, and those under way.
    assert 300 - (back_at - before) - 2 * CLIENTS <= begun <= 300 - (seen - stopped_at) + 2 * CLIENTS
    assert away == [{"database": "away", "calls": "count_alone"}] * 2
    assert not any("limits" in one for one in ready)
    logged = Counter(record.message for record in caplog.records if record.name == "pallas.threads")
    assert logged == {"threads database unavailable": 2, "threads database available again": 2}


async def get(served: Running, path: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        return await http.get(f"{served.base_url}{path}")


@pytest.mark.needs("postgresql")
async def test_a_gateway_that_starts_without_its_database_counts_alone_until_it_comes(
    tmp_path: Path, server: PostgreSql
) -> None:
    url = server.new_database()
    server.stop()
    try:
        async with world_at(tmp_path, url) as world, world.gateways({"calls_per_minute": 2}, count=1) as (one,):
            assert [await outcome(one.url("echo")) for _ in range(3)] == ["fine", "fine", LIMITED]
            server.start()
            await eventually(lambda: not one.gateway.troubles(), what="the database")
            assert [await outcome(one.url("echo")) for _ in range(3)] == ["fine", "fine", LIMITED]
            assert len(await world.begun()) == 2
    finally:
        if not server.is_up:
            server.start()


@pytest.mark.needs("postgresql")
async def test_calls_are_refused_without_the_database_if_so_set_except_those_that_no_rule_matches(
    tmp_path: Path, server: PostgreSql
) -> None:
    rules: list[dict[str, Any]] = [
        {"calls_per_minute": 100, "caller": "anonymous"},
        {"calls_per_minute": 1, "enforce": False},
    ]
    async with (
        world_at(tmp_path, server.new_database()) as world,
        world.gateways(*rules, count=1, away="refuse") as (one,),
    ):
        server.stop()
        try:
            refused = await ask(one.url("echo"))
            assert [trouble.value["calls"] for trouble in one.gateway.troubles()] == ["refuse"]
            one.project.edit(lambda document: document["gateway"]["limits"]["rules"].pop(0))
            await one.reload()
            admitted = await ask(one.url("echo"))
        finally:
            server.start()
    assert refused.is_error
    assert refused.meta["stop_reason"] == LIMITED
    assert "because their database is not available. Try again in 5 s." in refused.text
    assert admitted.text == "fine"


@pytest.mark.needs("postgresql")
async def test_a_database_that_hangs_delays_calls_for_two_seconds_at_most(
    tmp_path: Path, server: PostgreSql, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        world_at(tmp_path, server.new_database()) as world,
        world.gateways({"calls_per_minute": 100, "calls_at_once": 10}, count=1, waits=DatabaseLimits()) as (one,),
    ):
        assert await outcome(one.url("echo")) == "fine"
        assert one.gateway.stored is not None
        counters = one.gateway.stored.shared
        await counters._tasks.wait_until_idle()  # the end of the first call
        database, waits = counters._database, list[float]()
        write = database.write

        async def noting(work: Any, **options: Any) -> Any:
            if options["share"] == "calls":
                waits.append(options["seconds"])
            return await write(work, **options)

        monkeypatch.setattr(database, "write", noting)
        clock = asyncio.get_running_loop().time
        with server.hanging():
            began = clock()
            calls = asyncio.gather(*(outcome(one.url("echo")) for _ in range(10)))
            assert await hastened(calls, 0.1) == ["fine"] * 10
            took = clock() - began
            assert await outcome(one.url("echo")) == "fine"
            # All ten waited for one transaction, and the later call for none. A busy machine delays them further.
            [waited] = waits
        await eventually(lambda: counters.is_available and is_up(one), 60, what="the end of the outage")
        assert await outcome(one.url("echo")) == "fine"
        await eventually(lambda: no_lease(database), what="the end of all leases")
    assert 1 < waited <= 1.5
    assert took > 1


async def no_lease(database: Database) -> bool:
    found = await database.read(lambda sql: sql.execute(text("SELECT count(*) FROM pallas_call_leases")))
    return bool(found.scalar_one() == 0)


@pytest.mark.needs("postgresql")
async def test_calls_of_a_killed_gateway_count_until_its_lease_ends(tmp_path: Path, server: PostgreSql) -> None:
    async with world_at(tmp_path, server.new_database()) as world:
        of: tuple[dict[str, Any], ...] = ({"calls_at_once": 2},)
        killed = world.project("killed", *of)
        async with world.gateways(*of, count=1) as (one,):
            with started(
                ["serve"], killed.path, command=PATIENT_GATEWAY, environ={"PALLAS_LOG_STDERR": "1"}
            ) as program:
                await asyncio.to_thread(program.wait_for, "Try:")
                url = f"{program.url.replace('localhost', '127.0.0.1')}/agents/echo/mcp"
                lost = [asyncio.create_task(ask(url, "hang")) for _ in range(2)]
                await world.gate.wait_for_entered(2)
                assert await outcome(one.url("echo")) == LIMITED
                program.signal(signal.SIGKILL)
                await asyncio.wait(lost)
                assert all(task.exception() is not None for task in lost)

                assert await outcome(one.url("echo")) == LIMITED
                await let_leases_end(world.url)
                assert await outcome(one.url("echo")) == "fine"


@pytest.mark.needs("postgresql")
async def test_a_call_that_waits_for_its_caller_keeps_its_lease(tmp_path: Path, server: PostgreSql) -> None:
    limits = {"store": "database", "rules": [{"calls_at_once": 1}]}
    gateway = {"database": server.new_database(), "state_keys": ["k" * 32], "limits": limits}
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"]})
    async with (
        asking_downstream("modern") as downstream,
        scripted_llm(calls_the_tool_it_is_told) as llm,
        running(project_of(tmp_path / "one", llm, {"url": downstream.url}, agent, gateway=gateway)) as one,
        running(project_of(tmp_path / "two", llm, {"url": downstream.url}, agent, gateway=gateway)) as two,
    ):
        asked = await asked_at(one.url("user"), "wipe")
        assert await outcome(two.url("user"), "wipe") == LIMITED
        reply = answer_of(await asked.repeat({"action": "accept", "content": {"decision": "once"}}))
        assert reply.text == "wiped /"
        again = await asked_at(two.url("user"), "wipe")
        assert await outcome(one.url("user"), "wipe") == LIMITED
        assert answer_of(await again.repeat({"action": "decline"})).is_error is False


@pytest.mark.needs("postgresql")
async def test_a_changed_limit_and_a_changed_store_hold_from_the_reload_on(tmp_path: Path, server: PostgreSql) -> None:
    async with (
        world_at(tmp_path, server.new_database()) as world,
        world.gateways({"calls_per_minute": 1}) as (one, two),
    ):
        assert [await outcome(gateway.url("echo")) for gateway in (one, two)] == ["fine", LIMITED]
        two.project.edit(lambda document: document["gateway"]["limits"]["rules"][0].update(calls_per_minute=2))
        await two.reload()
        assert [await outcome(gateway.url("echo")) for gateway in (two, one, two)] == ["fine", LIMITED, LIMITED]
        two.project.edit(lambda document: document["gateway"]["limits"].update(store=None))
        await two.reload()
        assert [await outcome(two.url("echo")) for _ in range(3)] == ["fine", "fine", LIMITED]
        two.project.edit(lambda document: document["gateway"]["limits"].update(store="database"))
        await two.reload()
        assert [await outcome(gateway.url("echo")) for gateway in (one, two)] == [LIMITED, LIMITED]
        assert len(await world.begun()) == 2


async def test_the_audit_log_has_calls_that_the_database_has_decided(tmp_path: Path, database_url: str) -> None:
    async with (
        world_at(tmp_path, database_url) as world,
        world.gateways({"calls_per_minute": 2}, count=1, audit_log="audit.log") as (one,),
    ):
        assert [await outcome(one.url("echo")) for _ in range(3)] == ["fine", "fine", LIMITED]
        lines = [json.loads(line) for line in (one.project.path / "audit.log").read_text().splitlines()]
    calls = [line for line in lines if line["action"] in {"call", "call_end"}]
    ids = list(dict.fromkeys(line["call_id"] for line in calls))
    assert [(line["action"], line["outcome"], ids.index(line["call_id"])) for line in calls] == [
        *(("call", "allowed", 0), ("call_end", "ok", 0), ("call", "allowed", 1), ("call_end", "ok", 1)),
        ("call", "refused", 2),
    ]
    assert (calls[-1]["rule"], calls[-1]["reason"], calls[-1]["agent"]) == ("rule-1", "limited", "echo")


async def test_workers_of_one_machine_count_in_a_sqlite_file(tmp_path: Path) -> None:
    limits = {"store": "database", "rules": [{"agent": "root", "calls_per_minute": 20, "calls_at_once": 100}]}
    async with fleet(tmp_path, database=f"sqlite:///{tmp_path}/threads.db", limits=limits) as workers:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(workers.client_of(pid)) for pid in workers.pids]
            began = asyncio.get_running_loop().time()
            chats = [
                client.post("/api/v1/agents/root/chat", json={"message": "hello"})
                for _ in range(50)
                for client in clients
            ]
            answers = Counter(answer.status_code == OK for answer in await asyncio.gather(*chats))
            assert asyncio.get_running_loop().time() - began < 60
        assert answers == {True: 20, False: 80}
        for pid in workers.pids:  # one of them may have taken nearly all connections of the crowd
            async with workers.client_of(pid) as client:
                assert (await client.post("/api/v1/agents/root/chat", json={"message": "hello"})).status_code != OK

        def all_refused() -> bool:
            return len(workers.records("call refused")) == 82

        await eventually(all_refused, what="a line for each refused call")
        refused = workers.records("call refused")
        assert {record["reason"] for record in refused} == {LIMITED}
        assert len({record["worker"] for record in refused}) == 2
