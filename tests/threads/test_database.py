"""Opening a database: migrated once, waited for while it is not there, refused when it is newer."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text

from pallas_gateway.hosting import gateway
from pallas_gateway.identity.secret import Secret
from pallas_gateway.limits import ThreadLimits
from pallas_gateway.threads.database import VERSION_TABLE, Database
from pallas_gateway.threads.records import ThreadsSchemaError, ThreadsUnavailableError
from pallas_gateway.threads.service import Threads
from pallas_gateway.threads.tables import METADATA
from tests.support.gateway import Agent, running, write_project
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tests.support.postgresql import PostgreSql

PASSWORD = "correct-horse-battery"


def threads_at(url: str, folder: Path = Path("/"), **limits: Any) -> Threads:
    return Threads(Secret(url), folder, lease_seconds=30, limits=ThreadLimits(**limits))


async def test_migrations_make_exactly_the_tables_that_are_declared(database_url: str) -> None:
    async with threads_at(database_url):
        pass
    database = Database(Secret(database_url), Path("/"))
    differences = await database.read(lambda connection: connection.run_sync(_differences))
    await database.close()
    assert differences == []


def _differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
    return list(compare_metadata(context, METADATA))


async def test_any_number_may_open_an_empty_database_at_once(database_url: str) -> None:
    # Each waits for the others, on a machine that may be busy.
    replicas = [threads_at(database_url, first_try_seconds=60, busy_seconds=60) for _ in range(8)]
    opened = await asyncio.gather(*(threads.__aenter__() for threads in replicas))
    try:
        made = await asyncio.gather(*(threads.store.create("me", "solo") for threads in opened))
    finally:
        await asyncio.gather(*(threads.__aexit__() for threads in replicas))
    assert len({thread.id for thread in made}) == 8


async def test_a_database_of_a_newer_gateway_is_refused_with_what_to_do(database_url: str) -> None:
    async with threads_at(database_url):
        pass
    database = Database(Secret(database_url), Path("/"))
    newer = text("UPDATE pallas_threads_version SET version_num = '9999'")
    await database.write(lambda connection: connection.execute(newer))
    await database.close()

    with pytest.raises(ThreadsSchemaError, match=r"at version 9999, .* knows up to 0002.* update this one"):
        await threads_at(database_url).__aenter__()


async def test_a_gateway_that_cannot_use_its_database_closes_what_it_has_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(Secret("sqlite:///threads.db"), tmp_path)
    newer = text("CREATE TABLE pallas_threads_version AS SELECT '9999' AS version_num")
    await database.write(lambda connection: connection.execute(newer))
    await database.close()
    opened, make = list[httpx.AsyncClient](), gateway.http_client

    def noted() -> httpx.AsyncClient:
        opened.append(make())
        return opened[-1]

    monkeypatch.setattr(gateway, "http_client", noted)
    project = write_project(
        tmp_path / "project", {"echo": Agent()}, gateway={"threads": f"sqlite:///{tmp_path}/threads.db"}
    )

    with pytest.raises(ThreadsSchemaError):
        async with running(project):
            pass
    assert [client.is_closed for client in opened] == [True]


async def test_a_relative_path_is_below_the_folder_of_the_configuration(tmp_path: Path) -> None:
    async with threads_at("sqlite:///my%20threads.db", tmp_path):
        pass
    assert (tmp_path / "my threads.db").exists()


async def test_what_was_said_is_readable_by_the_gateways_user_alone(tmp_path: Path) -> None:
    async with threads_at("sqlite:///threads.db", tmp_path) as threads:
        await threads.store.create("me", "solo")
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes["threads.db"] == 0o600
    assert set(modes.values()) == {0o600}


async def test_a_database_that_is_not_there_is_said_once_waited_for_and_used_when_it_comes(
    server: PostgreSql, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pallas.threads")
    url = server.new_database()
    server.stop()
    try:
        async with threads_at(url, try_again_seconds=0.05) as threads:
            with pytest.raises(ThreadsUnavailableError, match="try again in a moment"):
                threads.store  # noqa: B018  reading it is what is refused
            server.start()
            await eventually(lambda: _is_open(threads), what="the database")
            thread = await threads.store.create("me", "solo")

            server.stop()
            with pytest.raises(ThreadsUnavailableError):
                await threads.store.find(thread.id, "me")
            server.start()
            assert (await threads.store.find(thread.id, "me")).id == thread.id
    finally:
        if not server.is_up:
            server.start()
    assert [record.message for record in caplog.records if record.name == "pallas.threads"] == [
        "threads database unavailable",
        "threads database available again",
        "threads database unavailable",
        "threads database available again",
    ]


def _is_open(threads: Threads) -> bool:
    try:
        return threads.store is not None
    except ThreadsUnavailableError:
        return False


async def test_nothing_that_is_said_of_a_database_holds_its_password(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    async with threads_at(f"postgresql://gateway:{PASSWORD}@127.0.0.1:{port}/pallas?sslmode=disable") as threads:
        with pytest.raises(ThreadsUnavailableError) as refused:
            threads.store  # noqa: B018
    [record] = [record for record in caplog.records if record.name == "pallas.threads"]
    assert "Connect" in str(record.__dict__["why"])
    assert PASSWORD not in f"{[vars(one) for one in caplog.records]}{refused.value!r}{refused.value.__context__!r}"
    assert PASSWORD not in repr(vars(threads))


async def test_a_database_that_cannot_be_made_is_said_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with threads_at("sqlite:///no/such/folder/threads.db", tmp_path):
        pass
    [record] = [record for record in caplog.records if record.name == "pallas.threads"]
    assert record.__dict__["why"] == f"FileNotFoundError: no folder {tmp_path}/no/such/folder"
