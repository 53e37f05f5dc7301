"""Many calls, a part of whose clients hang up: what is left of them in memory, instances, tasks and descriptors."""

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
    from collections.abc import Mapping

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint
    from benchmarks.processes import Process

CALLS = 20_000
CALLS_SHORT = 2_000
FIRST_PART = 10
"""Memory is compared with what it was after one call in so many."""
CLIENTS = 16
WARM_UP_CALLS = 10 * CLIENTS
"""Before anything is counted: as many connections and spare instances as there will be."""
COUNTED = ("instances", "tasks", "descriptors")
HUNG_UP = 0.3
_HANG_UP_SECONDS = 0.2
_IDLE_SECONDS = 60.0


async def measure(bench: Bench) -> None:
    """The soak's line of the table, and what was left behind."""
    calls = CALLS if bench.plan.name == "full" else CALLS_SHORT
    tooled = Agent(contenders.llm_url(bench.llm, "tool"), (contenders.downstream(bench.downstreams, "facts"),))
    async with contenders.gateway(bench.new_folder(), {"tooled": tooled}) as gateway:
        endpoint = gateway["tooled"]
        await _many(bench, endpoint, WARM_UP_CALLS)
        start = await _idle(endpoint.process)
        await _many(bench, endpoint, calls // FIRST_PART)
        first = await _idle(endpoint.process, start)
        await _many(bench, endpoint, calls - calls // FIRST_PART)
        last = await _idle(endpoint.process, start)
    bench.results["soak"] = {"calls": calls, "hung_up": HUNG_UP, "start": start, "first": first, "last": last}
    growth = last["memory_kb"] / first["memory_kb"]
    title = f"memory after {calls:,} calls ({HUNG_UP:.0%} disconnected) / after {calls // FIRST_PART:,}"
    bench.check("soak/memory", title, figure([growth]), Bounds(1.05, 1.02, at_least=False))
    for what in COUNTED:
        title = f"{what} left behind by the soak"
        bench.check(f"soak/{what}", title, figure([left(start, last)[what]]), Bounds(0, 0, at_least=False), what)


def left(start: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """How much more there is than at the start, of each kind that is counted."""
    return {what: max(0, now[what] - start[what]) for what in COUNTED}


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


async def _idle(process: Process, start: Mapping[str, int] | None = None) -> dict[str, int]:
    """What the gateway holds once its last calls are gone, and no more than at the start; or after a minute."""
    await asyncio.sleep(2)  # connections of clients that have gone
    deadline = monotonic() + _IDLE_SECONDS
    while True:
        held = await _held(process)
        if not any(left(start or {**held, "instances": 0}, held).values()) or monotonic() > deadline:
            return held
        await asyncio.sleep(1)


async def _held(process: Process) -> dict[str, int]:
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:  # noqa: S501  plain HTTP on loopback
        text = (await http.get(f"http://{HOST}:{process.port}/metrics")).text
    counted = {"instances": _sum(text, "pallas_instances_live"), "tasks": _sum(text, "pallas_event_loop_tasks")}
    return {**counted, "descriptors": process.descriptors, "memory_kb": process.memory_kb}


def _sum(exposition: str, metric: str) -> int:
    """Of all series of a metric."""
    lines = [line for line in exposition.splitlines() if line.startswith((f"{metric}{{", f"{metric} "))]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))
