"""Stdio servers whose programs misbehave, and processes when calls are cancelled, and the gateway reloads or ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from pallas_gateway.config.model.downstreams import ProcessSettings
from pallas_gateway.limits import ProgramLimits
from pallas_gateway.runtime.downstreams.programs.program_pool import Programs
from pallas_gateway.runtime.downstreams.programs.program_process import ProgramProcess
from pallas_gateway.runtime.downstreams.programs.program_transport import MOST_UNREAD, Greeting, connection
from pallas_gateway.runtime.protocols import StdioProgram
from tests.e2e.stdio_world import holding, world
from tests.support.commands import started
from tests.support.gateway import Agent, until_idle, write_project
from tests.support.scripted_llm import call_tools, say
from tests.support.stdio_processes import Processes, is_running, parent_of
from tests.support.waiting import Gate, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_types import JSONRPCMessage

    from tests.support.gateway import Limits
    from tests.support.scripted_llm import LlmRequest, Turn

PARAMS = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
GREETING = Greeting.of(JSONRPCRequest(jsonrpc="2.0", id=0, method="initialize", params=PARAMS), shared=True)


@pytest.fixture(autouse=True)
def limited(limits: Limits) -> None:
    limits.gateway.health.fresh_seconds = 0
    limits.runtime.programs.leave_seconds = 0.2


async def test_a_program_that_floods_prints_no_end_of_a_line_or_too_many_values_is_ended(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        for tool in ("flood", "line", "values"):
            sent, again = (await it.ask(f"{tool} where")).split(" | ")
            assert (tool, "losed" in sent, again.isdigit()) == (tool, True, True)
            assert await it.problem() is None


async def test_a_program_that_reports_to_no_call_without_end_is_ended(tmp_path: Path) -> None:
    async with world(tmp_path, "chatty") as it:
        assert await it.ask() == "has p"
        await it.processes.until_alive(0)
        assert await it.ask() == "has p"
        assert await it.problem() is None


async def test_a_child_process_of_a_program_ends_with_it(tmp_path: Path) -> None:
    async with world(tmp_path, warm=0) as it:
        child = int(await it.ask("child"))
        assert child in it.processes.started
        await eventually(lambda: not is_running(child), what="the end of the child process")


async def test_a_tool_call_to_a_program_that_does_not_read_has_its_time_limit(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        done = list(request.tool_results.values())
        if len(done) == 2:
            return say(done[1])
        return call_tools([("p__where", {"name": "x" * 2**19})] if done else [("p__deafen", {})])

    async with world(tmp_path, script=script, warm=0, read_timeout_seconds=1) as it:
        answer = await it.ask()
        assert "imed out" in answer
        await it.processes.until_alive(0)


async def test_calls_that_are_cancelled_leave_no_more_processes_than_are_kept_ready(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.ask()
        await it.processes.until_latest_waits(1)
        (slow := it.processes.folder / "slow").touch()
        asking = [asyncio.create_task(it.ask("where")) for _ in range(8)]
        await eventually(lambda: len(it.processes.started) >= 8, what="their processes")
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)
        await until_idle(it.served)
        await it.processes.until_alive(1)
        slow.unlink()
        assert (await it.ask("where")).isdigit()
        assert await it.problem() is None


async def test_a_program_that_reads_nothing_is_ended_before_its_messages_fill_the_memory() -> None:
    process = ProgramProcess(StdioProgram("sleep", ("600",)), 0.2)
    ends = asyncio.Event()

    async def deliver(_: JSONRPCMessage) -> None:
        raise AssertionError("it prints nothing")

    process.connections[deliver] = ends.set
    running = asyncio.create_task(process.run())
    await eventually(lambda: process._process is not None, what="its start")
    sent = 0
    while process.is_usable:
        process.send(JSONRPCRequest(jsonrpc="2.0", id=sent, method="x" * 2**22), deliver)
        sent += 1
    await running
    assert sent == 17
    assert ends.is_set()


async def test_a_client_of_a_shared_process_that_reads_nothing_does_not_delay_the_others(tmp_path: Path) -> None:
    settings = Processes(tmp_path).settings()
    program = StdioProgram(settings["command"], tuple(settings["args"]), processes=ProcessSettings(shared=True))

    def using(tool: str) -> SessionMessage:
        call = {"name": tool, "arguments": {}, "_meta": {"progressToken": "mine"}}
        return SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params=call))

    async with Programs(ProgramLimits(leave_seconds=0.2)) as programs:
        pool = programs.acquire("p", program)
        async with connection(pool, greeting=GREETING) as stuck, connection(pool, greeting=GREETING) as other:
            await stuck[1].send(using("news"))
            await other[1].send(using("where"))
            async with asyncio.timeout(20):
                answer = await other[0].receive()
            assert isinstance(answer, SessionMessage)
            assert isinstance(answer.message, JSONRPCResponse)
            read = [stuck[0].receive_nowait() for _ in range(MOST_UNREAD + 1)]  # type: ignore[attr-defined]
            assert [type(one.message) for one in read] == [JSONRPCNotification] * MOST_UNREAD + [JSONRPCResponse]


async def test_a_shared_process_that_is_in_use_is_not_ended_for_being_idle(tmp_path: Path) -> None:
    settings = Processes(tmp_path).settings()
    processes = ProcessSettings(shared=True, idle_seconds=0.01)
    program = StdioProgram(settings["command"], tuple(settings["args"]), processes=processes)
    async with Programs(ProgramLimits(leave_seconds=0.2)) as programs:
        pool = programs.acquire("p", program)
        async with connection(pool, greeting=GREETING):
            taken = await pool.acquire(GREETING)  # and not connected yet
        taken.connections[_ignore] = lambda: None
        await eventually(lambda: all(timer.cancelled() or timer.when() < now() for timer in pool._ready.values()))
        await asyncio.sleep(0)
        assert taken.is_usable
        taken.disconnect(_ignore)
        pool.release(taken, is_used=True)
        await eventually(lambda: not taken.is_usable, what="its end")


async def _ignore(_: JSONRPCMessage) -> None:
    """A connection that reads nothing."""


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_reload_leaves_the_processes_of_running_and_waiting_calls_alone(tmp_path: Path) -> None:
    gate = Gate()
    async with world(tmp_path, script=holding(gate), max_processes=1) as it:
        running = asyncio.create_task(it.ask("where hold where"))
        await gate.wait_for_entered(1)
        waiting = asyncio.create_task(it.ask("where"))
        await it.until_running(2)

        def another(document: dict[str, Any]) -> None:
            document["mcp"]["servers"]["p"]["env"] = {"ANOTHER": "yes"}

        it.served.project.edit(another, "fastagent.config.yaml")
        await it.served.reload()
        assert json.loads(await it.ask("environment"))["ANOTHER"] == "yes"
        assert not waiting.done()
        gate.open()
        before, after = (await running).split(" | ")
        assert before == after
        assert (await waiting).isdigit()
        await until_idle(it.served)
        await it.processes.until_alive(1)


async def test_a_drain_ends_the_processes_of_running_and_waiting_calls(tmp_path: Path) -> None:
    async with world(tmp_path, max_processes=1, gateway={"drain_seconds": 0.2}) as it:
        asking = [asyncio.create_task(it.ask("hang")) for _ in range(3)]
        await eventually(lambda: it.processes.notes("tools/call"), what="the tool call")
        await it.until_running(3)
        it.served.stop.set()
        assert all(["is stopping" in await one for one in asking])
        await it.processes.until_alive(0)


async def test_processes_end_with_the_worker_that_started_them(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    processes = Processes(tmp_path / "processes")
    write_project(tmp_path, {"user": Agent(servers=["p"])}, servers={"p": processes.settings()})
    with started(["serve", "--workers", "2"], tmp_path) as gateway:
        gateway.wait_for("Registry: ")
        first, second = await processes.until_alive(2)
        assert parent_of(first) != parent_of(second)
        os.kill(parent_of(first), signal.SIGKILL)
        await eventually(lambda: not is_running(first), what="the end of its process")
        assert is_running(second)
        gateway.signal(signal.SIGKILL)
        await processes.until_alive(0)
