"""Fixtures of the tests of commands: a running gateway, and this process put back as it was after each command."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from pallas_gateway.telemetry import redaction
from pallas_gateway.telemetry.logs import QUIET_LOGGERS
from tests.support.commands import Command, Program, started
from tests.support.gateway import Agent, write_project

AGENTS = {
    "echo": Agent(settings={"title": "Echo", "description": "Repeats what it is told."}),
    "tech_research": Agent(settings={"title": "Tech Research"}),
    "broken": Agent(source="raise ValueError('no key')\n"),
}


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    """`serve` with `AGENTS`, ready."""
    folder = tmp_path_factory.mktemp("gateway") / "project"
    write_project(folder, AGENTS)
    with started(["serve"], folder) as program:
        program.wait_for("Try:")
        yield program
        program.signal(signal.SIGTERM)
        program.end()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Command]:
    """Runs commands in this process; what they change in it (environment, import path, logging) is undone."""
    for name in ("PALLAS_AGENTS_CONFIG", "PALLAS_GATEWAY_URL", "PALLAS_BEARER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PALLAS_LOG_FILE", "")
    monkeypatch.setenv("COLUMNS", "200")
    environ, path, argv = dict(os.environ), list(sys.path), list(sys.argv)
    root = logging.getLogger()
    loggers = [root, *(logging.getLogger(name) for name in ("pallas", *QUIET_LOGGERS))]
    handlers, levels = list(root.handlers), [logger.level for logger in loggers]
    crash_hooks = sys.excepthook, threading.excepthook
    monkeypatch.setattr(redaction, "configured", redaction.KnownSecrets())
    root.handlers.clear()  # `serve` closes what it replaces, and these are pytest's
    yield Command(capsys)
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    sys.excepthook, threading.excepthook = crash_hooks
    logging.captureWarnings(capture=False)
    sys.path[:], sys.argv = path, argv
    os.environ.clear()
    os.environ.update(environ)


@pytest.fixture
def asking(run: Command, gateway: Program, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Commands that ask `gateway`."""
    monkeypatch.setenv("PALLAS_GATEWAY_URL", gateway.url)
    return run
