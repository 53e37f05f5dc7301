"""The process of a command, before it is loaded: signals that come early, and standard streams that are closed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.support.commands import READY_SECONDS, started
from tests.support.gateway import Agent, write_project
from tests.support.waiting import eventually

HANGS_UP_EARLY = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class HangUp(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pallas_gateway.cli.serve":
            os.kill(os.getpid(), signal.SIGHUP)

sys.meta_path.insert(0, HangUp())
from pallas_gateway.cli.app import {entry} as run
run()
"""
WITHOUT_STREAMS = """
import os, sys
for stream in {streams}:
    os.close(stream)
os.execv(sys.executable, [sys.executable, "-m", "pallas_gateway", *sys.argv[1:]])
"""


@pytest.mark.parametrize(
    ("entry", "arguments"),
    [("main", ["serve"]), pytest.param("pallas_main", ["--agent", "echo"], marks=pytest.mark.whole)],
)
def test_a_hangup_while_a_gateway_is_loaded_does_not_end_it(entry: str, arguments: list[str], tmp_path: Path) -> None:
    agents = {"echo": Agent(settings={"port": 0})} if entry == "main" else {"echo": Agent(settings={"port": 24299})}
    project = write_project(tmp_path / "project", agents)
    command = ("-c", HANGS_UP_EARLY.format(entry=entry))
    with started([*arguments, "--no-such-option"], project.path, command=command, is_real=True) as program:
        ran = program.end(READY_SECONDS)
    assert ran.code == 2
    assert "--no-such-option" in ran.err


def test_a_hangup_ends_the_other_commands(tmp_path: Path) -> None:
    with started(["schema"], tmp_path, command=("-c", HANGS_UP_EARLY.format(entry="main")), is_real=True) as program:
        assert program.end(READY_SECONDS).code == -signal.SIGHUP


@pytest.mark.parametrize(
    "streams",
    [pytest.param([1], marks=pytest.mark.whole), pytest.param([2], marks=pytest.mark.whole), [0, 1, 2]],
    ids=["stdout", "stderr", "all"],
)
async def test_a_gateway_without_standard_streams_serves(streams: list[int], tmp_path: Path) -> None:
    project, log = write_project(tmp_path / "project", {"echo": Agent()}), tmp_path / "log"
    command = ("-c", WITHOUT_STREAMS.format(streams=streams))
    environ = {"PALLAS_LOG_FILE": str(log)}
    with started(["serve"], project.path, command=command, environ=environ, is_real=True) as program:
        await eventually(lambda: log.exists() and '"agent ready"' in log.read_text(), READY_SECONDS, what="an agent")
        [running] = [line for line in log.read_text().splitlines() if "Running on" in line]
        url = json.loads(running)["message"].split()[2]
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"{url}/livez")).json() == {"status": "alive"}
        program.signal(signal.SIGTERM)
        assert program.end().code == 0


def test_a_gateway_whose_reader_is_gone_serves_and_ends_with_0(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", {"echo": Agent()})
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pallas_gateway", "serve"]
    environ = {**os.environ, "PALLAS_LOG_FILE": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command,
        cwd=project.path,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(writing)
        assert process.stderr is not None
        try:
            said = next(line for line in process.stderr if "announcement not printed" in line)
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
    assert "Broken pipe" in said


def test_a_database_of_a_newer_gateway_ends_serve_with_the_code_of_bad_configuration(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "threads.db")) as database:
        database.execute("CREATE TABLE pallas_threads_version AS SELECT '9999' AS version_num")
        database.commit()
    gateway = {"database": f"sqlite:///{tmp_path}/threads.db"}
    project = write_project(tmp_path / "project", {"echo": Agent()}, gateway=gateway)
    with started(["serve"], project.path) as program:
        ran = program.end(READY_SECONDS)
    assert (ran.code, ran.out) == (2, "")  # with which systemd does not start it again
    assert "update this one" in ran.err.splitlines()[-1]


@pytest.mark.parametrize(("asked", "code"), [pytest.param("schema", 0, marks=pytest.mark.whole), ("check", 2)])
def test_a_command_without_standard_streams_has_its_exit_code(asked: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text("nonsense: true\n")
    command = ("-c", WITHOUT_STREAMS.format(streams=[0, 1, 2]))
    with started([asked], tmp_path, command=command, is_real=True) as program:
        assert program.end(READY_SECONDS).code == code
