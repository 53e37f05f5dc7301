"""`python -m benchmarks`: what it refuses, and how it ends when it is told to. Nothing is measured."""

import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from tests.support.commands import started

WITH_A_PART_THAT_NEVER_ENDS = """
import asyncio
from contextlib import asynccontextmanager
from benchmarks import __main__ as command, machine
from benchmarks.processes import python, running

SERVER = "import socket; server = socket.create_server(('127.0.0.1', 0)); " \\
    "print(server.getsockname()[1], flush=True); [server.accept() for _ in iter(int, 1)]"

@asynccontextmanager
async def bench(plan, folder, only):
    async with running(python("-c", SERVER), folder=folder, name="server") as server:
        yield server

async def measure(server):
    print("server", server.pid, flush=True)
    await asyncio.Event().wait()

command.bench = bench
command._PARTS["soak"] = measure
machine.describe = dict
command.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_servers_and_leaves_no_folder(number: signal.Signals, tmp_path: Path) -> None:
    environ = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    with started(["soak"], tmp_path, command=("-c", WITH_A_PART_THAT_NEVER_ENDS), environ=environ) as program:
        program.wait_for("server ")
        assert list(tmp_path.iterdir()) != []
        program.signal(number)
        ran = program.end()

    assert ran.code == 130
    assert ran.err == "interrupted; nothing of this part was kept, earlier results stay\n"
    assert not Path("/proc", ran.out.split()[1]).exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("part", "scenario", "says"),
    [
        ("growth", "bare", "--only bare is no part of growth, choose from agents, "),
        ("full", "agents", "--only agents is no part of full, choose from calibration, one-client, passthrough, bare,"),
        ("soak", "bare", "--only bare is no part of soak, which has none"),
    ],
)
def test_scenario_of_another_part_is_refused(
    part: str, scenario: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.wanted([part, "--only", scenario])

    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command_line", "measured"),
    [
        ([], {"full": [], "growth": [], "providers": [], "console": [], "counts": []}),
        (["--short"], {"full": []}),
        (["soak"], {"soak": []}),
        (["--only", "providers", "--short"], {"providers": []}),
        (["--only", "fast-paths"], {"fast-paths": []}),
        (["--only", "console-list", "--only", "console"], {"console": ["console-list", "console"]}),
        (["--only", "workers", "--only", "providers"], {"full": ["workers"], "providers": []}),
    ],
)
def test_command_line_names_parts_and_scenarios(command_line: list[str], measured: dict[str, list[str]]) -> None:
    """A part without a list is measured whole, and takes the place of its earlier results."""
    assert command.measured(command.wanted(command_line)) == measured
