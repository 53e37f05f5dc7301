"""Two callers at a gateway with few slots: one has many calls waiting, the other makes one call after the other.

The many take different times, as calls do. If all began and ended in the same moment, the other caller would wait for
as long as they take, because a slot never stays free for a call that may come.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from itertools import cycle, islice
from typing import TYPE_CHECKING

from benchmarks import contenders, load
from benchmarks.figures import Bounds, figure
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from benchmarks.contenders import Endpoint
    from benchmarks.servers import Servers

SLOTS = 8
_SETTLED_CALLS = 3
"""Calls after which all of the many have come, and slots have been passed on."""
WAITING = 200
_CALLS = 40
_PARTS = (70, 80, 90, 100, 110, 120, 130)
"""How long the calls of the many take, in percent of a call of the other."""


async def measure(servers: Servers) -> None:
    """The p95 of the one caller with the calls of the other waiting, beside its p95 alone."""
    bench = servers.bench
    await servers.end()
    seconds = bench.plan.fair_call_seconds
    keys = {name: f"pallas_key_of_{name}_for_the_benchmark" for name in ("many", "few")}
    tokens = [
        {"name": name, "sha256": sha256(key.encode()).hexdigest(), "grants": ["run:agents"]}
        for name, key in keys.items()
    ]
    settings = {"max_in_flight": SLOTS, "queue_seconds": load.CALL_SECONDS, "auth": {"tokens": tokens}}
    agents = {f"takes{part}": Agent(contenders.llm_url(bench.llm, "answer", seconds * part / 100)) for part in _PARTS}
    async with contenders.gateway(bench.new_folder(), agents, settings=settings) as gateway:
        few = replace(gateway["takes100"], bearer=keys["few"])
        alone = await _p95(few)
        many = [replace(endpoint, bearer=keys["many"]) for endpoint in gateway.values()]
        async with _waiting(many, seconds):
            beside = await _p95(few)
    bench.results["fair"] = {"seconds": seconds, "alone": alone, "beside": beside}
    title = f"p95 of a caller while another has {WAITING} calls waiting for {SLOTS} slots, {seconds:g} s each / alone"
    bench.check("fair", title, figure([beside / alone]), Bounds(1.5, 1.25, at_least=False))


@asynccontextmanager
async def _waiting(endpoints: Sequence[Endpoint], call_seconds: float) -> AsyncIterator[None]:
    """Keep the slots taken and the calls waiting: each client calls again when it is answered."""
    async with AsyncExitStack() as stack:
        asked = islice(cycle(endpoints), SLOTS + WAITING)
        clients = [await stack.enter_async_context(load.client(endpoint)) for endpoint in asked]

        async def repeat(client: load.Client) -> None:
            while True:
                await client.call()

        calls = asyncio.gather(*(repeat(client) for client in clients))
        await asyncio.wait({calls}, timeout=_SETTLED_CALLS * call_seconds)
        try:
            yield
        finally:
            calls.cancel()
            with suppress(asyncio.CancelledError):
                await calls


async def _p95(endpoint: Endpoint) -> float:
    answered = await load.answers(endpoint, _CALLS)

    return sorted(one.seconds for one in answered)[int(_CALLS * 0.95)]
