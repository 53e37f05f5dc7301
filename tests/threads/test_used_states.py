"""Answers to calls of 2026-07-28: replicas on one database accept each state once, also after a restart."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from pallas_gateway.calls.asking.used_states import StatesUnavailableError
from pallas_gateway.identity.secret import Secret
from pallas_gateway.shared.database import tables
from pallas_gateway.shared.database.connections import Database
from tests.support.askable_callers import INVALID_PARAMS, Asked, asked_at, ended
from tests.support.asking import Asking, asking_downstream
from tests.support.asking_gateways import calls_the_tool_it_is_told, project_of
from tests.support.calling import answer_of, ask
from tests.support.clients import RawReply
from tests.support.commands import PATIENT_GATEWAY, started
from tests.support.gateway import Agent, Project, Running, limited, running, until_idle
from tests.support.postgresql import PostgreSql
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, hang, say, scripted_llm
from tests.support.stored_threads import services
from tests.support.waiting import Gate, eventually

APPROVED: dict[str, Any] = {"action": "accept", "content": {"decision": "once"}}
TIMES = 8
DONE, USED = "wiped /", "used"


@dataclass(frozen=True)
class World:
    """A model and a downstream, and projects of gateways that use them, with the same keys and database."""

    path: Path
    url: str
    llm: ScriptedLlm
    downstream: Asking
    gate: Gate

    def project(self, name: str, **agent: Any) -> Project:
        settings = {"approve": ["asking/wipe"], **agent}
        gateway = {"state_keys": ["k" * 32], "database": self.url, "queue_seconds": 60}
        server = {"url": self.downstream.url}
        return project_of(self.path / name, self.llm, server, Agent(["asking"], settings=settings), gateway=gateway)

    @property
    def runs(self) -> int:
        return len(self.downstream.recorder.calls("wipe"))

    @asynccontextmanager
    async def replicas(self, *names: str, **agent: Any) -> AsyncIterator[list[Running]]:
        async with AsyncExitStack() as stack:
            served = [await stack.enter_async_context(running(self.project(name, **agent))) for name in names]
            yield served

    async def used(self) -> set[str]:
        async with database_of(self.url) as database:
            rows = await database.read(lambda sql: sql.execute(select(tables.used_states.c.ticket)))
        return {row.ticket for row in rows}


@asynccontextmanager
async def database_of(url: str) -> AsyncIterator[Database]:
    database = Database(Secret(url), Path("/"))
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def world_at(path: Path, url: str) -> AsyncIterator[World]:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate, say("done")) if request.last_user_text == "hang" else calls_the_tool_it_is_told(request)

    async with asking_downstream("modern") as downstream, scripted_llm(script) as llm:
        yield World(path, url, llm, downstream, gate)


async def repeated(asked: Asked, served: Running) -> str:
    """Send the approval to a replica; return the answer, the reason of a refusal, or `USED`."""
    return outcome_of(await asked.repeat(APPROVED, url=served.url("user")))


def outcome_of(reply: RawReply) -> str:
    if any("error" in message for message in reply.messages):
        assert reply.error["code"] == INVALID_PARAMS
        return USED
    answer = answer_of(reply)
    return str(answer.meta["stop_reason"]) if answer.is_error else answer.text


async def test_of_two_replicas_that_get_one_state_at_once_one_accepts_it(tmp_path: Path, database_url: str) -> None:
    async with world_at(tmp_path, database_url) as world, world.replicas("one", "two") as (one, two):
        for number in range(TIMES):
            asked = await asked_at(one.url("user"), "wipe")
            order = (one, two) if number % 2 else (two, one)
            outcomes = await asyncio.gather(*(repeated(asked, served) for served in order))
            assert sorted(outcomes) == [USED, DONE]
            assert world.runs == number + 1
            assert {await repeated(asked, served) for served in order} == {USED}
        assert world.runs == len(await world.used()) == TIMES
        for served in (one, two):
            assert not len(served.gateway.sessions.waiting_calls)
            await until_idle(served)


async def test_of_two_replicas_that_resume_the_call_of_a_stopped_one_at_once_one_does(
    tmp_path: Path, database_url: str
) -> None:
    async with world_at(tmp_path, database_url) as world:
        async with world.replicas("stopped") as (stopped,):
            waiting = [await asked_at(stopped.url("user"), "wipe") for _ in range(TIMES)]
        async with world.replicas("one", "two") as replicas:
            sent = [repeated(asked, served) for asked in waiting for served in replicas]
            assert sorted(await asyncio.gather(*sent)) == [USED] * TIMES + [DONE] * TIMES
        assert world.runs == TIMES


async def test_a_state_that_was_used_is_refused_after_a_restart(tmp_path: Path, database_url: str) -> None:
    async with world_at(tmp_path, database_url) as world:
        async with world.replicas("one") as (one,):
            asked, later = [await asked_at(one.url("user"), "wipe") for _ in range(2)]
            assert await repeated(asked, one) == DONE
        async with world.replicas("again") as (again,):
            assert await repeated(asked, again) == USED
            assert await repeated(later, again) == DONE
        async with world.replicas("third") as (third,):
            assert {await repeated(one, third) for one in (asked, later)} == {USED}
        assert world.runs == 2


async def test_a_call_that_its_client_has_ended_is_not_resumed_elsewhere(tmp_path: Path, database_url: str) -> None:
    async with world_at(tmp_path, database_url) as world, world.replicas("one", "two") as (one, two):
        asked = await asked_at(one.url("user"), "wipe")
        assert outcome_of(await ended(asked)) == "cancelled"
        assert await repeated(asked, two) == USED
        assert world.runs == 0


async def test_a_state_whose_request_was_refused_is_good_at_another_replica(tmp_path: Path, database_url: str) -> None:
    async with world_at(tmp_path, database_url) as world, world.replicas("one") as (one,):
        asked = await asked_at(one.url("user"), "wipe")
        project = world.project("busy", max_in_flight=1)
        project.edit(lambda document: document["gateway"].update(queue_seconds=0))
        async with running(project) as busy:
            first = asyncio.create_task(ask(busy.url("user"), "hang"))
            await world.gate.wait_for_entered()
            assert await repeated(asked, busy) == "busy"
            assert await world.used() == set()
            assert await repeated(asked, one) == DONE
            world.gate.open()
            await first
            assert await repeated(asked, busy) == USED
        assert world.runs == 1


async def test_a_process_that_is_killed_before_it_admits_a_call_has_used_its_state(
    tmp_path: Path, database_url: str
) -> None:
    async with world_at(tmp_path, database_url) as world, world.replicas("one") as (one,):
        asked = await asked_at(one.url("user"), "wipe")
        project = world.project("killed", max_in_flight=1)
        with started(["serve"], project.path, command=PATIENT_GATEWAY, environ={"PALLAS_LOG_STDERR": "1"}) as program:
            await asyncio.to_thread(program.wait_for, "Try:")
            url = f"{program.url.replace('localhost', '127.0.0.1')}/agents/user/mcp"
            lost: list[asyncio.Task[object]] = [asyncio.create_task(ask(url, "hang"))]
            await world.gate.wait_for_entered()
            lost.append(asyncio.create_task(asked.repeat(APPROVED, url=url)))
            await eventually(world.used, what="the used state")
            program.signal(signal.SIGKILL)
            await asyncio.wait(lost)
            assert all(one.exception() is not None for one in lost)
        assert await repeated(asked, one) == USED
        assert world.runs == 0
        await eventually(lambda: not len(one.gateway.sessions.waiting_calls), what="the end of the call")


@pytest.mark.needs("postgresql")
async def test_without_the_database_no_state_is_accepted_that_another_replica_could_have_accepted(
    tmp_path: Path, server: PostgreSql
) -> None:
    url = server.new_database()
    async with world_at(tmp_path, url) as world, world.replicas("one", "two") as (one, two):
        asked, other = [await asked_at(one.url("user"), "wipe") for _ in range(2)]
        server.stop()
        try:
            refused = await asyncio.gather(repeated(asked, one), repeated(other, two))
            assert list(refused) == ["database_unavailable"] * 2
            assert one.metric("pallas_calls_refused_total", agent="user", reason="database_unavailable") == 1
            # A call that asks now is known to this process only, which continues it without the database.
            meanwhile = await asked_at(one.url("user"), "wipe")
            assert await repeated(meanwhile, two) == "call_again"
            assert await repeated(meanwhile, one) == DONE
            assert world.runs == 1
        finally:
            server.start()
        assert await repeated(asked, one) == DONE
        assert await repeated(other, two) == DONE
        assert {await repeated(again, served) for again in (asked, other) for served in (one, two)} == {USED}
        assert world.runs == 3


@pytest.mark.needs("postgresql")
async def test_a_state_is_good_for_one_request_if_the_database_stops_while_it_is_used(
    tmp_path: Path, server: PostgreSql
) -> None:
    url = server.new_database()
    async with world_at(tmp_path, url) as world, world.replicas("one", "two") as (one, two), database_of(url) as other:
        asked = await asked_at(one.url("user"), "wipe")
        locked = asyncio.Event()

        async def lock(sql: AsyncConnection) -> None:
            await sql.execute(text("LOCK TABLE pallas_used_states"))
            locked.set()
            await sql.execute(text("SELECT pg_sleep(60)"))

        locking = asyncio.create_task(other.write(lock, seconds=60))
        await locked.wait()
        sent = asyncio.create_task(repeated(asked, one))
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        await eventually(lambda: server.run(waits, database="postgres") != "0", what="the wait for the lock")
        server.stop()
        try:
            await asyncio.wait({locking})
            assert locking.exception() is not None
            assert await sent == "database_unavailable"
        finally:
            server.start()
        outcomes = await asyncio.gather(repeated(asked, one), repeated(asked, two))
        assert sorted(outcomes) == [USED, DONE]
        assert world.runs == 1


async def test_a_locked_sqlite_file_uses_up_no_state(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    with limited() as limits:
        limits.gateway.database.busy_seconds = 0.05
        async with world_at(tmp_path, url) as world, world.replicas("one", "two") as (one, two):
            asked = await asked_at(one.url("user"), "wipe")
            locked, release = asyncio.Event(), asyncio.Event()

            async def lock(_: AsyncConnection) -> None:
                locked.set()
                await release.wait()

            async with database_of(url) as other:
                locking = asyncio.create_task(other.write(lock, seconds=60))
                await locked.wait()
                assert await repeated(asked, one) == "database_unavailable"
                release.set()
                await locking
            assert sorted(await asyncio.gather(repeated(asked, one), repeated(asked, two))) == [USED, DONE]
            assert world.runs == 1


async def test_a_client_that_leaves_while_its_state_is_used_ends_its_call(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with world_at(tmp_path, url) as world, world.replicas("one") as (one,), database_of(url) as other:
        asked = await asked_at(one.url("user"), "wipe")
        locked, release = asyncio.Event(), asyncio.Event()

        async def lock(_: AsyncConnection) -> None:
            locked.set()
            await release.wait()

        locking = asyncio.create_task(other.write(lock, seconds=60))
        await locked.wait()
        sent = asyncio.create_task(repeated(asked, one))
        await eventually(lambda: not len(one.gateway.sessions.waiting_calls), what="the use of the state")
        sent.cancel()
        await until_idle(one)
        release.set()
        await locking
        assert await repeated(asked, one) == USED
        assert world.runs == 0


async def test_a_request_that_ends_while_its_state_is_used_gives_it_back(database_url: str) -> None:
    async with (
        services(database_url, process="a") as a,
        services(database_url, process="b") as b,
        database_of(database_url) as other,
    ):
        locked, release = asyncio.Event(), asyncio.Event()

        async def lock(sql: AsyncConnection) -> None:
            values = {"ticket": "one", "process": "other", "valid_until": 0}
            await sql.execute(tables.used_states.insert().values(values))
            locked.set()
            await release.wait()
            await sql.execute(tables.used_states.delete())

        locking = asyncio.create_task(other.write(lock))
        await locked.wait()
        using = asyncio.create_task(a.states.use("one", 60))
        await asyncio.sleep(0)
        using.cancel()
        await asyncio.wait({using})
        assert using.cancelled()
        release.set()
        await locking

        async def is_good() -> bool:
            return await b.states.use("one", 60)

        await eventually(is_good, what="the state that is given back")
        assert not await a.states.use("one", 60)


async def test_used_states_are_forgotten_after_they_have_expired(tmp_path: Path, database_url: str) -> None:
    limits: dict[str, Any] = {"try_again_seconds": 0.05, "clean_seconds": 0, "expired_seconds": 0}
    async with world_at(tmp_path, database_url) as world, services(database_url, process="a") as a:
        assert await a.states.use("expired", 0.001)
        assert await a.states.use("valid", 60)
        assert await world.used() == {"expired", "valid"}
        async with services(database_url, process="b", **limits):

            async def removed() -> bool:
                return await world.used() == {"valid"}

            await eventually(removed, what="the removal of what has expired")


async def test_a_database_that_was_never_there_accepts_no_state(tmp_path: Path) -> None:
    async with services(f"sqlite:///{tmp_path}/no/such/folder.db", process="a") as stored:
        assert not stored.states.is_available
        with pytest.raises(StatesUnavailableError, match="in a moment, with the same requestState"):
            await stored.states.use("one", 60)


async def test_a_call_continues_without_a_transaction_where_no_other_gateway_could_continue_it(
    tmp_path: Path, database_url: str
) -> None:
    async with world_at(tmp_path, database_url) as world:
        project = world.project("alone")
        project.edit(lambda document: document["gateway"].pop("state_keys"))
        async with running(project) as alone, running(world.project("other")) as other:
            asked = await asked_at(alone.url("user"), "wipe")
            assert outcome_of(await replace(asked, url=other.url("user")).repeat(APPROVED)) == USED
            assert await repeated(asked, alone) == DONE
            assert await repeated(asked, alone) == USED
        assert await world.used() == set()
        assert world.runs == 1
