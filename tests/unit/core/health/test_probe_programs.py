"""Programs of stdio downstreams: started, asked once, ended and reaped, whatever they do."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from pallas_gateway.core.health.probe import ProbeResult, probe
from pallas_gateway.limits import HealthLimits
from pallas_gateway.runtime.protocols import Downstream, StdioProgram
from pallas_gateway.tasks import TaskOwner
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.odd_server import DISCOVERED, HANDSHAKE
from tests.support.stdio_processes import is_running
from tests.support.waiting import cancelled, eventually

PRELUDE = (
    f"HANDSHAKE = {HANDSHAKE!r}\nDISCOVERED = {DISCOVERED['result']!r}"
    + """
import json, os, pathlib, signal, subprocess, sys, time

def answer(**outcome):
    request = json.loads(sys.stdin.readline())
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}), flush=True)
    return request["method"]

def note(text):
    with pathlib.Path("notes").open("a") as notes:
        notes.write(f"{text}\\n")
"""
)
PATIENT = HealthLimits(probe_seconds=20)  # a busy machine takes its time to start an interpreter
FORCEFUL = HealthLimits(probe_seconds=20, leave_seconds=0.1)
HANG = "time.sleep(600)"
WELL = "answer(result=HANDSHAKE)\nsys.stdin.read()"
HANGING_CHILD = f"subprocess.Popen([sys.executable, '-c', 'import time; {HANG}'])"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(source: str, **settings: str) -> StdioProgram:
    return StdioProgram(sys.executable, ("-c", PRELUDE + source), environ={**os.environ, **settings})


@asynccontextmanager
async def probed(program: StdioProgram | None, limits: HealthLimits = PATIENT) -> AsyncGenerator[ProbeResult]:
    """What a probe finds; when the block ends, everything it started is gone."""
    before = snapshot()
    async with httpx.AsyncClient() as client, TaskOwner() as tasks:
        yield await probe(Downstream("local", None, program=program, transport="stdio"), client, tasks, limits)
        await asyncio.wait_for(tasks.wait_until_idle(), 20)
    await assert_nothing_left(before)


async def error_of(program: StdioProgram | None, limits: HealthLimits = PATIENT) -> str | None:
    async with probed(program, limits) as result:
        return result.error


async def test_a_program_of_the_modern_era_alone_is_asked_to_discover() -> None:
    source = (
        'assert answer(error={"code": -32601}) == "initialize"\nassert answer(result=DISCOVERED) == "server/discover"'
    )
    async with probed(python(source)) as result:
        assert (result.error, result.protocol) == (None, "2026-07-28")


async def test_what_a_program_prints_besides_is_passed_over() -> None:
    noise = 'print("Welcome!"); print("{}"); print("[1]"); print(json.dumps({"jsonrpc": "2.0", "method": "x"}))\n'
    assert await error_of(python(noise + WELL)) is None


async def test_a_program_runs_where_and_with_what_it_is_configured(folder: Path) -> None:
    (folder / "place").mkdir()
    program = python("note(f'{os.getcwd()} {os.environ[\"TOKEN\"]}')\n" + WELL, TOKEN="hunter2")
    here = StdioProgram(program.command, program.arguments, program.environ, str(folder / "place"))
    assert await error_of(here) is None
    assert (folder / "place" / "notes").read_text() == f"{folder / 'place'} hunter2\n"
    assert "hunter2" not in repr(here)


async def test_no_shell_reads_the_arguments(folder: Path) -> None:
    assert await error_of(StdioProgram("echo hello; touch made", environ=os.environ)) is not None
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("sys.exit(3)", "its process ended with code 3"),
        ("raise ValueError('hunter2')", "its process ended with code 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "its process ended with code -9"),
        ("answer(error={})\nanswer(error={})", "not an MCP answer"),
        ("answer(error={})", "its process ended with code 0"),
        ("sys.stdout.write('x' * 5 * 2**20); sys.stdout.flush(); " + HANG, "not an MCP answer"),
    ],
)
async def test_a_program_that_does_not_answer_is_told(source: str, says: str) -> None:
    assert await error_of(python(source)) == says


@pytest.mark.parametrize("source", [HANG, f"sys.stdin.close(); {HANG}", f"os.close(1); {HANG}", f"print('{{'); {HANG}"])
async def test_a_program_that_hangs_costs_the_time_of_one_probe(source: str) -> None:
    limits = HealthLimits(probe_seconds=0.3, leave_seconds=0.1)
    assert await error_of(python(source), limits) == "started, but no answer within 0.3 s"


async def test_a_server_without_a_command_is_told() -> None:
    assert await error_of(None) == "no command is configured"


async def test_a_command_that_is_no_program_is_told(folder: Path) -> None:
    (folder / "plain").write_text("text")
    assert await error_of(StdioProgram("./plain")) == "command './plain' may not be run"
    (folder / "plain").chmod(0o755)
    assert await error_of(StdioProgram("./plain")) == "command './plain' cannot be started: Exec format error"
    assert await error_of(StdioProgram("a\0b")) == "command 'a\0b' cannot be started: it is malformed"


async def test_a_working_directory_that_is_not_there_is_told(folder: Path) -> None:
    gone = str(folder / "gone")
    program = StdioProgram(sys.executable, directory=gone)
    assert await error_of(program) == f"its working directory '{gone}' is not there"


@pytest.mark.parametrize(
    "stubborn",
    [
        "note(os.getpid())\n" + WELL,
        "note(os.getpid())\nanswer(result=HANDSHAKE)\n" + HANG,
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nnote(os.getpid())\nanswer(result=HANDSHAKE)\n{HANG}",
        f"note({HANGING_CHILD}.pid)\n" + WELL,
        f"note({HANGING_CHILD}.pid)\nanswer(result=HANDSHAKE)",
        "note(os.getpid())\nanswer(result=HANDSHAKE)\nwhile True: print('x' * 1000)",
    ],
    ids=["polite", "deaf", "stubborn", "parent", "parent that leaves", "talkative"],
)
async def test_nothing_that_was_started_outlives_the_probe(stubborn: str, folder: Path) -> None:
    assert await error_of(python(stubborn), FORCEFUL) is None
    started = int((folder / "notes").read_text())
    await eventually(lambda: not is_running(started), what="the program gone")


async def test_an_asker_who_goes_away_leaves_no_program_behind(folder: Path) -> None:
    before = snapshot()
    async with httpx.AsyncClient() as client, TaskOwner() as tasks:
        local = Downstream("local", None, program=python("note(os.getpid())\n" + HANG), transport="stdio")
        asking = asyncio.create_task(probe(local, client, tasks, FORCEFUL))
        await eventually(lambda: (folder / "notes").exists() and (folder / "notes").read_text(), what="the start")
        await cancelled(asking)
    await assert_nothing_left(before)
    assert not is_running(int((folder / "notes").read_text()))
