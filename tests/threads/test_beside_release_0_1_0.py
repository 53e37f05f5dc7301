"""Release 0.1.0 and this one on one PostgreSQL: the old one goes on while the new one starts, then it stops.

Every later release keeps this test: an update replaces one replica after the other.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, NullPool, create_engine, inspect, text

from pallas_gateway.identity.secret import Secret
from pallas_gateway.identity.static_keys import hash_of
from pallas_gateway.shared.database.connections import Database
from tests.support.askable_callers import INVALID_PARAMS, Asked, asked_at
from tests.support.asking import asking_downstream
from tests.support.asking_gateways import calls_the_tool_it_is_told
from tests.support.calling import Answer, answer_of, ask
from tests.support.clients import CLIENT_INFO, RawClient, raw_client, tool_params
from tests.support.commands import READY_SECONDS, started
from tests.support.gateway import Agent, Project, running, write_project
from tests.support.older_tables import migrate_to
from tests.support.postgresql import PostgreSql
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, hang, say, scripted_llm
from tests.support.stored_threads import services
from tests.support.waiting import Gate, eventually
from tests.support_programs import program

RELEASE = Path(__file__).parents[1] / "release_0_1_0"
VERSION = "2025-11-25"
ACCEPT = {"action": "accept", "content": {"name": "Ada"}}
ANSWERED = 'answer: {"action": "accept", "content": {"name": "Ada"}}'
LIMITED = "limited"
HEADERS = {"mcp-protocol-version": VERSION}
AGENTS = {"user": Agent(["asking"]), "boss": Agent(["user"], settings={"depends_on": ["user"]})}
GATEWAY = {
    "database": "${THREADS_URL}",
    "state_keys": ["k" * 32],
    "auth": {
        "tokens": [
            {"name": name, "sha256": hash_of(name), "grants": ["run:agents"]} for name in ("mine", "counted", "held")
        ]
    },
    "limits": {
        "store": "database",
        "rules": [{"caller": "key:counted", "calls_per_minute": 4}, {"caller": "key:held", "calls_at_once": 2}],
    },
}


@dataclass(frozen=True)
class Replica:
    """One of the two gateways; `http` has the address of its API and a token."""

    http: httpx.AsyncClient

    def url(self, agent: str = "user") -> str:
        return str(self.http.base_url.join(f"/agents/{agent}/mcp"))

    async def chat(self, message: str, **body: Any) -> dict[str, Any]:
        return dict((await self._done("POST", "agents/user/chat", json={"message": message, **body})).json())

    async def answer(self, asked: dict[str, Any]) -> str:
        """Answer the question of a turn, and return what the agent then says."""
        answers = {"answers": {asked["questions"][0]["id"]: ACCEPT}}
        return str((await self._done("POST", f"threads/{asked['threadId']}/answers", json=answers)).json()["content"])

    async def said(self, thread_id: str) -> list[tuple[str, str]]:
        messages = (await self._done("GET", f"threads/{thread_id}/messages")).json()["messages"]
        return [(one["role"], one["content"]) for one in messages]

    async def threads(self) -> list[tuple[str, int]]:
        threads = (await self._done("GET", "threads")).json()["threads"]
        return sorted((one["id"], one["turns"]) for one in threads)

    async def outcome(self, bearer: str) -> str:
        answer = await ask(self.url(), bearer=bearer)
        return str(answer.meta["stop_reason"]) if answer.is_error else answer.text

    async def _done(self, method: str, path: str, **options: Any) -> httpx.Response:
        return (await self.http.request(method, path, **options)).raise_for_status()


@asynccontextmanager
async def replica_at(url: str) -> AsyncIterator[Replica]:
    base, headers = url.replace("localhost", "127.0.0.1"), {"Authorization": "Bearer mine"}
    async with httpx.AsyncClient(base_url=f"{base}/api/v1/", headers=headers, trust_env=False, timeout=60) as http:
        yield Replica(http)


class Session:
    """A session of the initialize era with a client that can be asked; its calls may go to any replica."""

    def __init__(self, client: RawClient) -> None:
        self.client = client

    async def begin(self) -> None:
        params = {"protocolVersion": VERSION, "capabilities": {"elicitation": {}}, "clientInfo": CLIENT_INFO}
        reply = await self.client.request("initialize", params)
        self.client.session_id = reply.headers["mcp-session-id"]

    async def asked_and_answered(self, replica: Replica) -> str:
        """Call an agent that asks, answer, and return what it then says."""
        self.client.url = replica.url()
        async with self.client.in_flight("tools/call", tool_params("send_message", {"message": "name"})) as call:
            [asked] = await eventually(lambda: [one for one in call.notifications if "id" in one], what="a question")
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": ACCEPT}
            assert (await self.client.post(answer)).status_code == HTTPStatus.ACCEPTED
            return answer_of(await call.reply()).text


EXECUTE = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"


def release_0_1_0() -> Sequence[str]:
    """Return the words after which Python is a gateway of 0.1.0, as patient as those of the tests."""
    python = Path(program("release-0.1.0"))
    if not python.exists():
        pytest.skip("this clone lacks the commit of release 0.1.0, see tests/release_0_1_0/setup.sh")
    return ("-c", EXECUTE, str(python), "-P", str(python.parents[1] / "patient_gateway.py"))


def test_a_clone_without_the_commit_of_the_release_says_so_and_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "setup.sh"
    script.write_text((RELEASE / "setup.sh").read_text())
    ran = subprocess.run(
        ["/bin/sh", script], env={**os.environ, "GIT_DIR": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("This clone lacks release 0.1.0")
    assert (ran.stdout.count("\n"), ran.stderr, [*(tmp_path / ".venv").iterdir()]) == (1, "", [])


@dataclass
class World:
    """A project, the model of its agents, and where that holds calls with the message `hold`."""

    project: Project
    llm: ScriptedLlm
    gate: Gate
    environ: dict[str, str]
    held: list[asyncio.Task[Answer]] = field(default_factory=list)

    async def hold(self, replica: Replica) -> None:
        self.held.append(asyncio.create_task(ask(replica.url(), "hold", bearer="held")))
        await self.gate.wait_for_entered(len(self.held))


@asynccontextmanager
async def world_at(path: Path, database_url: str) -> AsyncIterator[World]:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        text = request.last_user_text
        if text.endswith("name"):
            return calls_the_tool_it_is_told(request)
        return hang(gate, say("held")) if text == "hold" else say(f"{len(request.user_texts)}: {text}")

    async with asking_downstream("modern") as downstream, scripted_llm(script) as llm:
        servers = {"asking": {"url": downstream.url}}
        project = write_project(path, AGENTS, llm_url=llm.base_url, servers=servers, gateway=GATEWAY)
        yield World(project, llm, gate, {"THREADS_URL": database_url, "PALLAS_LOG_STDERR": "1"})


@pytest.mark.needs("postgresql", "release-0.1.0")
async def test_release_0_1_0_goes_on_beside_this_one_which_continues_what_it_began(
    tmp_path: Path, server: PostgreSql
) -> None:
    command = release_0_1_0()
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(world_at(tmp_path / "project", server.new_database()))
        older = stack.enter_context(
            started(["serve"], world.project.path, command=command, environ=world.environ, is_real=True)
        )
        await asyncio.to_thread(older.wait_for, "Try:")
        old = await stack.enter_async_context(replica_at(older.url))
        session = Session(await stack.enter_async_context(raw_client(old.url(), headers=HEADERS, bearer="mine")))
        await session.begin()
        states = [await asked_at(old.url()) for _ in range(2)]
        of_two_agents = await asked_at(old.url("boss"), "user: name")
        questions = [await old.chat("name") for _ in range(2)]
        thread_id: str = (await old.chat("one"))["threadId"]
        await world.hold(old)

        served = await stack.enter_async_context(running(world.project, environ={**os.environ, **world.environ}))
        new = await stack.enter_async_context(replica_at(served.base_url))
        assert [await session.asked_and_answered(one) for one in (old, new)] == [ANSWERED] * 2
        await states_go_on_once_at_the_other(await asked_at(new.url()), old, new)
        await states_go_on_once_at_the_other(states[0], new, old)
        refused = answer_of(await of_two_agents.repeat(url=new.url("boss")))
        assert (refused.is_error, refused.meta["stop_reason"]) == (True, "call_again")
        assert answer_of(await of_two_agents.repeat()).text == ANSWERED
        assert await new.answer(questions[0]) == await new.answer(await new.chat("name")) == ANSWERED
        await a_thread_goes_on_at_each(thread_id, old, new)
        await limits_count_calls_of_both(world, old, new)

        older.signal(signal.SIGTERM)
        world.gate.open()
        assert [(await one).text for one in world.held] == ["held"] * 2
        assert (await asyncio.to_thread(older.end, READY_SECONDS)).code == 0

        turns = len(world.llm.requests)
        assert answer_of(await states[1].repeat(url=new.url())).text == await new.answer(questions[1]) == ANSWERED
        assert len(world.llm.requests) == turns + 2  # those before the questions are not repeated
        assert await session.asked_and_answered(new) == ANSWERED
        assert (await new.chat("more", threadId=thread_id))["content"] == "5: more"
        assert await new.outcome("held") == "1: hello"  # the stopped one holds no place


async def states_go_on_once_at_the_other(asked: Asked, *replicas: Replica) -> None:
    """A state is accepted at the first of the replicas, and at none of them again."""
    assert answer_of(await asked.repeat(url=replicas[0].url())).text == ANSWERED
    for replica in replicas:
        assert (await asked.repeat(url=replica.url())).error["code"] == INVALID_PARAMS


async def a_thread_goes_on_at_each(thread_id: str, old: Replica, new: Replica) -> None:
    whole = [("user", "one"), ("assistant", "1: one")]
    for number, replica in enumerate((new, old, new), start=2):
        answer = f"{number}: more"
        assert (await replica.chat("more", threadId=thread_id))["content"] == answer
        whole += [("user", "more"), ("assistant", answer)]
    assert await old.said(thread_id) == await new.said(thread_id) == whole
    assert await old.threads() == await new.threads()
    assert (thread_id, 4) in await new.threads()


async def limits_count_calls_of_both(world: World, old: Replica, new: Replica) -> None:
    assert [await one.outcome("counted") for one in (old, new) * 3] == ["1: hello"] * 4 + [LIMITED] * 2
    await world.hold(new)
    assert [await one.outcome("held") for one in (old, new)] == [LIMITED] * 2


async def test_the_tables_of_0_1_0_take_all_that_it_writes(tmp_path: Path) -> None:
    """Its last migration was 0011."""
    url = f"sqlite:///{tmp_path}/threads.db"
    await migrate_to("0011", url, tmp_path)
    before = await tables_at(url)
    async with services(url):
        pass
    assert {"pallas_threads", "pallas_turns", "pallas_loaded_configurations"} <= before.keys()
    assert stricter(before, await tables_at(url)) == []


@pytest.mark.parametrize(
    ("after", "names"),
    [
        ("u (a TEXT, b INTEGER NOT NULL)", ["t"]),
        ("t (c TEXT, b INTEGER NOT NULL)", ["t.a"]),
        ("t (a INTEGER, b INTEGER NOT NULL)", ["t.a"]),
        ("t (a TEXT NOT NULL, b INTEGER NOT NULL)", ["t.a"]),
        ("t (a TEXT, b INTEGER NOT NULL, c TEXT NOT NULL)", ["t.c"]),
        ("t (a TEXT UNIQUE, b INTEGER NOT NULL)", ["t: unique ['a']"]),
        ("t (a TEXT, b INTEGER PRIMARY KEY NOT NULL)", ["t: primary key ['b']"]),
        ("t (a TEXT, b INTEGER NOT NULL CHECK (b > 0))", ["t: check b > 0"]),
        ("t (a TEXT, b INTEGER NOT NULL REFERENCES t (b))", ["t: foreign key ['b']"]),
        ("t (a TEXT, b INTEGER, c TEXT, d TEXT NOT NULL DEFAULT '')", []),
    ],
)
def test_what_makes_a_table_stricter_is_named(after: str, names: list[str]) -> None:
    def tables(table: str) -> dict[str, Described]:
        with create_engine("sqlite://", poolclass=NullPool).connect() as connection:
            connection.execute(text(f"CREATE TABLE {table}"))
            return described(connection)

    assert stricter(tables("t (a TEXT, b INTEGER NOT NULL)"), tables(after)) == names


async def tables_at(url: str) -> dict[str, "Described"]:
    database = Database(Secret(url), Path("/"))
    try:
        return await database.read(lambda sql: sql.run_sync(described))
    finally:
        await database.close()


@dataclass(frozen=True)
class Described:
    """A table: the type of each column and whether it takes NULL, the columns that must be given, and its rules."""

    columns: dict[str, tuple[str, bool]]
    required: set[str]
    rules: set[str]


def described(connection: Connection) -> dict[str, Described]:
    of = inspect(connection)
    found = {}
    for table in of.get_table_names():
        columns = of.get_columns(table)
        unique = [*of.get_unique_constraints(table), *(one for one in of.get_indexes(table) if one["unique"])]
        rules = {f"unique {one['column_names']}" for one in unique}
        rules |= {f"check {one['sqltext']}" for one in of.get_check_constraints(table)}
        rules |= {f"foreign key {one['constrained_columns']}" for one in of.get_foreign_keys(table)}
        if keys := of.get_pk_constraint(table)["constrained_columns"]:
            rules.add(f"primary key {keys}")
        found[table] = Described(
            {one["name"]: (str(one["type"]), one["nullable"]) for one in columns},
            {one["name"] for one in columns if not one["nullable"] and one["default"] is None},
            rules,
        )
    return found


def stricter(before: Mapping[str, Described], after: Mapping[str, Described]) -> list[str]:
    """Return what may refuse a row that was taken before; also a changed type, which may be harmless."""
    names = []
    for table, old in before.items():
        if (new := after.get(table)) is None:
            names.append(table)
            continue
        for column, (kind, takes_null) in old.columns.items():
            now, still_takes_null = new.columns.get(column, (None, False))
            if now != kind or (takes_null and not still_takes_null):
                names.append(f"{table}.{column}")
        names += [f"{table}.{column}" for column in sorted(new.required - old.columns.keys())]
        names += [f"{table}: {rule}" for rule in sorted(new.rules - old.rules)]
    return names
