"""Limits and the audit log: CPU of a call without them, and of the same call with both."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from benchmarks import contenders
from benchmarks.figures import Bounds, ratio
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.servers import Servers

LIMITED: Mapping[str, Any] = {
    "limits": {"rules": [{"calls_per_minute": 10_000_000, "calls_at_once": 10_000}]},
    "audit_log": "audit.log",
}
"""Rules that refuse no call of the benchmark."""


async def measure(servers: Servers) -> None:
    """Calls of a bare agent by 16 clients at two workers, with limits and audit log and without."""
    await servers.end()
    bench = servers.bench
    agents = {"bare": Agent(contenders.llm_url(bench.llm))}
    async with AsyncExitStack() as stack:
        endpoints = {}
        for name, settings in {"on": LIMITED, "off": None}.items():
            folder, options = bench.new_folder(), ("--workers", "2")
            started = contenders.gateway(folder, agents, options=options, settings=settings)
            endpoints[name] = (await stack.enter_async_context(started))["bare"]
        samples = await bench.rounds("ledger, on", endpoints)
    one, other = ([sample.cpu_ms for sample in taken] for taken in samples.values())
    title = "bare call with limits and audit log, 2 workers, CPU per call / the same without both"
    bench.check("ledger/on", title, ratio(one, other), Bounds(1.02, 1.01, at_least=False))
