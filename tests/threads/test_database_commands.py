"""`pallas-gateway database status` and `upgrade`, on both kinds of database."""

import asyncio
import signal
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect, text

from pallas_gateway.cli.database import PENDING
from pallas_gateway.config.loading.loader import DATABASE_PACKAGES
from pallas_gateway.identity.secret import Secret
from pallas_gateway.shared.database.connections import Database
from pallas_gateway.shared.database.migrating import versions_of
from tests.support.commands import READY_SECONDS, Command, started
from tests.support.definers import SIMPLE, configured, editor
from tests.support.gateway import Agent, write_project
from tests.support.listener import reserved_port
from tests.support.older_tables import migrate_to, write_as_of_0_1_0
from tests.support.stored_threads import services, turns_of

REQUIRED = versions_of(None).required
STEPS = versions_of(None).pending
ID = "1" * 32


@pytest.fixture
def project(run: Command, folder: Path, database_url: str) -> Path:
    """A project in the working directory with a database of each kind."""
    write_project(folder, {"echo": Agent()}, gateway={"database": database_url})
    return folder


def older(database_url: str, folder: Path, version: str = "0011") -> None:
    asyncio.run(migrate_to(version, database_url, folder))
    asyncio.run(write_as_of_0_1_0(database_url, [ID], [("complete", "hello")]))


def execute(database_url: str, statement: str) -> None:
    async def executed() -> None:
        database = Database(Secret(database_url), Path("/"))
        await database.write(lambda sql: sql.execute(text(statement)))
        await database.close()

    asyncio.run(executed())


@pytest.mark.usefixtures("project")
def test_status_names_each_pending_step_and_upgrade_takes_them(run: Command, database_url: str, tmp_path: Path) -> None:
    older(database_url, tmp_path)

    ran = run("database", "status")
    assert ran.code == PENDING == 3
    assert "Tables:    version 0011" in ran.out
    assert f"Required:  version {REQUIRED}" in ran.out
    assert "  0012  Tasks: calls that go on after their connection, their worker or their replica has gone." in ran.out
    assert "Gateways of older releases that already run go on" in ran.out
    assert "Going back: restore a backup" in ran.out
    assert "0011  " not in ran.out

    document = run("database", "status", "--json").json
    assert (document["state"], document["version"], document["required"]) == ("pending", "0011", REQUIRED)
    assert [one["version"] for one in document["pending"]] == [one.version for one in STEPS if one.version > "0011"]
    assert all(one["olderReleasesGoOn"] for one in document["pending"])

    would = run("database", "upgrade", "--dry-run")
    assert (would.code, would.out.startswith("Would upgrade ")) == (0, True)
    assert run("database", "status", "--json").json["version"] == "0011"

    done = run("database", "upgrade")
    assert done.code == 0, done.err
    assert f"from version 0011 to {REQUIRED}:" in done.out
    again = run("database", "upgrade")
    assert (again.code, again.out.endswith(f" is up to date: version {REQUIRED}.\n")) == (0, True)
    status = run("database", "status", "--json")
    assert (status.code, status.json["state"], status.json["pending"]) == (0, "current", [])

    async def kept() -> tuple[list[str], int, int]:
        async with services(database_url, configuration=configured) as stored:
            questions = [turn.question.text for turn in await turns_of(stored.threads, ID)]
            number = await stored.definitions.number()
            return questions, number, (await stored.definitions.create("helper", SIMPLE, editor("ann"))).version

    assert asyncio.run(kept()) == (["one"], 0, 1)


@pytest.mark.usefixtures("project")
def test_an_empty_database_is_pending_and_status_makes_no_file(run: Command, database_url: str, tmp_path: Path) -> None:
    status = run("database", "status")
    assert status.code == PENDING
    assert "Tables:    none" in status.out
    assert not (tmp_path / "threads.db").exists()
    assert "from an empty database to" in run("database", "upgrade").out
    assert run("database", "status").code == 0
    assert database_url


@pytest.mark.usefixtures("project")
def test_tables_of_a_newer_release_are_named_and_left_alone(run: Command, database_url: str) -> None:
    run("database", "upgrade")
    execute(database_url, "UPDATE pallas_threads_version SET version_num = '9999'")

    for command in ("status", "upgrade"):
        ran = run("database", command)
        assert ran.code == 2
        assert "at version 9999" in ran.err
        assert "used by a newer gateway; update this one" in ran.err
    assert run("database", "status", "--json").json["state"] == "newer"


@pytest.mark.usefixtures("project")
def test_tables_from_before_0_1_0_are_not_taken_for_those_of_a_newer_release(run: Command, database_url: str) -> None:
    run("database", "upgrade")
    execute(database_url, "UPDATE pallas_threads_version SET version_num = '0006'")

    for command in ("status", "upgrade"):
        ran = run("database", command)
        assert (ran.code, ran.out) == (2, "")
        assert "version 0006 are older than those of release 0.1.0, which can upgrade them to 0011" in ran.err


@pytest.mark.usefixtures("project")
def test_check_online_tries_the_database_and_writes_nothing(run: Command, database_url: str, tmp_path: Path) -> None:
    def problems() -> list[str]:
        ran = run("check", "--online")
        found = [one for one in ran.err.splitlines() if "gateway.database" in one]
        assert ran.code == (2 if found else 0), ran.err
        return found

    assert problems() == []
    assert not (tmp_path / "threads.db").exists()
    older(database_url, tmp_path)
    assert problems() == []
    assert run("database", "status", "--json").json["version"] == "0011"

    settings = {"database": database_url, "upgrade_database": False}
    write_project(tmp_path, {"echo": Agent()}, gateway=settings)
    pending = f"gateway.database: the database's tables are at version 0011, this gateway requires {REQUIRED}, and "
    assert [pending in one for one in problems()] == [True]

    assert run("database", "upgrade").code == 0
    assert problems() == []
    execute(database_url, "UPDATE pallas_threads_version SET version_num = '9999'")
    assert ["are at version 9999" in one and one.startswith("agents.yaml:") for one in problems()] == [True]
    assert run("check").code == 0  # it asks nothing outside


def test_check_online_says_why_a_database_cannot_be_used(run: Command, folder: Path) -> None:
    with reserved_port() as port:
        for url, why in (
            (f"postgresql://me:correct-horse@127.0.0.1:{port}/pallas", f"@127.0.0.1:{port}/pallas cannot be used: "),
            ("sqlite:///not-there/threads.db", "cannot be used: no folder "),
        ):
            write_project(folder, {"echo": Agent()}, gateway={"database": url})
            ran = run("check", "--online")
            (problem,) = [one for one in ran.err.splitlines() if "cannot be used" in one]
            assert (ran.code, why in problem, "correct-horse" in ran.err) == (2, True, False), problem


@pytest.mark.usefixtures("project")
def test_two_upgrades_at_once_take_each_step_once(database_url: str, tmp_path: Path) -> None:
    older(database_url, tmp_path)

    def upgraded(_: int) -> str:
        with started(["database", "upgrade"], tmp_path) as program:
            ran = program.end(READY_SECONDS)
        assert ran.code == 0, ran.err
        return ran.out

    with ThreadPoolExecutor(2) as both:
        first, second = sorted(both.map(upgraded, range(2)), key=lambda out: "up to date" in out)
    assert "from version 0011" in first
    assert "is up to date" in second


@pytest.mark.usefixtures("project")
def test_a_gateway_that_must_not_upgrade_refuses_to_start_until_the_operator_has(
    database_url: str, tmp_path: Path
) -> None:
    older(database_url, tmp_path)
    config = tmp_path / "agents.yaml"
    config.write_text(config.read_text().replace("gateway:", "gateway:\n  upgrade_database: false", 1))

    with started(["serve"], tmp_path) as program:
        ran = program.end(READY_SECONDS)
    assert ran.code == 2
    assert f"tables are at version 0011, this gateway requires {REQUIRED}" in ran.err
    assert "run `pallas-gateway database upgrade`" in ran.err

    with started(["database", "upgrade"], tmp_path) as program:
        assert program.end(READY_SECONDS).code == 0
    with started(["serve"], tmp_path) as program:
        program.wait_for("Try:")
        program.signal(signal.SIGTERM)
        assert program.end().code == 0


def test_a_server_that_does_not_answer_is_named_without_the_password(run: Command, folder: Path) -> None:
    url = f"postgresql://user:s3cret-word@/name?host={folder}&password=other-word"
    write_project(folder, {"echo": Agent()}, gateway={"database": url})

    ran = run("database", "status", "--json")
    assert ran.code == 1
    assert ran.json == {
        "url": f"postgresql://user@/name?host={folder}", "kind": "postgresql", "state": "unavailable",
    }  # fmt: skip
    assert f"postgresql://user@/name?host={folder} cannot be used: FileNotFoundError" in ran.err
    assert "-word" not in ran.out + ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_file_that_is_no_database_is_named_with_the_reason(run: Command, folder: Path) -> None:
    write_project(folder, {"echo": Agent()}, gateway={"database": "sqlite:///threads.db"})
    (folder / "threads.db").write_text("no database" * 1000)
    before = (folder / "threads.db").read_bytes()
    for command in ("status", "upgrade"):
        ran = run("database", command)
        assert ran.code == 1
        assert f"sqlite:///{folder}/threads.db cannot be used: DatabaseError: file is not a database" in ran.err
    assert (folder / "threads.db").read_bytes() == before


def test_a_folder_that_is_missing_is_named(run: Command, folder: Path) -> None:
    write_project(folder, {"echo": Agent()}, gateway={"database": "sqlite:///missing/threads.db"})
    ran = run("database", "status")
    assert (ran.code, f"cannot be used: no folder {folder}/missing" in ran.err) == (1, True)


def test_a_project_without_a_database_says_so(run: Command, folder: Path) -> None:
    write_project(folder, {"echo": Agent()})
    ran = run("database", "status")
    assert (ran.code, "agents.yaml sets no gateway.database" in ran.err) == (2, True)


def test_without_the_extra_its_installation_is_named(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(folder, {"echo": Agent()}, gateway={"database": "sqlite:///threads.db"})
    for name in DATABASE_PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    ran = run("database", "status")
    assert (ran.code, "pip install 'pallas-gateway[database]'" in ran.err) == (2, True)


async def test_only_a_step_that_says_so_takes_something_from_older_releases(database_url: str, tmp_path: Path) -> None:
    """They write the columns that they know, so a new one must be optional, and none may go."""

    def tables(connection: Connection) -> dict[str, dict[str, Any]]:
        found = inspect(connection)
        return {name: {one["name"]: one for one in found.get_columns(name)} for name in found.get_table_names()}

    before: dict[str, dict[str, Any]] = {}
    for step in STEPS:
        await migrate_to(step.version, database_url, tmp_path / step.version)
        database = Database(Secret(database_url), tmp_path)
        after = await database.read(lambda sql: sql.run_sync(tables))
        await database.close()
        gone = [(name, key) for name, columns in before.items() for key in columns if key not in after.get(name, {})]
        required = [
            (name, key)
            for name, columns in before.items()
            for key, column in after.get(name, {}).items()
            if key not in columns and not column["nullable"] and column["default"] is None
        ]
        assert bool(gone or required) <= step.stops_older, (step, gone, required)
        before = after


def test_each_step_says_in_a_sentence_what_it_changes() -> None:
    assert [one.version for one in STEPS if not one.changes.endswith(".") or "\n" in one.changes] == []


@pytest.fixture
def stored(run: Command, folder: Path) -> Path:
    """The file of a database of SQLite, whose project is in the working directory."""
    write_project(folder, {"echo": Agent()}, gateway={"database": "sqlite:///threads.db"})
    assert run("database", "upgrade").code == 0
    return folder / "threads.db"


def test_a_backup_is_one_file_for_its_user_that_is_put_back_where_none_is(run: Command, stored: Path) -> None:
    ran = run("database", "backup", "kept.db")
    assert (ran.code, ran.out) == (0, f"kept.db is a backup of {stored}, with tables of version {REQUIRED}.\n")
    assert stored.with_name("kept.db").stat().st_mode & 0o777 == 0o600
    assert not list(stored.parent.glob("*kept.db?*"))

    again = run("database", "backup", "kept.db")
    assert (again.code, "kept.db is there already" in again.err) == (1, True)
    present = run("database", "restore", "kept.db")
    assert (present.code, f"{stored} is there already; stop the gateway" in present.err) == (1, True)
    stored.unlink()
    assert run("database", "restore", "kept.db").code == 0
    assert run("database", "status").code == 0


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE pallas_threads_version SET version_num = '9999'", "is of a newer release: its tables are at version"),
        ("DROP TABLE pallas_threads_version", "is not a database of a gateway: it has no table"),
        ("DELETE FROM pallas_threads_version", "is not a database of a gateway: pallas_threads_version has no version"),
        ("INSERT INTO pallas_threads_version VALUES ('0001')", "pallas_threads_version has no version, or several"),
        ("UPDATE pallas_threads_version SET version_num = x'ff'", "pallas_threads_version has no version"),
    ],
)
def test_a_file_of_others_is_not_restored(run: Command, stored: Path, statement: str, why: str) -> None:
    other = stored.rename(stored.with_name("other.db"))
    with closing(sqlite3.connect(other)) as opened, opened:
        opened.execute(statement)
    ran = run("database", "restore", "other.db")
    assert (ran.code, why in ran.err) == (1, True)
    assert not stored.exists()


def test_what_cannot_be_read_or_written_is_named(run: Command, stored: Path) -> None:
    Path("dangling.db").symlink_to("nothing.db")
    for arguments, why in {
        ("backup", "missing/kept.db"): "missing/kept.db cannot be written: No such file or directory",
        ("backup", "dangling.db"): "dangling.db is there already",
        ("backup", "x" * 300): "xxx cannot be written: File name too long",
        ("restore", "x" * 300): "no file xxx",
        ("restore", "missing.db"): "no file missing.db, or none that this user may see",
        ("restore", "agents.yaml"): "agents.yaml is damaged, incomplete or no database: file is not a database",
    }.items():
        ran = run("database", *arguments)
        assert (ran.code, why in ran.err) == (1, True), ran.err
    before = stored.read_bytes()
    stored.rename("away.db")
    ran = run("database", "backup", "kept.db")
    assert (ran.code, f"no file {stored}" in ran.err) == (1, True)
    assert Path("away.db").read_bytes() == before
    assert not list(stored.parent.glob("*kept.db*"))


def test_backups_of_postgresql_are_left_to_its_programs(run: Command, folder: Path) -> None:
    write_project(folder, {"echo": Agent()}, gateway={"database": "postgresql://user:word@host/name"})
    for command, program in {"backup": "pg_dump --format=custom", "restore": "pg_restore --single-transaction"}.items():
        ran = run("database", command, "kept.db")
        assert (ran.code, "a database of PostgreSQL" in ran.err, program in ran.err) == (2, True, True)
