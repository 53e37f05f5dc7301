"""The commands of docs/operate/upgrading.md: backups of running gateways, restoration, upgrades and the way back."""

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.shared.database.migrating import versions_of
from tests.deploy.adapting import ROOT
from tests.support.commands import started
from tests.support.gateway import Agent, write_project
from tests.support.older_tables import migrate_to, write_as_of_0_1_0
from tests.support.postgresql import PostgreSql
from tests.threads.conftest import server

__all__ = ["server"]
TEXT = (ROOT / "docs" / "operate" / "upgrading.md").read_text()
BLOCKS = {
    name: re.findall(r"^\$ (.+?)(?: +#.*)?$", block, re.MULTILINE)
    for name, block in re.findall(r"<!-- run: ([a-z ]+) -->\n```console\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
}
POET = {"name": "poet", "instruction": "You write poems about the sea.", "model": "passthrough"}
SECONDS = 120
OLD_THREAD = "1" * 32
NEWER = "UPDATE pallas_threads_version SET version_num = '9999'"


@dataclass
class World:
    """A project with a database, and the environment of the documented commands."""

    kind: str
    folder: Path
    environ: dict[str, str]
    server: PostgreSql | None

    def ran(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def run(self, block: str) -> str:
        """Run a block of the document, each command of which succeeds; return what the last one prints."""
        printed = ""
        for command in BLOCKS[f"{self.kind} {block}"]:
            done = self.ran(command)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            printed = done.stdout
        return printed

    def use_restored(self) -> None:
        if self.kind == "postgresql":
            self.environ["DATABASE_URL"] = self.environ["RESTORED_URL"]

    def execute(self, statement: str) -> None:
        if self.server is not None:
            self.server.run(statement, database=re.findall(r"/(\w+)\?", self.environ["DATABASE_URL"])[0])
        else:
            with closing(sqlite3.connect(self.folder / "pallas.db")) as opened, opened:
                opened.execute(statement)

    @contextmanager
    def gateway(self) -> Generator[httpx.Client]:
        with started(["serve"], self.folder, environ=self.environ) as program:
            program.wait_for("Try:")
            with httpx.Client(base_url=f"{program.url}/api/v1", trust_env=False, timeout=SECONDS) as client:
                yield client
            program.signal(signal.SIGTERM)
            assert program.end(SECONDS).code == 0


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PALLAS_LOG_FILE": "", "DATABASE_URL": f"sqlite:///{tmp_path}/p/pallas.db"}
    running: PostgreSql | None = None
    if request.param == "postgresql":
        running = request.getfixturevalue("server")
        with suppress(subprocess.CalledProcessError):  # of the test before
            running.run("DROP DATABASE pallas_restored", database="postgres")
        url = running.new_database()
        restored = f"postgresql://{running.user}@/pallas_restored?host={running.folder}"
        environ |= {"DATABASE_URL": url, "RESTORED_URL": restored, "PATH": f"{running.programs}:{path}"}
        environ |= {"PGHOST": str(running.folder), "PGUSER": running.user}
    gateway = {"database": "${DATABASE_URL}", "agents_may_use": {"models": ["passthrough"]}}
    write_project(tmp_path / "p", {"echo": Agent()}, gateway=gateway)
    return World(request.param, tmp_path / "p", environ, running)


@dataclass
class Talking:
    """Clients that start threads until told to stop."""

    client: httpx.Client
    threads: dict[str, str] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    is_over: bool = False

    def talk(self, name: int) -> None:
        """Start one thread after the other; a call that fails ends the test."""
        number = 0
        while not self.is_over:
            message, number = f"message {number} of {name}", number + 1
            answer = self.client.post("/agents/echo/chat", json={"message": message}).raise_for_status().json()
            with self.changed:
                self.threads[answer["threadId"]] = message
                self.changed.notify_all()

    def wait_for(self, threads: int) -> dict[str, str]:
        """Return those that have been answered once they are so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.threads) >= threads, SECONDS)
            return dict(self.threads)


def messages(client: httpx.Client, thread: str) -> list[str]:
    found: dict[str, Any] = client.get(f"/threads/{thread}/messages").raise_for_status().json()
    return [one["content"] for one in found["messages"]]


def test_the_document_has_every_command_for_both_kinds() -> None:
    assert set(BLOCKS) == {
        f"{kind} {name}" for kind in ("sqlite", "postgresql") for name in ("backup", "restore", "upgrade")
    }


@pytest.mark.whole
def test_a_backup_made_while_calls_run_brings_back_threads_and_agents(world: World) -> None:
    with world.gateway() as client:
        assert client.post("/agents", json=POET).status_code == 201
        talking = Talking(client)
        with ThreadPoolExecutor(3) as clients:
            running = [clients.submit(talking.talk, name) for name in range(3)]
            try:
                before = talking.wait_for(5)
                world.run("backup")
                after = talking.wait_for(len(talking.threads) + 3)
            finally:
                talking.is_over = True
        for one in running:
            one.result()
    assert len(after) > len(before)

    world.run("restore")
    world.use_restored()
    with world.gateway() as client:
        for thread, message in before.items():
            assert messages(client, thread)[0] == message
        assert client.get("/agents/poet").raise_for_status().json()["instruction"] == POET["instruction"]
        made = client.post("/agents/poet/chat", json={"message": "go on"}).raise_for_status().json()
        assert messages(client, made["threadId"])[0] == "go on"


@pytest.mark.whole
def test_an_upgrade_keeps_what_is_stored_and_its_backup_is_the_way_back(world: World, tmp_path: Path) -> None:
    required = versions_of(None).required
    asyncio.run(migrate_to("0011", world.environ["DATABASE_URL"], tmp_path / "older"))
    asyncio.run(write_as_of_0_1_0(world.environ["DATABASE_URL"], [OLD_THREAD], [("complete", "hello")]))
    world.execute("UPDATE pallas_threads SET owner = 'anonymous', agent = 'echo'")
    assert world.ran("pallas-gateway database status").returncode == 3

    assert f"from version 0011 to {required}" in world.run("upgrade")
    with world.gateway() as client:
        assert messages(client, OLD_THREAD) == ["one", "hello"]
        client.post("/agents/echo/chat", json={"message": "later"}).raise_for_status()

    (world.folder / "before-upgrade.backup").rename(world.folder / "pallas.backup")
    for command in BLOCKS[f"{world.kind} restore"]:
        done = world.ran(command)
        pending = 3 if command.endswith("database status") else 0  # the tables are the older ones
        assert done.returncode == pending, done.stderr
    world.use_restored()
    status = world.ran("pallas-gateway database status")
    assert (status.returncode, "Tables:    version 0011" in status.stdout) == (3, True)
    with world.gateway() as client:  # which upgrades them again; the older release would not
        assert messages(client, OLD_THREAD) == ["one", "hello"]
        assert len(client.get("/threads").raise_for_status().json()["threads"]) == 1


@pytest.mark.whole
def test_a_backup_that_is_cut_off_or_of_a_newer_release_changes_nothing(world: World) -> None:
    assert world.ran("pallas-gateway database upgrade").returncode == 0
    with world.gateway() as client:
        kept = client.post("/agents/echo/chat", json={"message": "keep this"}).raise_for_status().json()["threadId"]
    world.run("backup")
    backup = world.folder / "pallas.backup"
    whole = backup.read_bytes()

    backup.write_bytes(whole[: len(whole) * 2 // 3])
    *first, restore = [command for command in BLOCKS[f"{world.kind} restore"] if not command.endswith("status")]
    for command in first:
        assert world.ran(command).returncode == 0
    refused = world.ran(restore)
    assert refused.returncode == 1
    assert re.search(r"is damaged, incomplete|is damaged or incomplete|end of file|could not", refused.stderr)
    if world.kind == "sqlite":
        assert not list(world.folder.glob("*pallas.db*"))
        for file in (world.folder / "before-restore").iterdir():
            file.rename(world.folder / file.name)
    else:
        status = world.ran('DATABASE_URL="$RESTORED_URL" pallas-gateway database status')
        assert (status.returncode, "Tables:    none" in status.stdout) == (3, True)

    world.execute(NEWER)
    backup.unlink()
    if world.kind == "sqlite":
        with closing(sqlite3.connect(world.folder / "pallas.db")) as opened, closing(sqlite3.connect(backup)) as copy:
            opened.backup(copy)
    else:
        world.run("backup")
    world.execute(NEWER.replace("9999", versions_of(None).required))
    newer = [world.ran(command) for command in BLOCKS[f"{world.kind} restore"]][-1]
    assert newer.returncode in {1, 2}
    assert re.search(r"tables are at version 9999.*newer", newer.stderr) or "is of a newer release" in newer.stderr
    for file in (world.folder / "before-restore").glob("*"):
        file.rename(world.folder / file.name)
    with world.gateway() as client:
        assert messages(client, kept)[0] == "keep this"
