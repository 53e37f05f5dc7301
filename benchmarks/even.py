"""CPU of the same call with few and many clients, agents and workers: it stays the same."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from benchmarks import contenders, load
from benchmarks.figures import Bounds, figure
from benchmarks.load import Load
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint
    from benchmarks.servers import Servers

CLIENTS = (1, 16, 200)
AGENTS = (1, 20, 100)
WORKERS = (1, 2)
_BOUNDS = Bounds(1.15, 1.05, at_least=False)


async def measure(servers: Servers) -> None:
    """Calls of a bare agent; those of many agents are called by 16 clients, workers by 64."""
    await servers.end()
    bench = servers.bench
    async with AsyncExitStack() as stack:

        async def gateway(agents: int, *options: str) -> Endpoint:
            project = {f"agent{number}": Agent(contenders.llm_url(bench.llm)) for number in range(agents)}
            started = contenders.gateway(bench.new_folder(), project, options=options)
            return (await stack.enter_async_context(started))[f"agent{agents - 1}"]

        of_agents = {count: await gateway(count) for count in AGENTS}
        one = of_agents[1]
        of_workers = {1: one, WORKERS[-1]: await gateway(1, "--workers", str(WORKERS[-1]))}
        await _check(bench, "clients", {count: (one, bench.load(count)) for count in CLIENTS})
        await _check(bench, "agents", {count: (endpoint, bench.load()) for count, endpoint in of_agents.items()})
        await _check(bench, "workers", {count: (endpoint, bench.load(64)) for count, endpoint in of_workers.items()})


async def _check(bench: Bench, what: str, cases: Mapping[int, tuple[Endpoint, Load]]) -> None:
    cpu_ms: dict[int, list[float]] = {count: [] for count in cases}
    for _ in range(bench.plan.rounds):
        for count, (endpoint, how) in cases.items():
            cpu_ms[count].append((await load.measure(endpoint, how)).cpu_ms)
    medians = {str(count): figure(taken).median for count, taken in cpu_ms.items()}
    bench.results.setdefault("even", {})[what] = medians
    bench.say(f"even: {what}: " + ", ".join(f"{count}: {cpu:.1f} ms" for count, cpu in medians.items()))
    title = f"CPU per call with {', '.join(medians)} {what}, the most / the least"
    measured = figure([max(medians.values()) / min(medians.values())])
    bench.check(f"even/{what}", title, measured, _BOUNDS)
