"""A day of a company: short turns, tools with the caller's token, orchestrators, long histories and images at once."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks import contenders, growth, load
from benchmarks.figures import Bounds, figure
from benchmarks.forwarding import BEARER
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint
    from benchmarks.servers import Servers

SHARES = {"short": 60, "forwarded": 20, "orchestrator": 10, "history": 8, "image": 2}
"""Percent of the calls."""
PIECES_PER_SECOND = 30
UTILISATION = 0.7
_CLIENTS = 64
_HISTORY = 1000
_IMAGE_KB = 1024
_PEER_PORTS = (24_297, 24_298)
"""Documented addresses of the peers; nothing listens there."""


async def measure(servers: Servers) -> None:
    """Find out how many calls a second are possible, and make 70 % of those for minutes; an error ends the run."""
    bench = servers.bench
    if not bench.plan.mixed_seconds:
        bench.say("mixed is part of the full run only")
        return
    await servers.end()
    async with contenders.gateway(bench.new_folder(), _agents(bench)) as gateway, AsyncExitStack() as stack:
        calls = Calls(_endpoints(gateway), stack)
        capacity = await calls.closed(bench.plan.seconds * bench.plan.rounds)
        process = gateway["short"].process
        began, cpu = perf_counter(), process.cpu_seconds
        made = await calls.paced(UTILISATION * capacity, bench.plan.mixed_seconds)
        cpu_ms = 1000 * (process.cpu_seconds - cpu) / made
        rate = made / (perf_counter() - began)
    bench.results["mixed"] = {"calls": made, "calls_per_second": rate, "capacity": capacity, "cpu_ms": cpu_ms}
    title = f"a day of a company, CPU per call at {UTILISATION:.0%} of {capacity:.0f} calls/s"
    bench.check("mixed", title, figure([cpu_ms]), Bounds(25, 20, at_least=False), "ms")


class Calls:
    """Calls of all kinds by their shares, each kind with connections of its own."""

    def __init__(self, endpoints: Mapping[str, Endpoint], stack: AsyncExitStack) -> None:
        self._endpoints = endpoints
        self._stack = stack
        self._idle: dict[str, list[load.Client]] = {kind: [] for kind in endpoints}
        self._random = random.Random(1)  # noqa: S311  the same order in each run

    async def closed(self, seconds: float) -> float:
        """Make calls by a fixed number of clients, as fast as they are answered; return how many a second."""
        made, ends = 0, perf_counter() + seconds

        async def repeat() -> None:
            nonlocal made
            while perf_counter() < ends:
                await self.one()
                made += 1

        async with asyncio.TaskGroup() as clients:
            for _ in range(_CLIENTS):
                clients.create_task(repeat())
        return made / seconds

    async def paced(self, per_second: float, seconds: float) -> int:
        """Begin so many calls a second, whether earlier ones have been answered or not; return their number."""
        count, began = int(per_second * seconds), perf_counter()
        async with asyncio.TaskGroup() as calls:
            for number in range(count):
                await asyncio.sleep(began + number / per_second - perf_counter())
                calls.create_task(self.one())
        return count

    async def one(self) -> None:
        """Make a call of a kind that chance decides."""
        (kind,) = self._random.choices(list(SHARES), list(SHARES.values()))
        idle = self._idle[kind]
        client = idle.pop() if idle else await self._stack.enter_async_context(load.client(self._endpoints[kind]))
        async with asyncio.timeout(load.CALL_SECONDS):
            await client.call()
        idle.append(client)


def _agents(bench: Bench) -> dict[str, Agent]:
    streamed = contenders.llm_url(bench.llm, seconds=1, pieces=PIECES_PER_SECOND)
    tool = contenders.llm_url(bench.llm, "tool", seconds=1, pieces=PIECES_PER_SECOND)
    twice = contenders.llm_url(bench.llm, "tool2", seconds=1, pieces=PIECES_PER_SECOND)
    server = ("forwarded", contenders.downstream(bench.downstreams, "facts")[1])
    peers = tuple((f"peer{port}", f"http://localhost:{port}/mcp") for port in _PEER_PORTS)
    return {
        "short": Agent(streamed, settings={"model_capabilities": {"vision": True}}),
        "forwarded": Agent(tool, (server,), servers={"forwarded": {"forward_inbound_auth": True}}),
        "orchestrator": Agent(twice, peers),
        **{f"peer{port}": Agent(streamed, settings={"port": port}) for port in _PEER_PORTS},
    }


def _endpoints(gateway: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    short = gateway["short"]
    return {
        "short": short,
        "forwarded": replace(gateway["forwarded"], bearer=BEARER),
        "orchestrator": gateway["orchestrator"],
        "history": short.saying(history=growth.history(_HISTORY)),
        "image": short.saying(images=[growth.image(_IMAGE_KB)]),
    }
