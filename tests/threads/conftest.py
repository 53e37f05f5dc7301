"""Databases for the tests of threads: a new one for each test, of either kind."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.command_fixtures import folder, run
from tests.support.postgresql import PostgreSql, postgresql

__all__ = ["database_url", "folder", "run", "server"]


@pytest.fixture(scope="session")
def server() -> Generator[PostgreSql]:
    """One PostgreSQL server for all tests."""
    with postgresql() as running:
        yield running


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.needs("postgresql"), pytest.mark.whole])]
)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/threads.db"
    server: PostgreSql = request.getfixturevalue("server")
    return server.new_database()
