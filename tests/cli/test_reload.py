"""Reloading from the command line: SIGHUP, `serve --reload`, and what both print."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.calling import ask
from tests.support.commands import Program, started
from tests.support.gateway import Agent, module_source, write_project
from tests.support.scripted_llm import LlmRequest, Turn, hang, say, scripted_llm
from tests.support.waiting import Gate

RELOADED, NOT_RELOADED = "configuration reloaded", "configuration not reloaded"


def titles(base_url: str) -> list[str]:
    servers = httpx.get(f"{base_url}/.well-known/mcp/server.json").json()["servers"]
    return [entry["server"]["title"] for entry in servers]


def end(program: Program) -> None:
    program.signal(signal.SIGTERM)
    assert program.end().code == 0


def test_sighup_reloads_and_a_broken_file_changes_nothing_and_is_told_by_line(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", {"echo": Agent()})
    with started(["serve"], project.path) as program:
        program.wait_for("Try:")
        project.edit(lambda document: document["agents"]["echo"].update(title="Renamed"))
        program.signal(signal.SIGHUP)
        program.wait_for(RELOADED)
        assert titles(program.url) == ["Renamed"]

        good = (project.path / "agents.yaml").read_text()
        (project.path / "agents.yaml").write_text(good + "agnets: {}\n")
        program.signal(signal.SIGHUP)
        program.wait_for(NOT_RELOADED)
        line = 1 + good.count("\n")
        program.wait_for(f"agents.yaml:{line}: agnets: unknown key (did you mean 'agents'?)")
        assert titles(program.url) == ["Renamed"]
        end(program)


BAD = {"not UTF-8": b"name: \xff\xfe", "empty": b"", "a list": b"- agents"}


def test_files_of_every_kind_of_wrong_are_told_and_the_gateway_serves_on(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", {"echo": Agent()})
    path = project.path / "agents.yaml"
    good = path.read_bytes()
    with started(["serve"], project.path) as program:
        program.wait_for("Try:")
        for content in BAD.values():
            path.write_bytes(content)
            reload_and_wait(program, NOT_RELOADED)
        path.unlink()
        reload_and_wait(program, NOT_RELOADED)
        path.mkdir()
        reload_and_wait(program, NOT_RELOADED)
        path.rmdir()
        path.write_bytes(good)
        (project.path / ".env").write_bytes(b"A=\xff")
        reload_and_wait(program, NOT_RELOADED)
        (project.path / ".env").unlink()
        (project.path / "fastagent.secrets.yaml").write_text("generic: {api_key: another}")
        reload_and_wait(program, RELOADED)
        assert titles(program.url) == ["Echo"]
        end(program)
        assert "Traceback" not in program.err
        assert "nobody foresaw" not in program.err


def reload_and_wait(program: Program, said: str) -> None:
    before = program.err.count(said)
    program.signal(signal.SIGHUP)
    program.wait_until(lambda: program.err.count(said) > before, said)


def test_serve_with_reload_notices_an_edit_and_not_its_own_log(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", {"echo": Agent()})
    log = project.path / "pallas.log"
    with started(["serve", "--reload"], project.path, environ={"PALLAS_LOG_FILE": str(log)}) as program:
        program.wait_for("Try:")
        project.write_module("echo", "raise ValueError('half an edit')")
        program.wait_for("agent not replaced")
        project.write_module("echo", module_source("echo", Agent()))
        program.wait_for(RELOADED)
        end(program)
        assert program.err.count("agent not replaced") == 1


@pytest.mark.parametrize("arguments", [[], ["--reload"]], ids=["SIGHUP", "SIGHUP with --reload"])
async def test_sighup_leaves_a_running_call_to_its_version(arguments: list[str], tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        system = request.messages[0]["content"]
        return hang(gate, say(f"{system}")) if request.last_user_text == "wait" else say(f"{system}")

    async with scripted_llm(script) as llm:
        project = write_project(tmp_path / "project", {"slow": Agent()}, llm_url=llm.base_url)
        with started(["serve", *arguments], project.path) as program:
            await asyncio.to_thread(program.wait_for, "Try:")
            url = f"{program.url.replace('localhost', '127.0.0.1')}/agents/slow/mcp"
            running = asyncio.create_task(ask(url, "wait"))
            await gate.wait_for_entered(timeout_seconds=20)
            project.write_module("slow", module_source("slow", Agent()).replace("You are", "You became"))
            program.signal(signal.SIGHUP)
            await asyncio.to_thread(program.wait_for, RELOADED)
            assert "You became slow" in (await ask(url, "new")).text
            gate.open()
            assert "You are slow" in (await running).text
            await asyncio.to_thread(end, program)


@contextmanager
def service_manager(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(20)
        receiver.bind(str(path))
        yield receiver


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is there only")
def test_systemd_is_told_of_a_reload(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", {"echo": Agent()})
    address = tmp_path / "notify"
    with (
        service_manager(address) as manager,
        started(["serve"], project.path, environ={"NOTIFY_SOCKET": str(address)}) as program,
    ):
        program.wait_for("Try:")
        assert b"READY=1" in manager.recv(4096)
        program.signal(signal.SIGHUP)
        told = manager.recv(4096).decode().splitlines()
        while "RELOADING=1" not in told:  # the status may have come before
            told = manager.recv(4096).decode().splitlines()
        assert [line.partition("=")[0] for line in told] == ["RELOADING", "MONOTONIC_USEC"]
        assert int(told[1].partition("=")[2]) > 0
        assert b"READY=1" in manager.recv(4096)
        end(program)


@pytest.mark.skipif(os.getuid() == 0 or sys.platform != "linux", reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", {"echo": Agent()})
    with started(["serve"], project.path) as program:
        program.wait_for("Try:")
        (project.path / "agents.yaml").chmod(0)
        reload_and_wait(program, NOT_RELOADED)
        program.wait_for("cannot be read")
        end(program)
