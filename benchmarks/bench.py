"""One run: how long, where its files go, the stand-ins it shares, and what it has measured."""

from __future__ import annotations

import asyncio
import itertools
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx

from benchmarks import contenders, load
from benchmarks.figures import figure
from benchmarks.load import Load, Sample
from benchmarks.processes import HOST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
    from pathlib import Path

    from benchmarks.contenders import Endpoint
    from benchmarks.figures import Bounds, Figure
    from benchmarks.processes import Process

COUNTED_CALLS = 10
SETTLE_SECONDS = 0.5


@dataclass(frozen=True)
class Plan:
    """How long things take."""

    name: str
    rounds: int
    seconds: float
    warm_up_seconds: float
    starts: int
    memory_calls: int
    slow_call_seconds: float
    mixed_seconds: float
    fair_call_seconds: float


SHORT = Plan("short", 2, 1.5, 0.5, 1, 100, 4, 12, 0.5)
FULL = Plan("full", 5, 4.0, 1.0, 2, 500, 10, 300, 1)


@dataclass
class Bench:
    """A run in progress. `results` is what will be written; `only` what is to be measured, all if empty."""

    plan: Plan
    folder: Path
    llm: Process
    downstreams: Process
    only: Collection[str] = ()
    results: dict[str, Any] = field(default_factory=lambda: {"checks": [], "scenarios": {}, "growth": {}})
    _folders: itertools.count[int] = field(default_factory=itertools.count)
    _began: float = field(default_factory=monotonic)

    def new_folder(self) -> Path:
        """A folder nobody has used."""
        folder = self.folder / str(next(self._folders))
        folder.mkdir()
        return folder / "project"

    def load(self, clients: int = 16) -> Load:
        """The plan's load by so many clients."""
        return Load(clients, self.plan.seconds, self.plan.warm_up_seconds)

    async def run[T](self, scenarios: Mapping[str, Callable[[T], Awaitable[None]]], of: T) -> None:
        """Measure the scenarios that are wanted, in their order."""
        for name, measure in scenarios.items():
            if not self.only or name in self.only:
                self.say(f"-- {name}")
                await measure(of)

    async def rounds(
        self, scenario: str, endpoints: Mapping[str, Endpoint], loads: Load | None = None
    ) -> dict[str, list[Sample]]:
        """Measure every contender once, then all again, and so on; kept in the results as `scenario`."""
        samples: dict[str, list[Sample]] = {name: [] for name in endpoints}
        for _ in range(self.plan.rounds):
            for name, endpoint in endpoints.items():
                samples[name].append(await load.measure(endpoint, loads or self.load()))
        self.keep(scenario, samples)
        return samples

    def keep(self, scenario: str, samples: Mapping[str, list[Sample]]) -> None:
        """Put a scenario's samples into the results."""
        self.results["scenarios"][scenario] = {
            name: [asdict(sample) for sample in taken] for name, taken in samples.items()
        }
        for name, taken in samples.items():
            rate = figure([sample.calls_per_second for sample in taken]).median
            p50_ms = figure([sample.p50_ms for sample in taken]).median
            cpu_ms = figure([sample.cpu_ms for sample in taken]).median
            self.say(f"{scenario}: {name}: {rate:.1f}/s, {p50_ms:.1f} ms, CPU {cpu_ms:.1f} ms")

    def check(self, identity: str, title: str, measured: Figure | None, bounds: Bounds, unit: str = "x") -> None:
        """Put one line of the table into the results."""
        verdict = bounds.verdict(measured.median if measured else None)
        row = {"id": identity, "title": title, "unit": unit, "measured": asdict(measured) if measured else None}
        self.results["checks"].append({**row, **asdict(bounds), "verdict": verdict.value})
        self.say(f"{title}: {f'{measured.median:.2f} {unit}' if measured else '-'} ({verdict.value})")

    def say(self, line: str) -> None:
        """Tell the operator how far the run is."""
        sys.stderr.write(f"[{monotonic() - self._began:5.0f} s] {line}\n")

    async def downstream_counts(self, *, anew: bool = False) -> dict[str, dict[str, int]]:
        """Requests by downstream and JSON-RPC method since they were last counted anew."""
        counts: dict[str, dict[str, int]] = await _asked(self.downstreams, "POST" if anew else "GET", "/counts")
        return counts

    async def requests_per_call(self, endpoint: Endpoint) -> dict[str, float]:
        """Requests of each JSON-RPC method that the downstream `facts` sees for a call, once everything is warm."""
        await load.answers(endpoint, 3)
        await asyncio.sleep(SETTLE_SECONDS)  # what follows a call, like the end of a session
        await self.downstream_counts(anew=True)
        await load.answers(endpoint, COUNTED_CALLS)
        await asyncio.sleep(SETTLE_SECONDS)
        counts = (await self.downstream_counts()).get("facts", {})
        return {method: count / COUNTED_CALLS for method, count in counts.items()}

    async def llm_connections(self) -> int:
        """Connections on which the scripted LLM has been asked for an answer so far."""
        counted: dict[str, int] = await _asked(self.llm, "GET", "/connections")
        return counted["connections"]


async def _asked(process: Process, method: str, path: str) -> Any:
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:  # noqa: S501  plain HTTP on loopback
        return (await http.request(method, f"http://{HOST}:{process.port}{path}")).json()


@asynccontextmanager
async def bench(plan: Plan, folder: Path, only: Collection[str] = ()) -> AsyncIterator[Bench]:
    """A run with its stand-ins."""
    async with AsyncExitStack() as stack:
        llm = await stack.enter_async_context(contenders.llm(folder))
        downstreams = await stack.enter_async_context(contenders.downstreams(folder))
        yield Bench(plan, folder, llm, downstreams, only)
