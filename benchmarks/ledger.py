"""Limits and the audit log: CPU of a call without them, and of the same call with both."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from benchmarks import contenders
from benchmarks.figures import Bounds, ratio
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.figures import Figure
    from benchmarks.servers import Servers

LIMITED: Mapping[str, Any] = {
    "limits": {"rules": [{"calls_per_minute": 10_000_000, "calls_at_once": 10_000}]},
    "audit_log": "audit.log",
}
"""Rules that refuse no call of the benchmark."""
PROGRAM = "benchmarks.gateway_without_ledger"


async def measure(servers: Servers) -> None:
    """Calls of a bare agent by 16 clients: of one process without limits, of two workers with and without."""
    await servers.end()
    without = {"off": ((), None, "pallas_gateway"), "no ledger": ((), None, PROGRAM)}
    title = "bare call without limits and audit log, CPU per call / the same without a ledger"
    measured = await _ratio(servers, "ledger, off", without)
    servers.bench.check("ledger/off", title, measured, Bounds(1.01, 1.0, at_least=False))
    workers = ("--workers", "2")
    both = {"on": (workers, LIMITED, "pallas_gateway"), "off": (workers, None, "pallas_gateway")}
    title = "bare call with limits and audit log, 2 workers, CPU per call / the same without both"
    measured = await _ratio(servers, "ledger, on", both)
    servers.bench.check("ledger/on", title, measured, Bounds(1.02, 1.01, at_least=False))


async def _ratio(
    servers: Servers, scenario: str, gateways: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any] | None, str]]
) -> Figure:
    bench = servers.bench
    agents = {"bare": Agent(contenders.llm_url(bench.llm))}
    async with AsyncExitStack() as stack:
        endpoints = {}
        for name, (options, settings, program) in gateways.items():
            started = contenders.gateway(
                bench.new_folder(), agents, options=options, settings=settings, program=program
            )
            endpoints[name] = (await stack.enter_async_context(started))["bare"]
        samples = await bench.rounds(scenario, endpoints)
    one, other = ([sample.cpu_ms for sample in taken] for taken in samples.values())
    return ratio(one, other)
