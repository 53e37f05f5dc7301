"""A gateway with a database whose calls become tasks, alone or beside another process."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import func, select, update

from pallas_gateway.shared.database.tables import tasks
from tests.support.clients import RawClient, RawReply, raw_client
from tests.support.commands import PATIENT_GATEWAY, Program, started
from tests.support.downstreams import StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, Running, limited, running, write_project
from tests.support.leases import let_leases_end
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, hang, say, scripted_llm
from tests.support.stored_threads import threads_of
from tests.support.waiting import Gate, eventually

EXTENSION = "io.modelcontextprotocol/tasks"
DECLARED: Mapping[str, Any] = {
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}, "elicitation": {}}
}
ROUNDS = (("slow", "one"), ("echo", "two"), ("echo", "three"))
"""The tools that the model asks for, a round after the other."""
APPROVES = {"approve": ["tools/echo"]}
"""With this, the second round has a question."""
YES = {"action": "accept", "content": {"decision": "once"}}
DONE = "done one | two | three"
ACKNOWLEDGED = {"resultType", "_meta"}


@dataclass
class World:
    """A gateway of this process with a database, and with `two` another process, `other`, which `there` asks.

    `second`: that process and its client.
    """

    served: Running
    here: RawClient
    api: httpx.AsyncClient
    audit_log: Path
    tools: StatelessDownstream
    llm: ScriptedLlm
    model: Gate
    database: str
    second: tuple[Program, RawClient] | None = None

    @property
    def other(self) -> Program:
        assert self.second is not None
        return self.second[0]

    @property
    def there(self) -> RawClient:
        assert self.second is not None
        return self.second[1]

    async def begin(self, client: RawClient | None = None, message: str = "go") -> str:
        reply = await call(client or self.here, message)
        assert reply.result["resultType"] == "task", reply.text
        return str(reply.result["taskId"])

    async def get(self, task_id: str) -> dict[str, Any]:
        reply = await request(self.here, "tasks/get", task_id)
        return reply.result

    async def status(self, task_id: str, *wanted: str) -> dict[str, Any]:
        async def found() -> bool:
            return (await self.get(task_id))["status"] in (wanted or ("completed", "failed", "cancelled"))

        await eventually(found, what=f"the task {wanted or 'has ended'}")
        return await self.get(task_id)

    async def rows(self, of: Any = tasks) -> int:
        return int(await self.stored(select(func.count()).select_from(of)))

    async def stored(self, wanted: Any) -> Any:
        return await threads_of(self.served.gateway).database.read(lambda sql: sql.scalar(wanted))

    async def let_pauses_end(self) -> None:
        """Let the time pass after which a task that nobody runs may go on."""
        pauses_end = update(tasks).values(not_before=0)
        await threads_of(self.served.gateway).database.write(lambda sql: sql.execute(pauses_end))

    async def has_status(self, *wanted: str) -> None:
        async def has() -> bool:
            return await self.stored(select(tasks.c.status)) in wanted

        await eventually(has, what=f"a task that is {wanted}")

    async def database_is(self, *, up: bool) -> None:
        """Return once this process has noticed that."""
        stored = self.served.gateway.stored
        assert stored is not None
        await eventually(lambda: stored.database.connections.is_available is up, what=f"the database up: {up}")

    async def kill_other(self) -> None:
        self.other.signal(signal.SIGKILL)
        self.tools.gate.open()
        await let_leases_end(self.database)

    async def listed(self, **headers: str) -> list[dict[str, Any]]:
        return list((await self.api.get("/calls", headers=headers)).json()["calls"])

    def audited(self) -> list[tuple[str, str | None]]:
        """The actions of this gateway's audit log with their reasons; `audit_log` is `${AUDIT_LOG}`."""
        lines = map(json.loads, self.audit_log.read_text().splitlines())
        return [(one["action"], one.get("reason")) for one in lines if one["action"] != "start"]

    def continued(self, why: str) -> float:
        """How often this gateway went on with a task for this reason."""
        return self.served.metric("pallas_task_continued_total", agent="solo", why=why)

    @property
    def other_url(self) -> str:
        """Where the other process is reached, without a trailing slash."""
        return loopback(self.other)

    @property
    def tool_calls(self) -> list[str]:
        """The tool calls that arrived at the downstream, by their texts."""
        return [next(iter(one.rpc["params"]["arguments"].values())) for one in self.tools.recorder.requests if one.tool]


def loopback(process: Program) -> str:
    return process.url.replace("localhost", "127.0.0.1")


async def call(client: RawClient, message: str = "go", meta: Mapping[str, Any] = DECLARED) -> RawReply:
    return await client.call_tool("send_message", {"message": message}, meta=meta)


async def request(
    client: RawClient, method: str, task_id: str, *, meta: Mapping[str, Any] = DECLARED, **params: Any
) -> RawReply:
    return await client.request(method, {"taskId": task_id, **params}, meta=meta)


@asynccontextmanager
async def world(
    database_url: str,
    path: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    two: bool = False,
    held_turn: int = 0,
    most: Mapping[str, Mapping[str, Any]] | None = None,
    tasks: Mapping[str, Any] | None = None,
    off: bool = False,
    bearer: str | None = None,
    workers: int = 1,
    claim_seconds: float = 0.05,
    level: str = "INFO",
    rounds: Sequence[Sequence[tuple[str, str]]] = [[one] for one in ROUNDS],
    **gateway: Any,
) -> AsyncIterator[World]:
    """Serve a gateway whose calls become tasks at once; the model's turn number `held_turn` is held at `model`.

    Tools are told what follows `go` in the message. The other process may have `workers`.
    """
    environ = {
        "THREADS_URL": database_url,
        "PALLAS_LOG_STDERR": "1",
        "PALLAS_LOG_LEVEL": level,
        "AUDIT_LOG": f"{path}/there.log",
    }
    gate = Gate()

    def script(asked: LlmRequest) -> Turn:
        turn = sum(1 for one in asked.messages if one.get("tool_calls"))
        told = asked.last_user_text
        of = told.removeprefix("go") if told.startswith("go") else ""
        calls = [
            (f"tools__{name}", {"label" if name == "slow" else "text": text + of})
            for name, text in (rounds[turn] if turn < len(rounds) and told != "nothing" else ())
        ]
        results = (one.removeprefix('{"result":"').removesuffix('"}') for one in asked.tool_results.values())
        answer = call_tools(calls) if calls else say(" | ".join(results) or "nothing")
        return hang(gate, answer) if turn + 1 == held_turn else answer

    async with AsyncExitStack() as stack:
        tools = await stack.enter_async_context(stateless_downstream())
        llm = await stack.enter_async_context(scripted_llm(script))
        on = {} if off else {"tasks": {"after_seconds": 0, **(tasks or {})}}
        whole = {"database": "${THREADS_URL}", "port": 0, **on, **gateway}
        project = write_project(
            path / "project",
            {
                "solo": Agent(["tools"], settings=settings or {}),
                "second": Agent(settings=(most or {}).get("second", {})),
            },
            llm_url=llm.base_url,
            servers={"tools": {"url": tools.url}},
            gateway=whole,
        )
        other = (
            stack.enter_context(
                started(["serve", "--workers", str(workers)], project.path, command=PATIENT_GATEWAY, environ=environ)
            )
            if two
            else None
        )
        limits = stack.enter_context(limited())
        limits.gateway.tasks.claim_seconds, limits.gateway.tasks.clean_seconds = claim_seconds, 0.05
        limits.gateway.database.try_again_seconds = 0.05
        environ["AUDIT_LOG"] = f"{path}/here.log"
        served = await stack.enter_async_context(running(project, environ={**os.environ, **environ}))

        async def client(base_url: str) -> RawClient:
            url = f"{base_url}/agents/solo/mcp"
            return await stack.enter_async_context(raw_client(url, protocol_version="2026-07-28", bearer=bearer))

        if other is not None:
            await asyncio.to_thread(other.wait_for, "Try:")
        here = await client(served.base_url)
        http = httpx.AsyncClient(base_url=f"{served.base_url}/api/v1", trust_env=False, timeout=60)
        api = await stack.enter_async_context(http)
        world = World(served, here, api, path / "here.log", tools, llm, gate, database_url)
        if other is not None:
            world.second = other, await client(loopback(other))
        yield world


async def answered(gateway: World, task_id: str, at: RawClient | None = None) -> dict[str, Any]:
    """The task after its end; its questions are answered, one after the other."""
    while (task := await gateway.status(task_id, "input_required", "completed", "failed"))[
        "status"
    ] == "input_required":
        responses = dict.fromkeys(task["inputRequests"], YES)
        reply = await request(at or gateway.here, "tasks/update", task_id, inputResponses=responses)
        assert reply.result.keys() <= ACKNOWLEDGED
    return task
