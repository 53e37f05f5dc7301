"""An agent with a stdio server: what the server costs a call that does not use it, and one that does."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import contenders, load
from benchmarks.contenders import AGNO, FAST_AGENT, GATEWAY
from benchmarks.figures import Bounds, difference
from benchmarks.processes import python
from benchmarks.project import Agent

if TYPE_CHECKING:
    from benchmarks.contenders import Endpoint
    from benchmarks.load import Sample
    from benchmarks.servers import Servers

PROGRAM = " ".join(map(str, python("-m", "benchmarks.fakes.program")))
LOOK_SECONDS = 0.25
QUIET_CPU_SECONDS, QUIET_LOOKS = 0.01, 5
"""A server that takes less in `LOOK_SECONDS`, so many times, starts no process."""
CALLS, CALLS_OF_OTHERS = 15, 3
"""After a first call, which is not counted. The others start a process in each call, which takes seconds."""


async def measure(servers: Servers) -> None:
    """Calls of one client, beside the same calls without the server, or with one over HTTP."""
    await servers.end()
    bench = servers.bench
    program = ("program", PROGRAM)
    tool = contenders.llm_url(bench.llm, "tool")
    agents = {
        "bare": Agent(contenders.llm_url(bench.llm)),
        "unused": Agent(contenders.llm_url(bench.llm), (program,)),
        "tooled": Agent(tool, (contenders.downstream(bench.downstreams, "facts"),)),
        "used": Agent(tool, (program,)),
    }
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(contenders.gateway(bench.new_folder(), agents))
        agno = await stack.enter_async_context(contenders.agno(bench.new_folder(), agents))
        shipped = {
            name: await stack.enter_async_context(contenders.fast_agent(bench.new_folder(), name, agents[name]))
            for name in ("unused", "used")
        }
        one = bench.load(1)
        unused = {name: endpoints["unused"] for name, endpoints in {AGNO: agno, FAST_AGENT: shipped}.items()}
        samples = await bench.rounds(
            "stdio, unused", {"bare": gateway["bare"], GATEWAY: gateway["unused"], **unused}, one
        )
        title = "an unused stdio server, over a bare agent, p50"
        bench.check(
            "stdio/unused",
            title,
            difference(_p50(samples[GATEWAY]), _p50(samples["bare"])),
            Bounds(3, 1, at_least=False),
            "ms",
        )
        others = await _one_by_one({AGNO: agno["used"], FAST_AGENT: shipped["used"]}, CALLS_OF_OTHERS)
        taken = await _one_by_one({"tooled": gateway["tooled"], GATEWAY: gateway["used"]}, CALLS) | others
    bench.results["stdio"] = {name: {"p50_ms": median(times), "calls": len(times)} for name, times in taken.items()}
    for name, times in taken.items():
        bench.say(f"stdio, used: {name}: {median(times):.1f} ms")
    title = "a used stdio server with a process ready, over one over HTTP"
    bench.check("stdio/used", title, difference(taken[GATEWAY], taken["tooled"]), Bounds(15, 10, at_least=False), "ms")


async def _one_by_one(endpoints: dict[str, Endpoint], calls: int) -> dict[str, list[float]]:
    """Milliseconds of calls, each made once the processes that earlier ones have started are ready."""
    taken: dict[str, list[float]] = {name: [] for name in endpoints}
    for _ in range(1 + calls):
        for name, endpoint in endpoints.items():
            await asyncio.gather(*map(_quiet, endpoints.values()))
            answered = await load.answers(endpoint, 1)
            taken[name].append(1000 * answered[0].seconds)
    return {name: times[1:] for name, times in taken.items()}


async def _quiet(endpoint: Endpoint) -> None:
    quiet, before = 0, endpoint.process.cpu_seconds
    while quiet < QUIET_LOOKS:
        await asyncio.sleep(LOOK_SECONDS)
        now = endpoint.process.cpu_seconds
        quiet = quiet + 1 if 0 <= now - before < QUIET_CPU_SECONDS else 0  # less than before: a process has ended
        before = now


def _p50(samples: list[Sample]) -> list[float]:
    return [sample.p50_ms for sample in samples]
