"""What is measured beside the alternatives: one function per line, or few lines, of the table."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from benchmarks import (
    asking,
    at_once,
    changes,
    contenders,
    even,
    fair,
    forwarding,
    ledger,
    load,
    mixed,
    payloads,
    peers,
    stdio,
)
from benchmarks.bench import SETTLE_SECONDS
from benchmarks.contenders import AGNO, FAKES, FAST_AGENT, FAST_AGENT_SHARED_TRUST, FLOOR, GATEWAY, Endpoint
from benchmarks.figures import Bounds, Figure, difference, figure, ratio
from benchmarks.project import Agent
from benchmarks.servers import FAR_MS, Servers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.bench import Bench
    from benchmarks.load import Load, Sample

MANY_AGENTS = 20
CORES_FOR_WORKERS = 4
"""Two for the workers, and as many for the load and the stand-ins."""


async def measure_all(bench: Bench) -> None:
    """Every line of the table but the soak's."""
    async with Servers(bench) as servers:
        await bench.run(SCENARIOS, servers)


async def _calibration(servers: Servers) -> None:
    """The load generator and a stand-in alone: neither may bound what is measured."""
    bench = servers.bench
    await bench.rounds("calibration", {FAKES: contenders.bare_downstream(bench.downstreams)})


async def _passthrough(servers: Servers) -> None:
    bench, gateway = servers.bench, await servers.gateway()
    async with contenders.fast_agent(bench.new_folder(), "parrot", servers.agents["parrot"]) as shipped:
        samples = await bench.rounds("passthrough", {GATEWAY: gateway["parrot"], FAST_AGENT: shipped})
    _check_rate(bench, samples, "passthrough", FAST_AGENT, Bounds(1.3, 2, at_least=True))


async def _bare(servers: Servers) -> None:
    samples = await _beside_all(servers, "bare", {FLOOR: await servers.floor()}, least=(3, 1.6))
    measured = ratio(_cpu(samples[GATEWAY]), _cpu(samples[FLOOR]))
    title = f"{_TITLES['bare']}, CPU per call / {FLOOR}"
    servers.bench.check(f"bare/{FLOOR}", title, measured, Bounds(2.5, 1.9, at_least=False))


async def _tooled(servers: Servers) -> None:
    await _beside_all(servers, "tooled", {}, least=(6, 1.7))


async def _beside_all(
    servers: Servers, name: str, more: Mapping[str, Endpoint], *, least: tuple[float, float]
) -> dict[str, list[Sample]]:
    """The gateway beside both fast-agents and agno; `least`: times the calls of fast-agent as shipped, and of agno."""
    bench, agent = servers.bench, servers.agents[name]
    ours, theirs = (await servers.gateway())[name], (await servers.agno())[name]
    async with (
        contenders.fast_agent(bench.new_folder(), name, agent) as shipped,
        contenders.fast_agent(bench.new_folder(), name, agent, shared_trust=True) as shared,
    ):
        others = {AGNO: theirs, FAST_AGENT: shipped, FAST_AGENT_SHARED_TRUST: shared}
        samples = await bench.rounds(name, {**more, GATEWAY: ours, **others})
    _check_rate(bench, samples, name, FAST_AGENT, Bounds(least[0], least[0], at_least=True))
    _check_rate(bench, samples, name, AGNO, Bounds(least[1], 2, at_least=True))
    return samples


_TITLES = {
    "passthrough": "`passthrough` agent",
    "bare": "agent without tools on the scripted LLM",
    "tooled": "agent with one downstream and a tool call",
}


def _check_rate(bench: Bench, samples: Mapping[str, list[Sample]], name: str, other: str, bounds: Bounds) -> None:
    measured = ratio(_rates(samples[GATEWAY]), _rates(samples[other]))
    bench.check(f"{name}/{other}", f"{_TITLES[name]}, throughput at 16 clients / {other}", measured, bounds)


async def _one_client(servers: Servers) -> None:
    """What an agent adds, and what downstreams add that it does not use."""
    bench, gateway = servers.bench, await servers.gateway()
    endpoints = {FLOOR: await servers.floor(), "bare": gateway["bare"], "far": gateway["far"]}
    samples = await bench.rounds("one client", endpoints, bench.load(1))
    floor_ms, bare, far = ([one.p50_ms for one in samples[name]] for name in (FLOOR, "bare", "far"))
    title = "added latency at 1 client over the floor, bare agent, p50"
    bench.check("latency", title, difference(bare, floor_ms), Bounds(5, 3, at_least=False), "ms")
    title = f"three unused downstreams, {FAR_MS} ms away, over a bare agent, p50"
    bench.check("far", title, difference(far, bare), Bounds(20, 5, at_least=False), "ms")


async def _requests(servers: Servers) -> None:
    """How many requests a downstream sees per call, once everything is warm."""
    bench, gateway, agno = servers.bench, await servers.gateway(), await servers.agno()
    bench.results["requests"] = []
    async with contenders.fast_agent(bench.new_folder(), "tooled", servers.agents["tooled"]) as shipped:
        await _count_requests(bench, FAST_AGENT, "tooled", shipped)
    for name, title, bounds in (
        ("tooled", "requests a downstream sees per call that uses it once", Bounds(2, 1, at_least=False)),
        ("holding", "requests a downstream sees per call that does not use it", Bounds(1, 0, at_least=False)),
    ):
        await _count_requests(bench, AGNO, name, agno[name])
        measured = await _count_requests(bench, GATEWAY, name, gateway[name])
        bench.check(f"requests/{name}", title, figure([measured]), bounds, "requests")


async def _count_requests(bench: Bench, contender: str, agent: str, endpoint: Endpoint) -> float:
    counts = await bench.requests_per_call(endpoint)
    bench.results["requests"].append({"contender": contender, "agent": agent, "by_method": counts})
    return sum(counts.values())


async def _at_once(servers: Servers) -> None:
    """Many slow calls at once: how long all take beside the LLM's own time, and what each holds meanwhile."""
    bench = servers.bench
    ideal = bench.plan.slow_call_seconds
    agents = {name: servers.agents[name] for name in ("tooled", "slow")}
    async with contenders.gateway(bench.new_folder(), agents) as gateway:  # one that has served others has their memory
        await load.answers(gateway["tooled"], at_once.WARM_UP_CALLS)
        peak = await at_once.measure(gateway["slow"])
    times = peak.seconds / ideal
    bench.results["at_once"] = {
        "calls": at_once.CALLS,
        "ideal_seconds": ideal,
        "times_ideal": times,
        "kb_per_call": peak.kb_per_call,
        "descriptors": peak.descriptors_before,
        "descriptors_per_call": peak.descriptors_per_call,
    }
    title = f"{at_once.CALLS} calls at once, {ideal:g} s of LLM each: time / the ideal"
    bench.check("at once/time", title, figure([times]), Bounds(2, 1.5, at_least=False))
    title = f"{at_once.CALLS} calls at once: memory per running call"
    bench.check("at once/memory", title, figure([peak.kb_per_call]), Bounds(230, 200, at_least=False), "KB")


async def _memory(servers: Servers) -> None:
    """Many agents in one process, after some calls of each."""
    await servers.end()
    bench = servers.bench
    agents = {f"agent{i}": Agent(contenders.llm_url(bench.llm)) for i in range(MANY_AGENTS)}
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        ours = await _memory_after_calls(bench, list(gateway.values()))
    async with contenders.agno(bench.new_folder(), agents) as agno:
        theirs = await _memory_after_calls(bench, list(agno.values()))
    bench.results["memory"] = {GATEWAY: ours, AGNO: theirs, "agents": MANY_AGENTS, "calls": bench.plan.memory_calls}
    title = f"memory of {MANY_AGENTS} agents in one process after {bench.plan.memory_calls} calls / agno's"
    bench.check("memory", title, figure([ours / theirs]), Bounds(1.1, 0.85, at_least=False))


async def _memory_after_calls(bench: Bench, endpoints: Sequence[Endpoint]) -> float:
    """Megabytes, of the whole process tree."""
    each = bench.plan.memory_calls // len(endpoints)
    await asyncio.gather(*(load.answers(endpoint, each) for endpoint in endpoints))
    await asyncio.sleep(SETTLE_SECONDS)
    return endpoints[0].process.memory_kb / 1024


async def _starts(servers: Servers) -> None:
    """From the command to ready, with one agent and with many."""
    await servers.end()
    bench = servers.bench
    seconds: dict[int, list[float]] = {1: [], MANY_AGENTS: []}
    for _ in range(bench.plan.starts):
        for count, taken in seconds.items():
            agents = {f"agent{i}": Agent(contenders.llm_url(bench.llm)) for i in range(count)}
            async with contenders.gateway(bench.new_folder(), agents) as gateway:
                taken.append(gateway["agent0"].process.seconds_to_ready)
    bench.results["starts"] = {str(count): taken for count, taken in seconds.items()}
    title = f"time to ready, {MANY_AGENTS} agents / 1 agent"
    bench.check("starts", title, ratio(seconds[MANY_AGENTS], seconds[1]), Bounds(1.5, 1.1, at_least=False))


async def _workers(servers: Servers) -> None:
    """Two worker processes beside one."""
    await servers.end()
    bench = servers.bench
    throughput = (os.cpu_count() or 1) >= CORES_FOR_WORKERS
    title = f"2 workers / 1 worker: {'throughput' if throughput else 'CPU-seconds per call'}"
    bounds = Bounds(1.7, 1.9, at_least=True) if throughput else Bounds(1.1, 1.0, at_least=False)
    bench.check("workers", title, await _worker_ratio(bench, throughput=throughput), bounds)


async def _worker_ratio(bench: Bench, *, throughput: bool) -> Figure:
    agents = {"bare": Agent(contenders.llm_url(bench.llm))}
    async with AsyncExitStack() as stack:
        endpoints = {}
        for count, name in ((1, "1 worker"), (2, "2 workers")):
            options = ("--workers", str(count))
            gateway = contenders.gateway(bench.new_folder(), agents, options=options)
            endpoints[name] = (await stack.enter_async_context(gateway))["bare"]
        samples = await bench.rounds("workers", endpoints, _wide(bench.load()))
    of = _rates if throughput else _cpu
    return ratio(of(samples["2 workers"]), of(samples["1 worker"]))


def _wide(load_: Load) -> Load:
    """More clients: the kernel spreads connections over workers unevenly, and a few would leave one of them idle."""
    return type(load_)(64, load_.seconds, load_.warm_up_seconds)


def _rates(samples: Sequence[Sample]) -> list[float]:
    return [sample.calls_per_second for sample in samples]


def _cpu(samples: Sequence[Sample]) -> list[float]:
    return [sample.cpu_ms for sample in samples]


SCENARIOS = {
    "calibration": _calibration,
    "one-client": _one_client,
    "passthrough": _passthrough,
    "bare": _bare,
    "tooled": _tooled,
    "nested": peers.measure,
    "asking": asking.measure,
    "forwarded": forwarding.measure,
    "requests": _requests,
    "stdio": stdio.measure,
    "at-once": _at_once,
    "memory": _memory,
    "starts": _starts,
    "workers": _workers,
    "even": even.measure,
    "ledger": ledger.measure,
    "fair": fair.measure,
    "metrics-100": payloads.metrics,
    "rounds": payloads.rounds,
    "images-beside": payloads.images,
    "changes": changes.measure,
    "first-text": payloads.first_text,
    "mixed": mixed.measure,
}
