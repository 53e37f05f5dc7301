"""Fault drill: the log file of a gateway process cannot be written, and it serves on."""

import json
from pathlib import Path

from tests.support.commands import Command, Program, started
from tests.support.gateway import Agent, write_project

TROUBLE = "ERROR log file cannot be written"
ROOM_BYTES = 2000
LITTLE_ROOM = f"""
import resource
from pallas_gateway.cli.app import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({ROOM_BYTES}, resource.RLIM_INFINITY))
main()
"""


def answers(program: Program, run: Command) -> bool:
    program.wait_for("Try:")
    return run("call", "echo", "hello", "--url", program.url.replace("localhost", "127.0.0.1")).out == "hello\n"


def test_a_full_disk_is_said_once_and_a_gateway_serves_on(run: Command, folder: Path) -> None:
    project = write_project(folder / "project", {"echo": Agent()})
    with started(["serve"], project.path, environ={"PALLAS_LOG_FILE": "/dev/full"}) as program:
        assert [answers(program, run) for _ in range(2)] == [True, True]
        program.wait_for("error=No space left on device")
        assert program.err.count("log file") == program.err.count(TROUBLE) == 1


def test_a_disk_that_is_full_in_the_middle_of_a_line_is_survived_and_written_again(run: Command, folder: Path) -> None:
    project, log = write_project(folder / "project", {"echo": Agent()}), folder / "log"
    environ = {"PALLAS_LOG_FILE": str(log), "PYTHONDONTWRITEBYTECODE": "1"}  # no half-written .pyc
    with started(["serve"], project.path, command=("-c", LITTLE_ROOM), environ=environ, is_real=True) as program:
        assert any(answers(program, run) and log.stat().st_size == ROOM_BYTES for _ in range(20))
        program.wait_for(TROUBLE)
        assert program.err.count(TROUBLE) == 1
        assert 0 < log.stat().st_size <= ROOM_BYTES
        log.write_text("")  # an operator makes room
        assert answers(program, run)
        program.wait_for("WARNING log file written again")
    messages = [json.loads(line)["message"] for line in log.read_text().splitlines()]
    assert messages == ["call ended", "log file written again"]


def test_a_log_in_no_folder_is_said_once_and_written_when_there_is_one(run: Command, folder: Path) -> None:
    project, in_the_way = write_project(folder / "project", {"echo": Agent()}), folder / "logs"
    in_the_way.write_text("")  # root, who may run this, writes wherever there is a folder
    log = in_the_way / "log"
    with started(["serve"], project.path, environ={"PALLAS_LOG_FILE": str(log)}) as program:
        assert answers(program, run)
        program.wait_for(TROUBLE)
        assert program.err.count("log file") == program.err.count(TROUBLE) == 1
        in_the_way.unlink()
        assert answers(program, run)
        program.wait_for("WARNING log file written again")
    messages = [json.loads(line)["message"] for line in log.read_text().splitlines()]
    assert messages == ["call ended", "log file written again"]
