"""Agents of one database in two gateways of two workers each: every process serves the same, soon after each change."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, override

import httpx
import pytest

from tests.e2e.fleet import WorkerManager
from tests.support.calling import ask
from tests.support.commands import PATIENT_GATEWAY, READY_SECONDS, started
from tests.support.gateway import Project
from tests.support.listener import reserved_port
from tests.support.postgresql import PostgreSql
from tests.support.scripted_llm import say, scripted_llm
from tests.support.stored_agents import definition, project_of
from tests.support.waiting import Gate, eventually

WRITES_OF_ONE = 2
WELL_KNOWN = "/.well-known/mcp/server.json"
API = "/api/v1/agents"


@dataclass(frozen=True)
class Replica(WorkerManager):
    """A gateway of two workers; `base_url` is its own address, not the public one."""

    @property
    @override
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['gateway']}"


@dataclass(frozen=True)
class Replicas:
    """Two gateways of one project, and a client for each of their four workers."""

    project: Project
    gateways: list[Replica]
    workers: list[httpx.AsyncClient]

    async def of_all(self, path: str) -> list[httpx.Response]:
        return await asyncio.gather(*(worker.get(path) for worker in self.workers))

    async def running_versions(self, name: str) -> list[tuple[Any, Any]]:
        documents = [answer.json() for answer in await self.of_all(f"{API}/{name}")]
        return [(one.get("runningVersion"), one.get("version")) for one in documents]


@asynccontextmanager
async def replicas(path: Path, database: str) -> AsyncGenerator[Replicas]:
    async with AsyncExitStack() as stack:
        llm = await stack.enter_async_context(scripted_llm(lambda request: say(str(request.messages[0]["content"]))))
        project = project_of(path, llm.base_url, database=database, public_url="https://agents.example.com")
        gateways = []
        for name in ("one", "two"):
            port = stack.enter_context(reserved_port())
            environ = {"PALLAS_LOG_FILE": str(path / f"{name}.log")}
            command = ["serve", "--workers", "2", "--port", str(port)]
            program = stack.enter_context(started(command, project.path, command=PATIENT_GATEWAY, environ=environ))
            gateways.append(Replica(program, project.path, llm, Gate(), {"gateway": port}))
        for one in gateways:
            await asyncio.to_thread(one.program.wait_for, "Try:", READY_SECONDS * 2)
        workers = [await stack.enter_async_context(one.client_of(pid)) for one in gateways for pid in sorted(one.pids)]
        yield Replicas(project, gateways, workers)
        for one in gateways:
            one.program.signal(signal.SIGTERM)
        for one in gateways:
            await asyncio.to_thread(one.program.end, READY_SECONDS)


async def written(http: httpx.AsyncClient, name: str, instruction: str) -> str:
    """Change an agent at the version that was read, again and again until that is accepted."""
    while True:
        tag = (await http.get(f"{API}/{name}")).headers["ETag"]
        patch = {"instruction": instruction}
        answer = await http.patch(f"{API}/{name}", json=patch, headers={"If-Match": tag})
        if answer.status_code == HTTPStatus.OK:
            return instruction
        assert answer.status_code == HTTPStatus.PRECONDITION_FAILED, answer.text


@pytest.mark.whole("threads/test_definitions.py::test_of_fifty_writers_on_ten_agents_each_accepted_write_is_a_version")
@pytest.mark.needs("postgresql")
@pytest.mark.parametrize(("agents", "writers"), [(3, 12), pytest.param(10, 50, marks=pytest.mark.soak)])
async def test_no_accepted_write_is_lost_and_every_process_soon_answers_by_the_last(
    agents: int, writers: int, server: PostgreSql, tmp_path: Path
) -> None:
    names = [f"agent{number}" for number in range(agents)]
    async with replicas(tmp_path, server.new_database()) as fleet:
        for name in names:
            made = await fleet.workers[0].post(API, json={"name": name, **definition("first")})
            assert made.status_code == HTTPStatus.CREATED, made.text
        accepted: dict[str, list[str]] = {name: [] for name in names}

        async def write(number: int) -> None:
            base_url = fleet.gateways[number % 2].base_url
            name = names[number % agents]
            async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=60) as http:
                for turn in range(WRITES_OF_ONE):
                    accepted[name].append(await written(http, name, f"You say {number} in turn {turn}."))

        await asyncio.gather(*map(write, range(writers)))
        writes = WRITES_OF_ONE * writers // agents
        expected = [(writes + 1, writes + 1)] * 4

        async def all_are_at_the_last() -> bool:
            found = [await fleet.running_versions(name) for name in names]
            return all(versions == expected for versions in found)

        await eventually(all_are_at_the_last, what="the last versions at every process")
        for name in names:
            versions = (await fleet.workers[0].get(f"{API}/{name}/versions")).json()["versions"]
            assert [one["version"] for one in versions] == [*range(writes + 1, 0, -1)]
            stored = [
                (await fleet.workers[0].get(f"{API}/{name}/versions/{number}")).json()["instruction"]
                for number in range(2, writes + 2)
            ]
            assert sorted(stored) == sorted(accepted[name])
            answers = [(await ask(one.url(name), "hello")).text for one in fleet.gateways]
            assert all(stored[-1] in one for one in answers)


@pytest.mark.whole("e2e/test_workers.py::test_all_workers_give_the_registry_one_tag")
@pytest.mark.needs("postgresql")
async def test_the_registry_shows_a_new_agent_at_every_worker_and_replica(server: PostgreSql, tmp_path: Path) -> None:
    async with replicas(tmp_path, server.new_database()) as fleet:
        made = (await fleet.workers[0].post(API, json={"name": "helper", **definition("one")})).json()

        async def all_have(name: str, title: str) -> bool:
            listed = [answer.json()["servers"] for answer in await fleet.of_all(WELL_KNOWN)]
            found = [[one["server"]["title"] for one in servers] for servers in listed]
            return all(title in titles for titles in found)

        await eventually(lambda: all_have("helper", "Helper"), what="the new agent at every worker")
        for answer in await fleet.of_all(WELL_KNOWN):
            updated = {
                one["server"]["title"]: one["_meta"]["io.modelcontextprotocol.registry/official"]["updatedAt"]
                for one in answer.json()["servers"]
            }
            assert updated["Helper"][:19] == made["updatedAt"][:19]
        fleet.project.edit(lambda document: document["agents"]["filed"].update(title="Another"))
        for one in fleet.gateways:
            one.program.signal(signal.SIGHUP)
        await eventually(lambda: all_have("filed", "Another"), what="the reload at every worker")


@pytest.mark.whole(
    "e2e/test_agents_of_workers.py::test_each_worker_reads_at_once_what_another_has_written_and_no_change_is_lost"
)
@pytest.mark.needs("postgresql")
async def test_workers_that_replace_killed_ones_serve_what_was_accepted(server: PostgreSql, tmp_path: Path) -> None:
    async with replicas(tmp_path, server.new_database()) as fleet:
        killed, stays = fleet.gateways
        over = asyncio.Event()
        async with httpx.AsyncClient(base_url=stays.base_url, trust_env=False, timeout=60) as http:
            made = await http.post(API, json={"name": "helper", **definition("first")})
            assert made.status_code == HTTPStatus.CREATED, made.text

            async def write() -> int:
                writes = 0
                while not over.is_set():
                    await written(http, "helper", f"You say {(writes := writes + 1)}.")
                return writes

            writing = asyncio.create_task(write())
            first = killed.pids
            for pid in first:
                os.kill(pid, signal.SIGKILL)
            await eventually(lambda: len(killed.pids - first) == len(first), READY_SECONDS, what="other workers")
            over.set()
            last = await writing + 1
        assert last > 1

        async def serves_the_last() -> bool:
            try:
                document = (await killed.get(f"{API}/helper")).json()
            except httpx.TransportError:  # no worker accepts connections yet
                return False
            return bool(document.get("runningVersion") == document["version"] == last)

        for pid in killed.pids:
            with killed.only(pid):
                await eventually(serves_the_last, READY_SECONDS, what="the last version")
