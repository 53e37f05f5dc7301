"""Stdio servers: when their processes start and end, who uses them, what programs that fail or misbehave cost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from pallas_gateway.config.model.downstreams import ProcessSettings
from pallas_gateway.limits import ProgramLimits
from pallas_gateway.runtime.downstreams.programs.program_pool import Programs
from pallas_gateway.runtime.downstreams.programs.program_process import ProgramProcess
from pallas_gateway.runtime.downstreams.programs.program_transport import MOST_UNREAD, Greeting, connection
from pallas_gateway.runtime.protocols import StdioProgram
from tests.e2e.stdio_world import World, holding, world
from tests.support.askable_callers import EACH_ERA, Person, accept, client_of, told
from tests.support.calling import health
from tests.support.clients import MODERN_VERSION
from tests.support.commands import started
from tests.support.fair_time import hastened
from tests.support.gateway import Agent, Limits, until_idle, write_project
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.pairs import pairs
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say
from tests.support.stdio_processes import Processes, children, distinct, is_running, parent_of
from tests.support.waiting import Gate, eventually


@pytest.fixture(autouse=True)
def limited(limits: Limits) -> None:
    limits.gateway.health.fresh_seconds = 0
    limits.runtime.programs.leave_seconds = 0.2


@EACH_ERA
async def test_each_call_has_a_process_of_its_own_that_was_started_before_it(era: str, tmp_path: Path) -> None:
    async with world(tmp_path, era=era) as it:
        await it.ask()
        used = []
        for started in (1, 2, 3):
            waiting = await it.processes.until_latest_waits(started)
            where, uses, again = (await it.ask("where count where")).split(" | ")
            assert int(where) == waiting
            assert (uses, again) == ("2", where)  # the same process in one call, and no call used it before
            used.append(where)
        assert distinct(used)
        latest = await it.processes.until_latest_waits(4)
        listings = it.processes.notes  # its first request after the greeting, which loads parts of many servers
        await eventually(lambda: latest in {note["pid"] for note in listings("tools/list")}, what="a listing")


async def test_a_process_is_replaced_after_the_call_that_uses_it(tmp_path: Path, limits: Limits) -> None:
    limits.runtime.programs.replace_seconds = 600
    gate = Gate()
    async with world(tmp_path, script=holding(gate)) as it:
        await it.ask("where")
        await it.processes.until_latest_waits(2)
        before = children()
        asking = asyncio.create_task(it.ask("where hold"))
        await gate.wait_for_entered(1)
        assert children() <= before  # a start would compete with the call
        gate.open()
        assert await asking == "held"
        await it.processes.until_latest_waits(3)


async def test_a_process_is_used_although_it_did_not_list_its_tools_in_advance(tmp_path: Path, limits: Limits) -> None:
    limits.runtime.programs.rehearse_seconds = 0.05
    async with world(tmp_path) as it:
        await it.ask()
        (it.processes.folder / "unlisted").touch()
        for started in (1, 2, 3):
            assert (await it.ask("where count")).endswith(" | 2")
            await it.processes.until_latest_waits(started + 1)
        assert await it.problem() is None


async def test_tools_that_a_program_did_not_list_are_listed_with_the_next_call(tmp_path: Path, limits: Limits) -> None:
    programs = limits.runtime.programs
    programs.rehearse_seconds = programs.list_seconds = programs.first_pause_seconds = 0.05
    programs.start_seconds = 20
    (tmp_path / "processes").mkdir()
    (unlisted := tmp_path / "processes" / "unlisted").touch()
    async with world(tmp_path) as it:
        asking = asyncio.create_task(it.ask())
        await eventually(lambda: it.processes.notes("tools/list"), what="the question for its tools")
        assert await hastened(asking) == "has "
        unlisted.unlink()

        async def has_tools() -> bool:
            return await it.ask() == "has p"

        await eventually(has_tools, what="the tools")


@EACH_ERA
async def test_calls_at_once_have_processes_of_their_own(era: str, tmp_path: Path) -> None:
    async with world(tmp_path, era=era, warm=2) as it:
        answers = await asyncio.gather(*(it.ask("where count") for _ in range(6)))
        places, uses = zip(*(answer.split(" | ") for answer in answers), strict=True)
        assert distinct(places)
        assert set(uses) == {"2"}
        await it.processes.until_alive(2)


async def test_no_process_repeats_the_id_of_a_request(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        assert await it.ask("where progress") == f"{it.processes.started[0]} | done"
        events = ("server/discover", "initialize", "tools/list", "tools/call")
        notes = [note for event in events for note in it.processes.notes(event)]
        ids = [note["id"] for note in notes if note["pid"] == it.processes.started[0]]
        assert len(ids) == 5
        assert distinct(map(str, ids))


async def test_agents_share_the_processes_that_wait_and_the_last_agents_end_ends_them(tmp_path: Path) -> None:
    async with world(tmp_path, agents=("user", "other", "third")) as it:
        for agent in ("user", "other", "third"):
            assert await it.ask(agent=agent) == "has p"
        assert len(it.processes.started) == 1
        assert await it.ask("where", "other") == str(it.processes.started[0])


async def test_a_server_without_warm_processes_starts_one_for_the_call_that_uses_it(tmp_path: Path) -> None:
    async with world(tmp_path, warm=0) as it:
        await it.ask()
        await it.processes.until_alive(0)
        where = await it.ask("where")
        assert where == str(it.processes.started[1])
        await it.processes.until_alive(0)
        assert len(it.processes.started) == 2


async def test_a_server_that_starts_slowly_or_was_ended_for_being_idle_is_well(tmp_path: Path, limits: Limits) -> None:
    limits.gateway.health.probe_seconds, limits.gateway.health.fresh_seconds = 0.05, 0
    (tmp_path / "processes").mkdir()
    (slow := tmp_path / "processes" / "slow").touch()
    async with world(tmp_path, idle_seconds=0.05) as it:
        await it.processes.until_alive(1)
        assert await it.problem() is None
        slow.unlink()
        assert await it.ask() == "has p"
        await it.processes.until_alive(0)
        slow.touch()
        assert await it.problem() is None
        assert len(it.processes.started) == 1  # none for a probe, nor for a call that does not use it
        slow.unlink()
        assert await it.ask("where") == str(it.processes.started[1])
        await it.processes.until_alive(0)


async def test_calls_wait_for_a_process_and_then_read_that_all_are_in_use(tmp_path: Path, limits: Limits) -> None:
    gate = Gate()
    async with world(tmp_path, script=holding(gate), max_processes=2) as it:
        held = [asyncio.create_task(it.ask("where hold")) for _ in range(2)]
        await gate.wait_for_entered(2)
        limits.runtime.programs.start_seconds = 0.05
        refused = await it.ask("where")
        assert "all 2 processes of its program are in use" in refused
        assert await it.ask() == "has p"  # its tools are still known
        assert len(it.processes.alive) == 2
        limits.runtime.programs.start_seconds = 20
        waiting = asyncio.create_task(it.ask("where"))
        gate.open()
        assert await asyncio.gather(*held) == ["held", "held"]
        assert (await waiting).isdigit()


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        (["crash-at-start"], "its process ended with code 3"),
        (["hang-at-start"], "no answer within 20 s"),
    ],
)
async def test_a_program_that_fails_at_its_start_is_left_alone_for_a_while(
    faults: list[str], why: str, tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits.runtime.programs.start_seconds = 20
    limits.runtime.programs.first_pause_seconds = 600
    async with world(tmp_path, *faults) as it:
        asking = asyncio.create_task(it.ask())
        await eventually(lambda: len(it.processes.started) == 1, what="the process")
        if "hang-at-start" in faults:
            await hastened(asking)
        assert await asking == "has "
        for _ in range(4):
            assert await it.ask() == "has "
        assert await it.problem() == f"degraded: {why}"
        assert len(it.processes.started) == 1
        await it.processes.until_alive(0)
    said = [
        record for record in caplog.records if getattr(record, "server", None) == "p" and record.levelname == "WARNING"
    ]
    assert [(record.getMessage(), vars(record)["error"]) for record in said] == [("downstream unreachable", why)]


async def test_a_program_that_works_again_is_used_again(tmp_path: Path, limits: Limits) -> None:
    limits.runtime.programs.first_pause_seconds = 0.01
    (tmp_path / "processes").mkdir()
    (fault := tmp_path / "processes" / "crash-at-start").touch()
    async with world(tmp_path) as it:
        assert await it.ask() == "has "
        fault.unlink()

        async def has_tools() -> bool:
            return await it.ask() == "has p"

        await eventually(has_tools, what="the tools")
        assert await it.problem() is None


async def test_a_program_that_is_missing_costs_its_tools(tmp_path: Path) -> None:
    async with world(tmp_path, command="no-such-program") as it:
        assert await it.ask() == "has "
        assert await it.problem() == "degraded: command 'no-such-program' not found"


async def test_a_process_that_crashes_in_a_call_is_replaced_in_the_same_call(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        answers = await asyncio.gather(it.ask("where crash where"), it.ask("where count"))
        before, crashed, after = answers[0].split(" | ")
        assert before != after
        assert "losed" in crashed
        assert answers[1].endswith(" | 2")
        assert await it.problem() is None
        assert await it.ask() == "has p"


async def test_what_a_program_prints_besides_is_ignored(tmp_path: Path) -> None:
    async with world(tmp_path, "garbage") as it:
        assert (await it.ask("where")).isdigit()


async def test_a_program_that_ignores_the_end_of_its_input_is_killed(tmp_path: Path) -> None:
    async with world(tmp_path, "deaf", warm=0) as it:
        await it.ask("where")
        await eventually(lambda: it.processes.notes("input closed"), what="the end of the input")
        await it.processes.until_alive(0)


async def test_a_daemon_of_a_program_does_not_keep_its_pipes_open(tmp_path: Path) -> None:
    async with world(tmp_path, warm=0) as it:
        await it.ask("where")
        await until_idle(it.served)
        before = snapshot()
        daemon = int(await it.ask("daemon"))
        try:
            await until_idle(it.served)
            await it.processes.until_alive(0)
            await assert_nothing_left(before, 5)
            assert is_running(daemon)
        finally:
            (it.processes.folder / "daemons").unlink()


async def test_other_tasks_run_between_the_lines_that_a_program_has_printed_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    command = [sys.executable, "-I", "-S", "-c", r"print('x\n' * 5000)"]
    process, lines, at_once = ProgramProcess(StdioProgram(command[0], tuple(command[1:])), 0.2), 0, 0
    with caplog.at_level("DEBUG", "pallas.runtime"):
        running = asyncio.create_task(process.run())
        while not running.done():
            await asyncio.sleep(0)
            at_once = max(at_once, len(caplog.records) - lines)
            lines = len(caplog.records)
    assert lines > 5000
    assert at_once < 10


async def test_a_program_that_prints_faster_than_it_is_read_has_to_wait() -> None:
    code = "import json; print((json.dumps({'jsonrpc': '2.0', 'method': 'm' * 1000}) + chr(10)) * 3000)"
    process, waiting = ProgramProcess(StdioProgram(sys.executable, ("-I", "-S", "-c", code)), 0.2), [0]
    running = asyncio.create_task(process.run())
    while not running.done():
        await asyncio.sleep(0)
        if process._process is not None and process._process.stdout is not None:
            waiting.append(len(process._process.stdout._buffer))  # type: ignore[attr-defined]
    assert 0 < max(waiting) < 2**20


async def test_a_program_that_reports_changes_and_lists_no_tools_ends_with_its_call(
    tmp_path: Path, limits: Limits
) -> None:
    limits.runtime.listings.ask_seconds = 0.2
    async with world(tmp_path, warm=0) as it:
        await it.ask("where")
        before = snapshot()
        assert await it.ask("change") == "changed"
        await until_idle(it.served)
        await it.processes.until_alive(0)
        await assert_nothing_left(before)


def block_until_exited(pid: int) -> None:
    with suppress(ChildProcessError):  # the event loop has collected it
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_program_is_sent_nothing_between_its_end_and_the_moment_the_end_is_noted() -> None:
    source = """import os; print('{"jsonrpc": "2.0", "method": "pid", "params": {"pid": %s}}' % os.getpid())"""

    async def send_until_the_end_is_noted() -> None:
        process = ProgramProcess(StdioProgram(sys.executable, ("-I", "-S", "-c", source)), 0.2)
        pids: asyncio.Queue[int] = asyncio.Queue()

        async def deliver(message: JSONRPCMessage) -> None:
            assert isinstance(message, JSONRPCNotification)
            assert message.params is not None
            await pids.put(message.params["pid"])

        process.connections[deliver] = lambda: None
        running = asyncio.create_task(process.run())
        block_until_exited(await pids.get())  # the event loop notices the end after this
        while process.is_usable:
            process.send(JSONRPCRequest(jsonrpc="2.0", id=1, method="ping"), deliver)
            await asyncio.sleep(0)
        await running

    asyncio.run(send_until_the_end_is_noted(), loop_factory=uvloop.new_event_loop)  # the loop of `serve`


@EACH_ERA
async def test_calls_share_one_process_of_a_server_that_is_marked(era: str, tmp_path: Path) -> None:
    async with world(tmp_path, era=era, shared=True) as it:
        answers = await asyncio.gather(*(it.ask("where progress") for _ in range(5)))
        (pid,) = it.processes.alive
        assert set(answers) == {f"{pid} | done"}
        crashed = await it.ask("crash where")
        (other,) = await it.processes.until_alive(1)
        assert crashed.endswith(f" | {other}")
        assert other != pid
        assert await it.ask("where") == str(other)
        assert len(it.processes.started) == 2


async def test_a_shared_process_cannot_ask(tmp_path: Path) -> None:
    async with world(tmp_path, shared=True) as it:
        answer = json.loads(await it.ask("ask"))
        assert answer["error"]["message"] == "This client cannot be asked."
        assert [note["params"]["capabilities"] for note in it.processes.notes("initialize")] == [{}]


async def test_a_process_declares_what_the_caller_of_its_call_supports(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        listed = await it.processes.until_latest_waits(1)
        async with client_of(it.served.url("user"), Person(accept(name="Ada"))) as client:
            assert "Ada" in await told(client, "where ask")
        assert await it.ask("where") == str(listed)  # it had declared that no caller can be asked, and was left alone
        declared = [note["params"]["capabilities"].get("elicitation") for note in it.processes.notes("initialize")]
        assert declared[:2] == [None, {"form": {}, "url": {}}]


@pairs(
    {
        "tools, read": {
            "question": ("ask", '"action": "cancel"'),
            "approval": ("where count", "the caller did not give it"),
        },
        "mode": ["legacy", MODERN_VERSION],
    }
)
async def test_a_call_that_waits_for_its_caller_makes_way_for_calls_that_wait_for_a_process(
    tools: str, read: str, mode: str, tmp_path: Path, limits: Limits
) -> None:
    async with world(tmp_path, max_processes=1, warm=0, approve=("p/count",)) as it:
        person = Person(None)
        async with client_of(it.served.url("user"), person, mode) as client:
            asking = asyncio.create_task(told(client, tools))
            await person.wait_for(1)
            limits.runtime.programs.patience_seconds = 0.05
            assert (await it.ask("where")).isdigit()
            person.answer_now(accept(decision="once"))
            assert read in await asking


async def test_processes_stay_ready_when_a_reload_changes_only_agents(tmp_path: Path) -> None:
    async with world(tmp_path, agents=("user", "other")) as it:
        for agent in ("user", "other"):  # a listing that the reload cuts off would end the process
            await it.ask(agent=agent)
        it.served.project.edit(lambda document: document["agents"].pop("other"))
        await it.served.reload()
        await it.ask()
        assert len(it.processes.started) == 1
        await has_another_environment(it)
        await it.processes.until_latest_waits(3)


async def test_the_health_check_starts_no_process_beside_one_that_waits(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.ask()
        for _ in range(3):
            found = await health(it.served.url("user"))
            assert (found["status"], found["downstream"][0]["protocol"]) == ("ok", "initialize")
        assert len(it.processes.started) == 1


async def has_another_environment(it: World) -> None:
    change = {"env": {"ANOTHER": "yes"}}
    it.served.project.edit(lambda document: document["mcp"]["servers"]["p"].update(change), "fastagent.config.yaml")
    await it.served.reload()
    assert json.loads(await it.ask("environment"))["ANOTHER"] == "yes"


@EACH_ERA
async def test_a_server_whose_next_process_is_slow_to_start_is_well_after_a_call(era: str, tmp_path: Path) -> None:
    async with world(tmp_path, era=era) as it:
        await it.ask()
        (slow := it.processes.folder / "slow").touch()
        await it.ask("where")
        await eventually(lambda: len(it.processes.started) == 2, what="the next process")
        await it.processes.until_alive(1)  # that of the call has ended
        assert await it.problem() is None
        assert len(it.processes.started) == 2
        slow.unlink()
        await it.processes.until_latest_waits(2)


async def test_a_server_whose_next_process_fails_is_no_longer_well(tmp_path: Path, limits: Limits) -> None:
    limits.runtime.programs.first_pause_seconds = 600
    async with world(tmp_path) as it:
        await it.ask()
        (it.processes.folder / "crash-at-start").touch()
        await it.ask("where")

        async def is_degraded() -> bool:
            return await it.problem() == "degraded: its process ended with code 3"

        await eventually(is_degraded, what="the failure")


# --- programs that misbehave, and ends of calls and of the gateway ----------------------------------------------------

PARAMS = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
GREETING = Greeting.of(JSONRPCRequest(jsonrpc="2.0", id=0, method="initialize", params=PARAMS), shared=True)


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
    loop = asyncio.get_running_loop()
    async with Programs(ProgramLimits(leave_seconds=0.2)) as programs:
        pool = programs.acquire("p", program)
        async with connection(pool, greeting=GREETING):
            taken = await pool.acquire(GREETING)  # and not connected yet
        taken.connections[_ignore] = lambda: None
        await eventually(lambda: all(timer.cancelled() or timer.when() < loop.time() for timer in pool._ready.values()))
        await asyncio.sleep(0)
        assert taken.is_usable
        taken.disconnect(_ignore)
        pool.release(taken, is_used=True)
        await eventually(lambda: not taken.is_usable, what="its end")


async def _ignore(_: JSONRPCMessage) -> None:
    """A connection that reads nothing."""


async def test_a_reload_leaves_the_processes_of_running_and_waiting_calls_alone(tmp_path: Path) -> None:
    gate = Gate()
    async with world(tmp_path, script=holding(gate), max_processes=1) as it:
        running = asyncio.create_task(it.ask("where hold where"))
        await gate.wait_for_entered(1)
        waiting = asyncio.create_task(it.ask("where"))
        await it.until_running(2)
        await has_another_environment(it)
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
