"""`serve --workers N`: the option, signals, and what the parent says; its workers are fakes but where noted."""

import json
import os
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pallas_gateway.cli import workers
from pallas_gateway.process.hypercorn_server import TlsError
from tests.support import fake_worker
from tests.support.commands import READY_SECONDS, Command, Program, started
from tests.support.configuration import load_deployment
from tests.support.gateway import Agent, write_project

WITH_FAKES = """
import sys
from pallas_gateway.cli import workers
workers.COMMAND = tuple(sys.argv.pop().split("|"))
from pallas_gateway.cli.app import main
main()
"""


@contextmanager
def fleet_of(folder: Path, *plans: list[str], **environ: str) -> Generator[Program]:
    """`serve` in a process of its own, with a fake for each of `plans`."""
    project = write_project(folder / "project", {"echo": Agent()})
    (folder / "plan.json").write_text(json.dumps(dict(enumerate(plans, start=1))))
    command = "|".join((sys.executable, str(Path(fake_worker.__file__)), str(folder)))
    arguments = ["serve", "--workers", str(len(plans)), command]
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), **environ}
    with started(arguments, project.path, command=("-c", WITH_FAKES), environ=variables) as program:
        yield program


def heard(folder: Path, number: int) -> list[str]:
    return (folder / f"heard-{number}").read_text().splitlines()


@pytest.mark.parametrize(
    ("value", "says"),
    [("0", "0 is not in the range x>=1"), ("-1", "-1 is not in the range x>=1"), ("abc", "'abc' is not a valid int")],
)
def test_a_number_of_workers_that_is_none_is_refused(value: str, says: str, run: Command, folder: Path) -> None:
    write_project(folder / "project", {"echo": Agent()})
    ran = run("serve", "--workers", value)
    assert ran.code == 2
    assert says in ran.err


def test_the_first_that_was_ready_speaks_for_all_and_a_signal_ends_all_with_0(tmp_path: Path) -> None:
    with fleet_of(tmp_path, ["serves"], ["serves"]) as program:
        program.wait_for("announced")
        program.signal(signal.SIGINT)
        ran = program.end()
    assert ran.code == 0
    assert sorted(ran.err.splitlines()) == ["1 stopped", "2 stopped"]
    assert ran.out in ("announced by 1\n", "announced by 2\n")


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    with fleet_of(tmp_path, ["serves"], ["hangs"], TMPDIR=str(tmp_path)) as program:
        program.wait_for("announced")
        program.signal(signal.SIGTERM)
        program.wait_for("1 stopped")
        program.signal(signal.SIGTERM)
        ran = program.end(5)  # the hanging one alone would take longer than a minute
    assert ran.code == 1
    assert list(tmp_path.glob("pallas-workers-*")) == []
    assert ran.err.endswith("workers killed by a second signal\n")


def test_workers_that_cannot_start_are_told_of_once(tmp_path: Path) -> None:
    with fleet_of(tmp_path, ["fails"], ["fails"]) as program:
        ran = program.end()
    assert ran.code == 1
    assert [line.partition(" could ")[2] for line in ran.err.splitlines()] == [f"not start: {fake_worker.FAILURE}"]


def test_a_real_worker_tells_why_it_cannot_start(tmp_path: Path) -> None:
    tls = {"certfile": "no.pem", "keyfile": "no.key"}
    project = write_project(tmp_path / "project", {"echo": Agent()}, gateway={"tls": tls})
    for name in tls.values():
        (project.path / name).write_text("no certificate")
    with started(["serve", "--workers", "2"], project.path) as program:
        ran = program.end(READY_SECONDS)
    assert (ran.code, ran.out) == (2, "")
    [line] = ran.err.splitlines()
    assert "could not start: gateway.tls: " in line


def test_a_port_that_is_taken_is_told_of_before_any_worker_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        project = write_project(tmp_path / "project", {"echo": Agent()}, gateway={"port": port})
        with started(["serve", "--workers", "2"], project.path) as program:
            ran = program.end()
    assert ran.code == 1
    assert ran.err.startswith(f"cannot listen on 127.0.0.1:{port}: ")


def test_a_hangup_has_the_workers_read_a_good_configuration_and_leaves_a_bad_one_alone(tmp_path: Path) -> None:
    with fleet_of(tmp_path, ["serves"], ["serves"]) as program:
        program.wait_for("announced")
        file = tmp_path / "project" / "agents.yaml"
        good = file.read_text()
        file.write_text(f"{good}nonsense: true\n")
        program.signal(signal.SIGHUP)
        program.wait_for("configuration rejected")
        program.wait_for("nonsense")
        file.write_text(good)
        program.signal(signal.SIGHUP)
        program.wait_for("1 heard SIGHUP")
        program.wait_for("2 heard SIGHUP")
        program.signal(signal.SIGTERM)
        program.end()
    for number in (1, 2):
        assert heard(tmp_path, number).count("SIGHUP") == heard(tmp_path, number).count("worker.not_reloaded") == 1


def test_a_certificate_that_cannot_be_used_is_given_to_no_worker(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"echo": Agent()}, gateway={"tls": {"certfile": "no.pem", "keyfile": "no.key"}})
    for name in ("no.pem", "no.key"):
        (project.path / name).write_text("no certificate")
    configuration = load_deployment(project.path / "agents.yaml", environ={})
    with pytest.raises(TlsError, match=r"gateway\.tls: "):
        workers._usable(configuration, configuration)


def test_a_worker_that_starts_is_given_what_the_parent_has_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAME_WITH_A_RELOAD", "yes")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    assert workers._environ()["CAME_WITH_A_RELOAD"] == "yes"
    assert "NOTIFY_SOCKET" not in workers._environ()


def test_systemd_hears_of_the_parent_alone(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(20)
        with fleet_of(tmp_path, ["serves"], ["serves"], NOTIFY_SOCKET=address, WATCHDOG_USEC="200000") as program:
            told = systemd.recv(4096).decode()
            while "READY=1" not in told:
                told = systemd.recv(4096).decode()
            while "WATCHDOG=1" not in told:
                told = systemd.recv(4096).decode()
            program.signal(signal.SIGTERM)
            while "STOPPING=1" not in told:
                told = systemd.recv(4096).decode()
            assert program.end().code == 0
    assert "NOTIFY_SOCKET" not in heard(tmp_path, 1)


def test_workers_end_when_their_parent_is_gone(tmp_path: Path) -> None:
    with fleet_of(tmp_path, ["serves"], ["serves"], TMPDIR=str(tmp_path)) as program:
        program.wait_for("announced")
        program.signal(signal.SIGKILL)
        ran = program.end()  # reads to the end of stderr, which the workers hold open
    assert sorted(ran.err.splitlines()) == ["1 stopped", "2 stopped"]
