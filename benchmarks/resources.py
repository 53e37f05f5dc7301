"""`python -m benchmarks.resources [AGENTS …]`: memory and CPU of one process for so many agents, idle and under load.

Prints the rows of docs/operate/from-one-machine-to-many.md. Each agent has a model and an MCP server over HTTP; a call
is two turns of the model with a tool call between. Calls go to all agents in turn, a number of them rather than for a
time, so that memory after them does not depend on how busy the machine is; the CPU does. Models answer at once.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks import contenders, load
from benchmarks.bench import SHORT, bench
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint

AGENTS = (1, 10, 50, 100)
IDLE_SECONDS = 15.0
CALLS = 400
CALLS_OF_EACH = 6  # at least, for so many agents that the others would hardly be called
CALLS_AT_ONCE = 32
HEADING = f"| agents | MB idle | MB after calls | CPU idle | s to ready | CPU of a call | calls/s |\n{'|---' * 7}|"


@dataclass(frozen=True, slots=True)
class Row:
    """What one process with so many agents takes; `cores_idle` is the part of a core that it uses without calls."""

    agents: int
    seconds_to_ready: float
    idle_mb: float
    cores_idle: float
    loaded_mb: float
    cpu_ms_per_call: float
    calls_per_second: float

    @property
    def line(self) -> str:
        """The row of the table."""
        return (
            f"| {self.agents} | {self.idle_mb:.0f} | {self.loaded_mb:.0f} | {100 * self.cores_idle:.1f} % "
            f"| {self.seconds_to_ready:.0f} | {self.cpu_ms_per_call:.1f} ms | {self.calls_per_second:.0f} |"
        )


async def measure(bench: Bench, count: int, *, idle_seconds: float, calls: int) -> Row:
    """Measure one process with so many agents."""
    answer = contenders.llm_url(bench.llm, "tool")
    agents = {f"agent{n}": Agent(answer, (contenders.downstream(bench.downstreams, "facts"),)) for n in range(count)}
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        process = next(iter(gateway.values())).process
        before, began = process.cpu_seconds, perf_counter()
        await asyncio.sleep(idle_seconds)
        cores = (process.cpu_seconds - before) / (perf_counter() - began)
        idle_mb = process.memory_kb / 1024
        before, began = process.cpu_seconds, perf_counter()
        await _ask(gateway, calls)
        cpu, seconds = process.cpu_seconds - before, perf_counter() - began
        loaded_mb = process.memory_kb / 1024
    return Row(count, process.seconds_to_ready, idle_mb, cores, loaded_mb, 1000 * cpu / calls, calls / seconds)


async def _ask(gateway: Mapping[str, Endpoint], calls: int) -> None:
    """Call all agents in turn, on one connection for each agent, or more."""
    agents = list(gateway.values())
    connections = max(CALLS_AT_ONCE, len(agents))
    left = iter(range(calls))

    async def ask(clients: Sequence[load.Client]) -> None:
        for _, client in zip(left, cycle(clients), strict=False):
            await client.call()

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(load.client(agents[number % len(agents)], era="modern"))
            for number in range(connections)
        ]
        async with asyncio.TaskGroup() as asking:
            for number in range(CALLS_AT_ONCE):
                asking.create_task(ask(clients[number::CALLS_AT_ONCE]))


async def _main(counts: list[int]) -> None:
    sys.stdout.write(f"{HEADING}\n")
    with tempfile.TemporaryDirectory() as folder:
        async with bench(SHORT, Path(folder)) as run:
            for count in counts:
                row = await measure(run, count, idle_seconds=IDLE_SECONDS, calls=max(CALLS, CALLS_OF_EACH * count))
                sys.stdout.write(f"{row.line}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", type=int, default=list(AGENTS), help="numbers of agents")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers end as well
    asyncio.run(_main(parser.parse_args().agents))
