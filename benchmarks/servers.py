"""The servers of a run that are measured beside each other, with the same agents each."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from benchmarks import contenders
from benchmarks.project import Agent

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint

FAR_MS = 50
"""How far away slow downstreams are."""


class Servers:
    """What is measured, each started when it is first asked for and ended with the block."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.agents = _agents(bench)
        self._stack = AsyncExitStack()
        self._floor: Endpoint | None = None
        self._gateway: dict[str, Endpoint] = {}
        self._agno: dict[str, Endpoint] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """End them all, for what wants the machine to itself."""
        await self._stack.aclose()
        self._floor, self._gateway, self._agno = None, {}, {}

    async def floor(self) -> Endpoint:
        if self._floor is None:
            self._floor = await self._stack.enter_async_context(contenders.floor(self.bench.folder))
        return self._floor

    async def gateway(self) -> dict[str, Endpoint]:
        """Its agents; see `_agents`."""
        if not self._gateway:
            gateway = contenders.gateway(self.bench.new_folder(), self.agents)
            self._gateway = await self._stack.enter_async_context(gateway)
        return self._gateway

    async def agno(self) -> dict[str, Endpoint]:
        """Those of the same agents that are compared."""
        if not self._agno:
            agents = {name: self.agents[name] for name in ("bare", "tooled", "holding")}
            agno = contenders.agno(self.bench.new_folder(), agents)
            self._agno = await self._stack.enter_async_context(agno)
        return self._agno


def _agents(bench: Bench) -> dict[str, Agent]:
    """By name: parrot (no LLM), bare (no tools), tooled (one downstream, one call), holding (a downstream it does not
    use), far (three slow ones it does not use), slow (an LLM that takes its time, and a tool call)."""
    answer = contenders.llm_url(bench.llm)
    near = contenders.downstream(bench.downstreams, "facts")
    far = tuple(contenders.downstream(bench.downstreams, f"far{i}", FAR_MS) for i in range(3))
    slow = contenders.llm_url(bench.llm, "tool", bench.plan.slow_call_seconds / 2)
    return {
        "parrot": Agent(),
        "bare": Agent(answer),
        "tooled": Agent(contenders.llm_url(bench.llm, "tool"), (near,)),
        "holding": Agent(answer, (near,)),
        "far": Agent(answer, far),
        "slow": Agent(slow, (near,)),
    }
