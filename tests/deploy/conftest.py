"""Fixtures of the tests of deploy/."""

from collections.abc import Generator

import pytest

from tests.e2e.conftest import limits, patience
from tests.support.commands import Program, started
from tests.support.gateway import Agent, write_project

__all__ = ["gateway", "limits", "patience"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    project = write_project(tmp_path_factory.mktemp("gateway") / "project", {"echo": Agent()})
    with started(["serve"], project.path) as program:
        program.wait_for("Try:")
        yield program
