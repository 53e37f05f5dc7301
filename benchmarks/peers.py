"""Agents that call other agents of the gateway, beside agents that have agents as tools in agno and fast-agent."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from benchmarks import contenders
from benchmarks.contenders import AGNO, FAST_AGENT, GATEWAY
from benchmarks.figures import Bounds, figure, ratio
from benchmarks.project import Agent

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint
    from benchmarks.load import Sample
    from benchmarks.servers import Servers

TOOLED = "tooled"
TWO_PEERS = "nested, two at once"


async def measure(servers: Servers) -> None:
    """A call whose agent calls a peer once; one whose agent calls a downstream once; one with two peers at once."""
    await servers.end()
    bench = servers.bench
    answer = contenders.llm_url(bench.llm)
    agents = {
        "first": Agent(answer),
        "second": Agent(answer),
        "nested": Agent(contenders.llm_url(bench.llm, "tool"), peers=("first",)),
        "both": Agent(contenders.llm_url(bench.llm, "tools"), peers=("first", "second")),
        TOOLED: servers.agents["tooled"],
    }
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(contenders.gateway(bench.new_folder(), agents))
        agno = await stack.enter_async_context(contenders.agno(bench.new_folder(), agents))
        shipped = {
            name: await stack.enter_async_context(contenders.fast_agent(bench.new_folder(), name, agents[name]))
            for name in ("nested", "both")
        }
        servers_of = {GATEWAY: gateway, AGNO: agno, FAST_AGENT: shipped}
        one = await bench.rounds("nested", {TOOLED: gateway[TOOLED], **_of(servers_of, "nested")})
        two = await bench.rounds(TWO_PEERS, _of(servers_of, "both"))
    title = "agent that calls a peer once"
    of_tooled = ratio(_cpu(one[GATEWAY]), _cpu(one[TOOLED]))
    beside = f"{title}, CPU per call / agent that calls a downstream once"
    bench.check("nested", beside, of_tooled, Bounds(1.8, 1.5, at_least=False))
    bench.check("nested/cpu", f"{title}, CPU per call", figure(_cpu(one[GATEWAY])), Bounds(11, 9, at_least=False), "ms")
    _beside_agno(bench, "nested", title, one)
    _beside_agno(bench, "nested/two", "agent that calls two peers at once", two)


def _of(servers: dict[str, dict[str, Endpoint]], agent: str) -> dict[str, Endpoint]:
    return {name: endpoints[agent] for name, endpoints in servers.items()}


def _beside_agno(bench: Bench, identity: str, title: str, samples: dict[str, list[Sample]]) -> None:
    rates = {name: [one.calls_per_second for one in taken] for name, taken in samples.items()}
    measured = ratio(rates[GATEWAY], rates[AGNO])
    bench.check(
        f"{identity}/{AGNO}", f"{title}, throughput at 16 clients / {AGNO}", measured, Bounds(0.8, 1.2, at_least=True)
    )


def _cpu(samples: list[Sample]) -> list[float]:
    return [one.cpu_ms for one in samples]
