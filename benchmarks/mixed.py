"""A day of a company: short turns, tools with the caller's token, orchestrators, long histories and images at once."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks import contenders, growth, load
from benchmarks.figures import Bounds, figure
from benchmarks.forwarding import BEARER
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint
    from benchmarks.load import Answered
    from benchmarks.servers import Servers

SHARES = {"short": 60, "forwarded": 20, "orchestrator": 10, "history": 8, "image": 2}
"""Percent of the calls."""
PIECES_PER_SECOND = 30
UTILISATION = 0.7
_CLIENTS = 200
"""Enough for a core, as a call takes 1 to 3 s; with the calls of peers fewer than `gateway.max_in_flight`."""
_HISTORY = 1000
_IMAGE_KB = 1024
_WARM_UP_SECONDS = 5
_SHOWN_ERRORS = 3


async def measure(servers: Servers) -> None:
    """Find out how many calls a second are possible, and make 70 % of those for minutes; errors are counted."""
    bench = servers.bench
    await servers.end()
    async with contenders.gateway(bench.new_folder(), _agents(bench)) as gateway, AsyncExitStack() as stack:
        finding, calls = (Calls(_endpoints(gateway), stack) for _ in range(2))
        capacity = await finding.closed(_WARM_UP_SECONDS, bench.plan.seconds * bench.plan.rounds)
        process = gateway["short"].process
        began, cpu = perf_counter(), process.cpu_seconds
        made = await calls.paced(UTILISATION * capacity, bench.plan.mixed_seconds)
        cpu_ms = 1000 * (process.cpu_seconds - cpu) / made
        rate = made / (perf_counter() - began)
    errors = [*finding.errors, *calls.errors]
    for error in errors[:_SHOWN_ERRORS]:
        bench.say(f"mixed: {error}")
    bench.results["mixed"] = {
        "calls": made,
        "calls_per_second": rate,
        "capacity": capacity,
        "cpu_ms": cpu_ms,
        "seconds": bench.plan.mixed_seconds,
        "errors": errors,
        "kinds": calls.kinds(),
    }
    for kind, one in calls.kinds().items():
        bench.say(f"mixed: {kind}: {one['calls']} calls, {one['p50_ms']:.0f} ms")
    title = f"a day of a company, CPU per call at {UTILISATION:.0%} of {capacity:.0f} calls/s"
    bench.check("mixed", title, figure([cpu_ms]), Bounds(25, 20, at_least=False), "ms")
    title = f"a day of a company, errors in {bench.plan.mixed_seconds:g} s"
    bench.check("mixed/errors", title, figure([len(errors)]), Bounds(0, 0, at_least=False), "errors")


class Calls:
    """Calls of all kinds by their shares, each kind with connections of its own. Errors are kept, and end no run."""

    def __init__(self, endpoints: Mapping[str, Endpoint], stack: AsyncExitStack) -> None:
        self._endpoints = endpoints
        self._stack = stack
        self._idle: dict[str, list[load.Client]] = {kind: [] for kind in endpoints}
        self._random = random.Random(1)  # noqa: S311  the same order in each run
        self._answered: dict[str, list[Answered]] = {kind: [] for kind in endpoints}
        self.errors: list[str] = []

    async def closed(self, warm_up_seconds: float, seconds: float) -> float:
        """Make calls by a fixed number of clients, as fast as they are answered; return how many a second."""
        begins = perf_counter() + warm_up_seconds
        ends = begins + seconds

        async def repeat() -> None:
            while perf_counter() < ends:
                await self.one()

        async with asyncio.TaskGroup() as clients:
            for _ in range(_CLIENTS):
                clients.create_task(repeat())
        answered = [one for of_kind in self._answered.values() for one in of_kind]
        return sum(one.part_within(begins, ends) for one in answered) / seconds

    async def paced(self, per_second: float, seconds: float) -> int:
        """Begin so many calls a second, whether earlier ones have been answered or not; return their number."""
        count, began = max(1, int(per_second * seconds)), perf_counter()
        async with asyncio.TaskGroup() as calls:
            for number in range(count):
                await asyncio.sleep(began + number / per_second - perf_counter())
                calls.create_task(self.one())
        return count

    async def one(self) -> None:
        """Make a call of a kind that chance decides."""
        (kind,) = self._random.choices(list(SHARES), list(SHARES.values()))
        idle = self._idle[kind]
        try:
            client = idle.pop() if idle else await self._stack.enter_async_context(load.client(self._endpoints[kind]))
            async with asyncio.timeout(load.CALL_SECONDS):
                self._answered[kind].append(await client.call())
        except (load.WrongAnswerError, OSError) as error:  # a time-out is an OSError
            self.errors.append(f"{kind}: {type(error).__name__}: {error}")
        else:
            idle.append(client)

    def kinds(self) -> dict[str, dict[str, float]]:
        """The calls that were answered, by kind: how many, and milliseconds."""
        return {
            kind: {"calls": len(times), "p50_ms": times[len(times) // 2], "p95_ms": times[int(len(times) * 0.95)]}
            for kind, answered in self._answered.items()
            if (times := sorted(1000 * one.seconds for one in answered))
        }


def _agents(bench: Bench) -> dict[str, Agent]:
    streamed = contenders.llm_url(bench.llm, seconds=1, pieces=PIECES_PER_SECOND)
    tool, both = (contenders.llm_url(bench.llm, kind, 1, PIECES_PER_SECOND) for kind in ("tool", "tools"))
    server = ("forwarded", contenders.downstream(bench.downstreams, "facts")[1])
    return {
        "short": Agent(streamed, settings={"model_capabilities": {"vision": True}}),
        "forwarded": Agent(tool, (server,), servers={"forwarded": {"forward_inbound_auth": True}}),
        "first": Agent(streamed),
        "second": Agent(streamed),
        "orchestrator": Agent(both, peers=("first", "second")),
    }


def _endpoints(gateway: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    short = gateway["short"]
    return {
        "short": short,
        "forwarded": replace(gateway["forwarded"], bearer=BEARER),
        "orchestrator": gateway["orchestrator"],
        "history": short.saying(history=growth.history(_HISTORY)),
        "image": short.saying(images=[growth.image(_IMAGE_KB)]),
    }
