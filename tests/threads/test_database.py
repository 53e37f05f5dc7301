"""Opening a database: migrated once, waited for while it is not there, refused when it is newer."""

from __future__ import annotations

import asyncio
import logging
import socket
import sqlite3
from contextlib import closing, suppress
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from prometheus_client import CollectorRegistry
from sqlalchemy import event, text

from pallas_gateway.core import gateway
from pallas_gateway.core.long_calls import rows
from pallas_gateway.identity.secret import Secret
from pallas_gateway.shared.database import connections as module
from pallas_gateway.shared.database.connections import Database
from pallas_gateway.shared.database.errors import DatabaseBusyError, DatabaseSchemaError, DatabaseUnavailableError
from pallas_gateway.shared.database.migrating import VERSION_TABLE
from pallas_gateway.shared.database.tables import METADATA
from pallas_gateway.telemetry.metrics import Metrics
from tests.support.gateway import Agent, running, write_project
from tests.support.stored_threads import Stored, listed, services, task_of
from tests.support.waiting import Gate, eventually

if TYPE_CHECKING:
    from prometheus_client import Gauge
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.shared.database.connections import Share
    from tests.support.postgresql import PostgreSql

PASSWORD = "correct-horse-battery"


def services_at(url: str, folder: Path = Path("/"), *, up: Gauge | None = None, **limits: Any) -> Stored:
    return services(url, 30, folder=folder, up=up, **limits)


async def test_migrations_make_exactly_the_tables_that_are_declared(database_url: str) -> None:
    async with services_at(database_url):
        pass
    database = Database(Secret(database_url), Path("/"))
    differences = await database.read(lambda connection: connection.run_sync(_differences))
    await database.close()
    assert differences == []


def _differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
    return list(compare_metadata(context, METADATA))


async def test_writers_of_one_process_follow_each_other_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    order: list[int] = []
    gate = Gate()
    async with services_at(f"sqlite:///{tmp_path}/threads.db") as stored:
        database = stored.threads.store.database

        async def held(_: AsyncConnection) -> None:
            await gate.enter()

        async def written(number: int) -> None:
            async def work(_: AsyncConnection) -> None:
                order.append(number)

            await database.write(work)

        first = asyncio.create_task(database.write(held))
        await gate.wait_for_entered(1)
        others = [asyncio.create_task(written(number)) for number in range(30)]
        await asyncio.sleep(0)
        gate.open()
        await asyncio.gather(first, *others)
    assert order == [*range(30)]


async def test_what_waits_too_long_fails_alone_and_other_shares_go_on(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    async def held(_: AsyncConnection) -> None:
        await gate.enter()

    renamed = text("UPDATE pallas_threads SET title = 'new'")
    async with services_at(database_url, try_again_seconds=3600) as stored:
        thread = await stored.threads.store.create("me", "solo")
        database = stored.database.connections
        holding = [asyncio.create_task(database.read(held)) for _ in range(module.SHARES["threads"])]
        await gate.wait_for_entered(len(holding))
        for _ in range(2):
            with pytest.raises(DatabaseBusyError):
                await database.write(lambda sql: sql.execute(renamed), seconds=0)
        assert database.is_up
        assert database.is_late
        others: tuple[Share, ...] = ("calls", "services", "long")
        for share in others:
            await database.read(lambda sql: sql.execute(text("SELECT 1")), share=share)
        await database.try_out()
        assert not database.is_late
        gate.open()
        await asyncio.gather(*holding)
        assert (await stored.threads.store.find(thread.id, "me")).title is None
    assert [one.message for one in caplog.records if one.name == "pallas.threads"] == ["threads database late"]


async def test_a_transaction_that_breaks_a_rule_of_a_table_fails_alone(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with services_at(database_url, try_again_seconds=3600) as stored:
        with pytest.raises(DatabaseBusyError):  # its thread was deleted with its agent
            await stored.database.connections.write(lambda sql: rows.add(sql, task_of("0" * 32), "process"))
        assert stored.database.connections.is_up
        assert (await stored.threads.store.create("me", "solo")).agent == "solo"
    [record] = [one for one in caplog.records if one.name == "pallas.threads"]
    assert record.message == "transaction refused"
    assert record.__dict__["why"].startswith("IntegrityError")


@pytest.mark.needs("postgresql")
@pytest.mark.parametrize(
    ("state", "is_late", "is_up"),
    [
        ("57014", True, True),  # statement_timeout
        ("55P03", True, True),  # lock_timeout
        ("22003", False, True),
        ("23514", False, True),
        ("40P01", False, True),
        ("53100", False, False),  # a full disk
    ],
)
async def test_errors_of_one_statement_are_no_outage(
    server: PostgreSql, state: str, *, is_late: bool, is_up: bool
) -> None:
    async with services_at(server.new_database(), try_again_seconds=3600) as stored:
        database = stored.database.connections
        with pytest.raises(DatabaseBusyError if is_up else DatabaseUnavailableError):
            await database.write(lambda sql: sql.execute(text(f"DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$")))
        assert (database.is_late, database.is_up) == (is_late, is_up)


@pytest.mark.needs("postgresql")
async def test_a_database_that_stands_still_is_unavailable_once_a_try_takes_too_long(server: PostgreSql) -> None:
    limits: dict[str, Any] = {"try_again_seconds": 0.05, "try_seconds": 0.05}
    async with services_at(server.new_database(), **limits) as stored:
        database = stored.database.connections
        with server.hanging():
            with pytest.raises(DatabaseBusyError):
                await database.write(lambda sql: sql.execute(text("SELECT 1")), seconds=0.05)
            await eventually(lambda: not database.is_up, what="the outage")
        await eventually(lambda: database.is_up, 60, what="the end of the outage")


async def test_any_number_may_open_an_empty_database_at_once(database_url: str) -> None:
    # Each waits for the others, on a machine that may be busy.
    replicas = [services_at(database_url, first_try_seconds=60, busy_seconds=60) for _ in range(8)]
    opened = await asyncio.gather(*(one.__aenter__() for one in replicas))
    try:
        made = await asyncio.gather(*(stored.threads.store.create("me", "solo") for stored in opened))
    finally:
        await asyncio.gather(*(one.__aexit__() for one in replicas))
    assert len({thread.id for thread in made}) == 8


async def test_a_new_file_that_another_process_changes_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "threads.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        stored = services_at(f"sqlite:///{file}", first_try_seconds=60, busy_seconds=60)
        opening = asyncio.create_task(stored.__aenter__())
        await eventually(lambda: len(open_files(file)) > 1, what="a second connection")
        other.execute("COMMIT")
    await opening
    try:
        assert (await stored.threads.store.create("me", "solo")).agent == "solo"
    finally:
        await stored.__aexit__()


async def test_a_new_file_that_another_process_holds_too_long_is_unavailable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "threads.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with services_at(f"sqlite:///{file}", busy_seconds=0.05) as stored:
            with pytest.raises(DatabaseUnavailableError):
                await stored.threads.store.create("me", "solo")
    [record] = [one for one in caplog.records if one.message == "threads database unavailable"]
    assert record.__dict__["why"] == "OperationalError: database is locked"


def open_files(file: Path) -> list[Path]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            if descriptor.readlink() == file:
                found.append(descriptor)
    return found


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
        tmp_path / "project", {"echo": Agent()}, gateway={"database": f"sqlite:///{tmp_path}/threads.db"}
    )

    with pytest.raises(DatabaseSchemaError):
        async with running(project):
            pass
    assert [client.is_closed for client in opened] == [True]


async def test_a_relative_path_is_below_the_folder_of_the_configuration(tmp_path: Path) -> None:
    async with services_at("sqlite:///my%20threads.db", tmp_path):
        pass
    assert (tmp_path / "my threads.db").exists()


async def test_what_was_said_is_readable_by_the_gateways_user_alone(tmp_path: Path) -> None:
    async with services_at("sqlite:///threads.db", tmp_path) as stored:
        await stored.threads.store.create("me", "solo")
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes["threads.db"] == 0o600
    assert set(modes.values()) == {0o600}


@pytest.mark.needs("postgresql")
async def test_a_database_that_is_not_there_is_said_once_waited_for_and_used_when_it_comes(
    server: PostgreSql, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pallas.threads")
    url = server.new_database()
    server.stop()
    try:
        async with services_at(url, try_again_seconds=0.05) as stored:
            with pytest.raises(DatabaseUnavailableError, match="try again in a moment"):
                await stored.threads.store.file_agents_of("me")
            server.start()
            await eventually(lambda: stored.database.connections.is_available, what="the database")
            thread = await stored.threads.store.create("me", "solo")

            server.stop()
            with pytest.raises(DatabaseUnavailableError):
                await stored.threads.store.find(thread.id, "me")
            server.start()
            assert (await stored.threads.store.find(thread.id, "me")).id == thread.id
            await eventually(lambda: stored.database.connections.is_up, what="the end of the outage")
    finally:
        if not server.is_up:
            server.start()
    assert [record.message for record in caplog.records if record.name == "pallas.threads"] == [
        "threads database unavailable",
        "threads database available again",
        "threads database unavailable",
        "threads database available again",
    ]


@pytest.mark.needs("postgresql")
async def test_a_database_that_reads_and_cannot_write_is_said_once_and_used_when_it_writes(
    server: PostgreSql, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pallas.threads")
    metrics = Metrics(CollectorRegistry())
    url = server.new_database()
    async with services_at(url, try_again_seconds=0.05, up=metrics.threads_database_up) as stored:
        thread = await stored.threads.store.create("me", "solo")
        shown = [up_of(metrics)]
        await eventually(
            lambda: isfinite(stored.database._cleaned_at), what="the first upkeep, whose end is not tested"
        )
        await _switch(server, url, "SET default_transaction_read_only = on")
        for _ in range(3):
            with pytest.raises(DatabaseUnavailableError):
                await stored.threads.store.create("me", "solo")
            assert (await stored.threads.store.find(thread.id, "me")).id == thread.id
        shown.append(up_of(metrics))
        await _switch(server, url, "RESET default_transaction_read_only")
        await eventually(lambda: stored.database.connections.is_up, what="the end of the outage")
        shown.append(up_of(metrics))
        assert [one.id for one in await listed(stored.threads, "me", "solo", limit=9)] == [thread.id]
        assert await listed(stored.threads, "", "", limit=9) == []
    said = [record for record in caplog.records if record.name == "pallas.threads"]
    assert [one.message for one in said] == ["threads database unavailable", "threads database available again"]
    assert "read-only transaction" in said[0].__dict__["why"]
    assert shown == [1, 0, 1]


async def _switch(server: PostgreSql, url: str, change: str) -> None:
    """Change a database for new connections, and end the present ones."""
    name = url.partition("@/")[2].partition("?")[0]
    server.run(f"ALTER DATABASE {name} {change}", database="postgres")
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    server.run(f"SELECT pg_terminate_backend(pid, 5000) {others}", database=name)


def up_of(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("pallas_threads_database_up", {"kind": "postgresql"})


async def test_a_full_disk_is_an_outage_until_a_message_fits_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pallas.threads")
    pages = "PRAGMA max_page_count"

    def limited(connection: Any, *_: object) -> None:
        connection.execute(f"{pages} = {limit}")

    limit = 1 << 30
    async with services_at("sqlite:///threads.db", tmp_path, try_again_seconds=0.05) as stored:
        engine = stored.database.connections._engine
        event.listen(engine.sync_engine, "checkout", limited)
        thread = await stored.threads.store.create("me", "solo")
        with closing(sqlite3.connect(tmp_path / "threads.db")) as other:
            other.execute("VACUUM")  # pages that migrations have freed would hold what is written to try it out
        limit = 1  # SQLite keeps to the present size
        for _ in range(3):
            with pytest.raises(DatabaseUnavailableError):
                await stored.threads.store.create("me", "solo", "x" * 1_000_000)
            await stored.threads.changes.rename(thread.id, "small")
        assert not stored.database.connections.is_up
        limit = 1 << 30
        await eventually(lambda: stored.database.connections.is_up, what="the end of the outage")
    said = [record for record in caplog.records if record.name == "pallas.threads"]
    assert [one.message for one in said] == ["threads database unavailable", "threads database available again"]
    assert "database or disk is full" in said[0].__dict__["why"]


async def test_a_file_that_is_deleted_or_replaced_is_not_used_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pallas.threads")
    file, aside = tmp_path / "threads.db", tmp_path / "aside.db"
    async with services_at("sqlite:///threads.db", tmp_path, try_again_seconds=3600) as stored:
        thread = await stored.threads.store.create("me", "solo")
        file.rename(aside)
        for _ in range(2):
            with pytest.raises(DatabaseUnavailableError):
                await stored.threads.store.create("me", "solo")
        assert not file.exists()
        file.write_bytes(aside.read_bytes())
        with pytest.raises(DatabaseUnavailableError):
            await stored.database.connections.try_out()
        aside.rename(file)
        await stored.database.connections.try_out()
        assert (await stored.threads.store.find(thread.id, "me")).id == thread.id
    said = [record for record in caplog.records if record.name == "pallas.threads"]
    assert [one.message for one in said] == ["threads database unavailable", "threads database available again"]
    assert "was deleted or replaced; stop the gateway" in said[0].__dict__["why"]


@pytest.mark.needs("postgresql")
async def test_at_the_roles_connection_limit_requests_wait_for_connections_of_the_pool(server: PostgreSql) -> None:
    url = server.new_database()
    name = url.partition("@/")[2].partition("?")[0]
    server.run(f"CREATE ROLE few_{name} LOGIN CONNECTION LIMIT 2", database="postgres")
    server.run(f"ALTER DATABASE {name} OWNER TO few_{name}", database="postgres")
    server.run(f"GRANT ALL ON SCHEMA public TO few_{name}", database=name)
    gate = Gate()

    async def held(sql: AsyncConnection) -> None:
        await sql.execute(text("SELECT 1"))
        await gate.enter()

    async with services_at(f"postgresql://few_{name}@/{name}?host={server.folder}") as stored:
        holding = [asyncio.create_task(stored.database.connections.read(held)) for _ in range(2)]
        await gate.wait_for_entered(2)
        waiting = [asyncio.create_task(stored.threads.store.create("me", "solo")) for _ in range(20)]
        await asyncio.sleep(0)
        gate.open()
        made = await asyncio.gather(*waiting)
        await asyncio.gather(*holding)
        assert stored.database.connections.is_up
    assert len({thread.id for thread in made}) == 20


@pytest.mark.needs("postgresql")
async def test_a_transaction_of_a_process_that_stands_still_is_ended_by_the_server(
    server: PostgreSql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 1)
    gate = Gate()

    async def held(sql: AsyncConnection) -> None:
        await sql.execute(text("LOCK TABLE pallas_threads"))
        await gate.enter()
        await sql.execute(text("SELECT 1"))

    url = server.new_database()
    async with services_at(url) as lost, services_at(url) as other:
        holding = asyncio.create_task(lost.database.connections.write(held, seconds=60))
        await gate.wait_for_entered()
        await other.threads.store.create("me", "solo")
        gate.open()
        with pytest.raises(DatabaseUnavailableError):
            await holding


async def test_nothing_that_is_said_of_a_database_holds_its_password(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    async with services_at(f"postgresql://gateway:{PASSWORD}@127.0.0.1:{port}/pallas?sslmode=disable") as stored:
        with pytest.raises(DatabaseUnavailableError) as refused:
            await stored.threads.store.file_agents_of("me")
    [record] = [record for record in caplog.records if record.name == "pallas.threads"]
    assert "Connect" in str(record.__dict__["why"])
    assert PASSWORD not in f"{[vars(one) for one in caplog.records]}{refused.value!r}{refused.value.__context__!r}"
    assert PASSWORD not in repr(vars(stored))


async def test_a_database_that_cannot_be_made_is_said_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with services_at("sqlite:///no/such/folder/threads.db", tmp_path):
        pass
    [record] = [record for record in caplog.records if record.name == "pallas.threads"]
    assert record.__dict__["why"] == f"FileNotFoundError: no folder {tmp_path}/no/such/folder"
