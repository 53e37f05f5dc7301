"""Settings of `stdio_program` as a downstream, and the notes of its processes."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.protocol_messages import MISFITS
from tests.support.waiting import eventually

PROGRAM = Path(__file__).parent / "stdio_program.py"


@dataclass(frozen=True)
class Processes:
    """The processes of one server, as they note it themselves in `folder`."""

    folder: Path
    era: str = "initialize"

    def settings(self, *faults: str, **settings: Any) -> dict[str, Any]:
        """The settings of the server; see `stdio_program` for the faults."""
        MISFITS.look_into(self.folder)
        args = ["-I", "-S", str(PROGRAM), str(self.folder), self.era, *faults]
        return {"transport": "stdio", "command": sys.executable, "args": args, **settings}

    def notes(self, event: str) -> list[dict[str, Any]]:
        path = self.folder / "notes"
        whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")  # one may be half written
        lines = whole.splitlines()
        return [note for note in map(json.loads, lines) if note["event"] == event]

    @property
    def started(self) -> list[int]:
        return [note["pid"] for note in self.notes("started")]

    @property
    def alive(self) -> list[int]:
        return [pid for pid in self.started if is_running(pid)]

    async def until_alive(self, count: int) -> list[int]:
        await eventually(lambda: len(self.alive) == count, what=f"{count} processes")
        return self.alive

    async def until_latest_waits(self, started: int) -> int:
        """Wait until so many were started and only the latest runs, which has answered a greeting; return its id."""

        def waits() -> bool:
            greeted = {note["pid"] for event in ("initialize", "server/discover") for note in self.notes(event)}
            return len(self.started) == started and self.alive == self.started[-1:] and self.started[-1] in greeted

        await eventually(waits, what=f"process {started} waits")
        return self.started[-1]


def is_running(pid: int) -> bool:
    """Return True unless the process has ended; an orphan that has ended is its new parent's to reap."""
    try:
        return _state_of(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it was reaped while the file was read
        return False


def parent_of(pid: int) -> int:
    return int(_state_of(pid)[1])


def _state_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def distinct(texts: Iterable[str]) -> bool:
    listed = list(texts)
    return len(set(listed)) == len(listed)


def children() -> set[int]:
    """Return the ids of the child processes of this process, also of those that have only just been forked."""
    return {int(pid) for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()}
