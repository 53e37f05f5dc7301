"""Calls of one agent while another one, which the database has, is changed over HTTP once a second."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx

from benchmarks import contenders, load
from benchmarks.figures import Bounds, difference
from benchmarks.payloads import again_and_again, milliseconds, p99_of
from benchmarks.processes import HOST
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.servers import Servers

AGENTS = 100
CLIENTS = 4
PAUSE_SECONDS = 1.0
_MODEL = "generic.scripted"
SETTINGS: Mapping[str, Any] = {
    "database": "sqlite:///gateway.db",
    "agents_may_use": {"models": [_MODEL], "most_agents": AGENTS},
}


async def measure(servers: Servers) -> None:
    """The p99 of calls of an agent of a file, beside 99 of the database: quiet, and while one of these changes."""
    await servers.end()
    bench = servers.bench
    agents = {"bare": Agent(contenders.llm_url(bench.llm))}
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(contenders.gateway(bench.new_folder(), agents, settings=SETTINGS))
        port = gateway["bare"].process.port
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{HOST}:{port}/api/v1", trust_env=False, timeout=60)
        )
        for number in range(1, AGENTS):
            await _make(http, f"stored{number}")
        calling = [await stack.enter_async_context(load.client(gateway["bare"])) for _ in range(CLIENTS)]
        numbers = itertools.count()

        async def change() -> None:
            await _change(http, "stored50", next(numbers))
            await asyncio.sleep(PAUSE_SECONDS)

        quiet, changing = [], []
        for _ in range(bench.plan.rounds):
            quiet.append(await p99_of(bench, *(lambda one=one: milliseconds(one) for one in calling)))
            async with again_and_again(change):
                changing.append(await p99_of(bench, *(lambda one=one: milliseconds(one) for one in calling)))
    title = f"p99 of calls while another of {AGENTS} agents is changed once a second, over that without changes"
    bench.check("changes", title, difference(changing, quiet), Bounds(20, 15, at_least=False), "ms")


async def _make(http: httpx.AsyncClient, name: str) -> None:
    written = {"name": name, "instruction": f"You are {name}.", "model": _MODEL}
    made = await http.post("agents", params={"wait": "true"}, json=written)
    if made.status_code != HTTPStatus.CREATED:
        raise load.WrongAnswerError(made.text)


async def _change(http: httpx.AsyncClient, name: str, number: int) -> None:
    patch, any_version = {"instruction": f"You are {name}, version {number}."}, {"If-Match": "*"}
    changed = await http.patch(f"agents/{name}", params={"wait": "true"}, json=patch, headers=any_version)
    document = changed.json()
    if changed.status_code != HTTPStatus.OK or document["version"] != document["runningVersion"]:
        raise load.WrongAnswerError(changed.text)
