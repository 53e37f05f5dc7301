"""Downstreams that receive the caller's token, or one exchanged for it, beside one that receives none.

agno cannot forward a token: its session, which all callers share, stands in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks import at_once, contenders, load
from benchmarks.contenders import AGNO
from benchmarks.figures import Bounds, figure, ratio
from benchmarks.project import Agent

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint
    from benchmarks.servers import Servers

BEARER = "token-of-the-benchmark"


async def measure(servers: Servers) -> None:
    """Requests, throughput and CPU of a call whose caller has called before, and memory of many at once."""
    bench = servers.bench
    settings: dict[str, dict[str, object]] = {
        "forwarded": {"forward_inbound_auth": True},
        "exchanged": {"forward_inbound_auth": True, "token_exchange": contenders.token_exchange(bench.downstreams)},
    }
    tool = contenders.llm_url(bench.llm, "tool")
    agents = {"tooled": servers.agents["tooled"]}
    for name, more in settings.items():
        # Servers of other names, at the address whose requests are counted.
        server = (name, contenders.downstream(bench.downstreams, "facts")[1])
        agents[name] = Agent(tool, (server,), servers={name: more})
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        callers = {name: replace(endpoint, bearer=BEARER) for name, endpoint in gateway.items()}
        await _requests(bench, callers)
        theirs = (await servers.agno())["tooled"]
        await _throughput(bench, callers, theirs)
    await _at_once(bench, {"forwarded": agents["forwarded"]})


async def _requests(bench: Bench, callers: dict[str, Endpoint]) -> None:
    counted = bench.results["forwarded"] = {}
    for name in ("forwarded", "exchanged"):
        counted[name] = await bench.requests_per_call(callers[name])
        title = f"requests a downstream with the caller's {_TOKENS[name]} sees per call, from the second call on"
        measured = figure([sum(counted[name].values())])
        bench.check(f"requests/{name}", title, measured, Bounds(1, 1, at_least=False), "requests")


_TOKENS = {"forwarded": "token", "exchanged": "exchanged token"}


async def _at_once(bench: Bench, agents: dict[str, Agent]) -> None:
    slow = contenders.llm_url(bench.llm, "tool", bench.plan.slow_call_seconds / 2)
    agents = {**agents, "slow": replace(agents["forwarded"], llm_url=slow)}
    async with contenders.gateway(bench.new_folder(), agents) as gateway:  # one that has served others has their memory
        callers = {name: replace(endpoint, bearer=BEARER) for name, endpoint in gateway.items()}
        await load.answers(callers["forwarded"], at_once.WARM_UP_CALLS)
        await load.answers(callers["slow"], 1)  # otherwise all would list what the downstream offers this caller
        peak = await at_once.measure(callers["slow"])
    title = f"{at_once.CALLS} calls at once, with the caller's token: memory per running call"
    bench.check("forwarded/memory", title, figure([peak.kb_per_call]), Bounds(230, 200, at_least=False), "KB")


async def _throughput(bench: Bench, callers: dict[str, Endpoint], theirs: Endpoint) -> None:
    endpoints = {name: callers[name] for name in ("forwarded", "exchanged", "tooled")}
    samples = await bench.rounds("forwarded", {**endpoints, AGNO: theirs})
    cpu = {name: [one.cpu_ms for one in taken] for name, taken in samples.items()}
    for name in ("forwarded", "exchanged"):
        title = f"tool call with the caller's {_TOKENS[name]}, CPU per call / the same call without"
        measured = ratio(cpu[name], cpu["tooled"])
        bench.check(f"{name}/cpu", title, measured, Bounds(1.15, 1.15, at_least=False))
    rates = {name: [one.calls_per_second for one in taken] for name, taken in samples.items()}
    title = "tool call with the caller's token, throughput at 16 clients / agno, whose callers share a session"
    bench.check("forwarded/agno", title, ratio(rates["forwarded"], rates[AGNO]), Bounds(1.7, 2, at_least=True))
