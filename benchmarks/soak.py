"""Many calls, a part of whose clients hang up: what is left of them in memory, instances and descriptors."""

from __future__ import annotations

import asyncio
import random
from time import monotonic
from typing import TYPE_CHECKING

import httpx

from benchmarks import contenders, load
from benchmarks.figures import Bounds, figure
from benchmarks.processes import HOST
from benchmarks.project import Agent

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint
    from benchmarks.processes import Process

CALLS = 20_000
CALLS_SHORT = 2_000
FIRST_PART = 10
"""Memory is compared with what it was after one call in so many."""
CLIENTS = 16
HUNG_UP = 0.3
_HANG_UP_SECONDS = 0.2
_IDLE_SECONDS = 60.0


async def measure(bench: Bench) -> None:
    """The soak's line of the table, and what was left behind."""
    calls = CALLS if bench.plan.name == "full" else CALLS_SHORT
    tooled = Agent(contenders.llm_url(bench.llm, "tool"), (contenders.downstream(bench.downstreams, "facts"),))
    async with contenders.gateway(bench.new_folder(), {"tooled": tooled}) as gateway:
        endpoint = gateway["tooled"]
        await load.answers(endpoint, 5)
        start = await _idle(endpoint.process)
        await _many(bench, endpoint, calls // FIRST_PART)
        first = await _idle(endpoint.process)
        await _many(bench, endpoint, calls - calls // FIRST_PART)
        last = await _idle(endpoint.process)
    bench.results["soak"] = {"calls": calls, "hung_up": HUNG_UP, "start": start, "first": first, "last": last}
    growth = last["memory_kb"] / first["memory_kb"]
    title = f"memory after {calls:,} calls ({HUNG_UP:.0%} disconnected) / after {calls // FIRST_PART:,}"
    bench.check("soak/memory", title, figure([growth]), Bounds(1.05, 1.02, at_least=False))
    left = (last["instances"] - start["instances"]) + max(0, last["descriptors"] - first["descriptors"])
    title = "instances and descriptors left behind by the soak"
    bench.check("soak/left", title, figure([left]), Bounds(0, 0, at_least=False), "left")


async def _many(bench: Bench, endpoint: Endpoint, calls: int) -> None:
    numbers = iter(range(calls))
    chance = random.Random(calls)  # noqa: S311  the same clients hang up in every run

    async def work() -> None:
        for number in numbers:
            if number % 500 == 0:
                bench.say(f"soak: call {number} of {calls}, {endpoint.process.memory_kb} kB")
            async with load.client(endpoint) as one:
                if chance.random() < HUNG_UP:
                    one.send_only()
                    await asyncio.sleep(chance.random() * _HANG_UP_SECONDS)
                else:
                    await one.call()

    async with asyncio.TaskGroup() as workers:
        for _ in range(CLIENTS):
            workers.create_task(work())


async def _idle(process: Process) -> dict[str, int]:
    """What the gateway holds once no instance is left, or a minute has passed."""
    deadline = monotonic() + _IDLE_SECONDS
    while (instances := await _instances(process)) and monotonic() < deadline:  # noqa: ASYNC110  another process
        await asyncio.sleep(1)
    await asyncio.sleep(1)  # connections of clients that have gone
    return {"memory_kb": process.memory_kb, "descriptors": process.descriptors, "instances": instances}


async def _instances(process: Process) -> int:
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:  # noqa: S501  plain HTTP on loopback
        text = (await http.get(f"http://{HOST}:{process.port}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("pallas_instances_live{")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))
