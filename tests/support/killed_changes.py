"""`python -m tests.support.killed_changes URL`: kills changes of agents at each of their statements.

Each change runs in a process of its own that kills itself with SIGKILL before its next statement, or before or after
the end of its transaction. Prints a line of JSON for each: the change, the step, and the agent before and after.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event

from pallas_gateway.features.definitions.records import AgentNotFoundError
from pallas_gateway.features.definitions.service import Definitions
from tests.support.definers import SIMPLE, configured, editor
from tests.support.stored_threads import services

type Change = Callable[[Definitions, str], Awaitable[object]]

ANN = editor("ann")
CHANGES: dict[str, Change] = {
    "create": lambda made, name: made.create(f"{name}-new", SIMPLE, ANN),
    "change": lambda made, name: made.patch(name, {"title": "Three"}, ANN, expected=2),
    "restore": lambda made, name: made.restore(name, 1, ANN, expected=2),
    "delete": lambda made, name: made.remove(name, ANN, expected=2),
}


@dataclass
class Fuse:
    """Kills this process at a step; steps are statements, and the beginnings of commits."""

    at: int
    steps: int = field(default=0, init=False)

    def step(self, *_: object, **__: object) -> None:
        self.steps += 1
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


async def prepare(made: Definitions, name: str) -> dict[str, Any]:
    """Create an agent of two versions, and return what is stored then."""
    await made.create(name, SIMPLE, ANN)
    await made.patch(name, {"title": "Two"}, ANN, expected=1)
    return await state(made, name)


async def state(made: Definitions, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"number": await made.number()}
    for one in (name, f"{name}-new"):
        try:
            agent = await made.find(one)
        except AgentNotFoundError:
            continue
        versions = {version.version: version.definition for version in await made.versions(one)}
        assert versions[agent.version] == agent.definition
        found[one] = {"version": agent.version, "title": agent.definition.get("title"), "versions": sorted(versions)}
    return found


async def run(url: str, work: Change, name: str, fuse: Fuse) -> Any:
    async with services(url, configuration=configured) as stored:
        engine = stored.database.connections._engine.sync_engine
        for point in ("before_cursor_execute", "commit"):
            event.listen(engine, point, fuse.step)
        result = await work(stored.definitions, name)
        fuse.step()  # after the transaction, and before anybody hears of it
    return result


def in_a_process(url: str, work: Change, name: str, *, kill_at: int = 0) -> tuple[Any, bool]:
    """Return the result of some work, and whether its process was killed."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        result = asyncio.run(run(url, work, name, Fuse(kill_at)))
        os.write(writing, json.dumps(result, default=str).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return None, True
    if status:
        sys.exit(f"{name} failed")
    return json.loads(text), False


def main(url: str) -> None:
    for change, work in CHANGES.items():
        step, killed = 1, True
        before, _ = in_a_process(url, prepare, f"{change}-1")
        while killed:

            async def look_and_prepare(made: Definitions, name: str, following: str = f"{change}-{step + 1}") -> Any:
                return await state(made, name), await prepare(made, following)

            name = f"{change}-{step}"
            _, killed = in_a_process(url, work, name, kill_at=step)
            (after, following), _ = in_a_process(url, look_and_prepare, name)
            line = {"change": change, "step": step, "killed": killed, "name": name, "before": before, "after": after}
            print(json.dumps(line), flush=True)
            step, before = step + 1, following


if __name__ == "__main__":
    main(sys.argv[1])
