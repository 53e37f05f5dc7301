"""What long calls cost, as ratios in one run: of CPU seconds, which a loaded machine changes least.

The transactions of tasks are those of the gateway, without HTTP. They are measured in this process, in SQLite or in the
database of `BENCHMARK_DATABASE`, an empty one.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from time import process_time
from typing import TYPE_CHECKING, Any

import httpx
from sqlalchemy import select, update

from benchmarks import contenders
from benchmarks.figures import Bounds, figure, ratio
from benchmarks.processes import HOST
from benchmarks.project import Agent
from pallas_gateway.calls.recording import Row
from pallas_gateway.calls.spending import Spending
from pallas_gateway.core.long_calls import rows
from pallas_gateway.core.long_calls.recorder import LatestStep, TaskRecorder
from pallas_gateway.core.long_calls.records import NewTask
from pallas_gateway.core.long_calls.service import LongCalls
from pallas_gateway.features.threads.service import Threads
from pallas_gateway.identity.secret import Secret
from pallas_gateway.limits import TaskLimits, ThreadLimits
from pallas_gateway.shared.database.connections import LeaseTerms
from pallas_gateway.shared.database.service import GatewayDatabase
from pallas_gateway.shared.database.tables import tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncConnection

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint

SLICES = 150
CALLS_OF_A_SLICE = 4
OPERATIONS = 60
_CLIENT = "io.modelcontextprotocol/client"
_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    f"{_CLIENT}Info": {"name": "benchmarks", "version": "1"},
    f"{_CLIENT}Capabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}
_HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call",
    "mcp-name": "send_message",
}
_MESSAGE = {"role": "assistant", "content": [{"type": "text", "text": "Bees are winged insects. " * 20}]}
_RESULT = {"result": {"content": [{"type": "text", "text": "Bees are winged insects. " * 40}], "isError": False}}


async def measure(bench: Bench) -> None:
    """Measure a call that becomes no task, and the transactions of one that does."""
    await _declared(bench)
    await _transactions(bench)


async def _declared(bench: Bench) -> None:
    """Calls whose client declares tasks, with `gateway.tasks` and without, in turn."""
    cpu: dict[str, list[float]] = {"with": [], "without": []}
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=60))
        agents = {"bare": Agent(contenders.llm_url(bench.llm))}
        endpoints = {}
        more: dict[str, Any]
        for name, more in (("with", {"tasks": {}}), ("without", {})):
            settings = {"database": "sqlite:///threads.db", **more}
            gateway = contenders.gateway(bench.new_folder(), agents, settings=settings)
            endpoints[name] = (await stack.enter_async_context(gateway))["bare"]
        for number in range(SLICES + 10):
            for name in ("with", "without") if number % 2 else ("without", "with"):
                used = await _cpu_of_a_slice(http, endpoints[name])
                if number >= 10:  # those before warm up
                    cpu[name].append(used)
    means = [[sum(used)] for used in (cpu["with"], cpu["without"])]
    title = "call that declares tasks and becomes none, CPU over one without gateway.tasks"
    bench.check("long-calls/declared", title, ratio(*means), Bounds(1.03, 1.03, at_least=False))


async def _cpu_of_a_slice(http: httpx.AsyncClient, endpoint: Endpoint) -> float:
    params = {"name": endpoint.tool, "arguments": endpoint.arguments, "_meta": _META}
    before = endpoint.process.cpu_seconds
    for id_ in range(CALLS_OF_A_SLICE):
        body = {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": params}
        url = f"http://{HOST}:{endpoint.process.port}{endpoint.path}"
        answer = await http.post(url, json=body, headers=_HEADERS)
        if endpoint.expected not in answer.text:
            raise ValueError(answer.text[:2000])
    return endpoint.process.cpu_seconds - before


class _Course:
    """The journal of a call with a round of tools behind it, and a tool that runs."""

    def checkpoint(self, open_questions: object) -> None:
        """Not used."""

    def waiting(self, question: object) -> Sequence[Row]:
        return ()

    def record_by(self, recorder: object) -> Sequence[Row]:
        ended = [Row("result", number, f"call_{number}", _RESULT) for number in (1, 2)]
        turns = [Row("turn", number, "", _MESSAGE) for number in (1, 2, 3)]
        return [*turns, *ended, *(Row("began", 3, f"call_{number}", {"approved": []}) for number in (3, 4))]


class _Tasks:
    """Tasks in a database, and what is done with them."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._database = threads.database
        self._recorders: list[TaskRecorder] = []
        self._turn = 3

    async def become(self) -> None:
        """Store a task with a course of seven rows."""
        ada = "key:ada"
        request = {"arguments": {"message": "Bees?"}, "modes": []}
        new = NewTask(
            owner=ada,
            account=ada,
            principal=ada,
            agent="bare",
            agent_id="",
            api="mcp",
            call_id="0" * 16,
            request=request,
            by_owner=False,
            seconds=86_400,
            most=100,
        )
        recorder = TaskRecorder(self._database, new.held, 86_400, None, LatestStep())
        await recorder.begin(new, self._threads.long_calls, _Course(), Spending(), None)
        self._recorders.append(recorder)

    async def round(self) -> None:
        """Store a turn of the model, the begin of a tool, and its result."""
        recorder, self._turn = self._recorders[-1], self._turn + 1
        recorder.note(Row("turn", self._turn, "", _MESSAGE), 100, 0.1)
        await recorder.store(Row("began", self._turn, "call_9", {"approved": []}), 100, 0.1)
        recorder.note(Row("result", self._turn, "call_9", _RESULT), 100, 0.1)
        if recorder._writing is not None:
            await recorder._writing

    async def read(self) -> None:
        """Read a row."""
        found = select(tasks).where(tasks.c.id == self._recorders[-1].held.task_id)
        await self._database.read(lambda sql: sql.execute(found))

    async def poll(self) -> None:
        """Read what `tasks/get` does."""
        its = {"id": self._recorders[-1].held.task_id, "api": "mcp", "owner": "key:ada", "agent": "bare"}
        await self._database.read(lambda sql: rows.find(sql, **its))

    async def end_all(self) -> None:
        for recorder in self._recorders[:-1]:
            await recorder.end()
        self._recorders = self._recorders[-1:]
        kept = tasks.c.id != self._recorders[-1].held.task_id
        await self._database.write(lambda sql: _ended(sql, kept))


async def _ended(sql: AsyncConnection, which: Any) -> None:
    await sql.execute(update(tasks).where(which).values(status="completed", holder=None))


async def _transactions(bench: Bench) -> None:
    folder: Path = bench.new_folder()
    folder.mkdir()
    url = os.environ.get("BENCHMARK_DATABASE", f"sqlite:///{folder}/threads.db")
    cpu: dict[str, list[float]] = {name: [] for name in ("read", "poll", "become", "round")}
    async with GatewayDatabase(Secret(url), folder) as database:
        long_calls = LongCalls(database, "benchmark", TaskLimits())
        threads = Threads(database, LeaseTerms(60, "benchmark"), ThreadLimits(), long_calls)
        database.add(threads)
        one = _Tasks(threads)
        await one.become()
        work = {"read": one.read, "poll": one.poll, "round": one.round, "become": one.become}
        for round_ in range(bench.plan.rounds + 1):
            for name, operation in work.items():
                used = await _cpu(operation)
                if round_:  # the first warms up
                    cpu[name].append(used)
            await one.end_all()
    for name, taken in cpu.items():
        bench.say(f"long-calls: {name}: CPU {figure(taken).median:.2f} ms")
    of = f", CPU over the read of a row, {url.partition(':')[0]}"
    for name, title, most in (
        ("poll", "poll of a task", 1.4),
        ("become", "call that becomes a task", 8.0),
        ("round", "round of tools of a task", 4.0),
    ):
        bounds = Bounds(most, most, at_least=False)
        bench.check(f"long-calls/{name}", title + of, ratio(cpu[name], cpu["read"]), bounds)


async def _cpu(operation: Callable[[], Awaitable[None]]) -> float:
    before = process_time()
    for _ in range(OPERATIONS):
        await operation()
    return (process_time() - before) / OPERATIONS * 1000
