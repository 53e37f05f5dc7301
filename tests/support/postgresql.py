"""A throw-away PostgreSQL server of this machine's own programs, on a Unix socket in a folder of its own.

It keeps nothing safe (`fsync = off`) and trusts everybody who may enter the folder.
"""

import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support_programs import program

SECONDS = 60
_SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "listen_addresses=", "max_connections=60")


@dataclass(frozen=True)
class PostgreSql:
    """A running server; `folder` holds its data and its socket."""

    programs: Path
    folder: Path
    user: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_database(self) -> str:
        name = f"test{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name}", database="postgres")
        return f"postgresql://{self.user}@/{name}?host={self.folder}"

    def run(self, sql: str, *, database: str) -> str:
        """What a statement brings, as text without headings."""
        client: list[str | Path] = [self.programs / "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]
        where: list[str | Path] = ["--host", self.folder, "--username", self.user, "--dbname", database]
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [*client, *where, "--command", sql], capture_output=True, text=True, timeout=SECONDS, check=True
        )
        return done.stdout.strip()

    def start(self) -> None:
        settings = " ".join(f"-c {setting}" for setting in _SETTINGS)
        self._control("start", "--wait", "--log", self.folder / "log", "-o", f"-k {self.folder} {settings}")

    @property
    def is_up(self) -> bool:
        """Whether it was started and not stopped."""
        return (self.folder / "data" / "postmaster.pid").exists()

    @contextmanager
    def hanging(self) -> Generator[None]:
        """Let it stand still for the block: it accepts connections, and answers none."""
        [postmaster] = re.findall(r"\A\d+", (self.folder / "data" / "postmaster.pid").read_text())
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children")
        stopped = [int(postmaster)]
        os.kill(stopped[0], signal.SIGSTOP)  # first, so that it starts no further process
        stopped += map(int, children.read_text().split())
        try:
            for pid in stopped[1:]:
                _signal(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in stopped:
                _signal(pid, signal.SIGCONT)

    def stop(self) -> None:
        self._control("stop", "--mode", "fast")

    def _control(self, *arguments: str | Path) -> None:
        as_user(self.user, [self.programs / "pg_ctl", "--pgdata", self.folder / "data", *arguments])


@contextmanager
def postgresql() -> Generator[PostgreSql]:
    programs = Path(program("postgresql")).parent
    user = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name  # it refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="pallas-postgresql-"))  # short, as a socket's path must be
    try:
        if os.geteuid() == 0:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        options = ["--username", user, "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C"]
        as_user(user, [programs / "initdb", "--pgdata", folder / "data", *options])
        server = PostgreSql(programs, folder, user)
        server.start()
        try:
            yield server
        finally:
            if server.is_up:
                server.stop()
    finally:
        shutil.rmtree(folder)


def as_user(user: str, command: list[str | Path]) -> None:
    options: dict[str, Any] = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    done = subprocess.run(
        command,
        **(options if os.geteuid() == 0 else {}),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if "initdb" in str(command[0]) else subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout}"


def _signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended: backends end with their connections."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
