"""Fixtures of the tests of deploy/."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pallas_gateway.health import probe
from pallas_gateway.runtime import instances
from tests.cli.program import Program, started
from tests.support import clients
from tests.support.gateway import Agent, write_project

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture
def no_trust_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HTTP clients load an empty trust store: nothing here speaks TLS, and a real one costs each client 20 to 40 ms."""
    empty = tmp_path_factory.mktemp("no-certificates")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(empty))
    return empty


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long anything takes is not what is tried: everybody shares one process, and a busy machine is no failure."""
    for limit in ("ATTACH_SECONDS", "DISPOSE_SECONDS"):
        monkeypatch.setattr(instances, limit, 300)
    monkeypatch.setattr(probe, "PROBE_SECONDS", 60)
    monkeypatch.setattr(clients, "READ_SECONDS", 300)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    """`serve` with one agent, ready."""
    project = write_project(tmp_path_factory.mktemp("gateway") / "project", {"echo": Agent()})
    with started(["serve"], project.path) as program:
        program.wait_for("Try:")
        yield program
