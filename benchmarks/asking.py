"""The cost of a question to the caller: CPU of its call, memory of a call that waits, and size of its state."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from benchmarks import contenders, load
from benchmarks.fakes.downstream import ASKS, ASKS_LONG
from benchmarks.figures import Bounds, figure
from benchmarks.load import Load
from benchmarks.project import Agent

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint
    from benchmarks.servers import Servers

WAITING = 300
TURNS = 10
_CLIENTS = 16
_REQUESTS = 500
_SETTINGS = {"max_open_questions": 10_000, "drain_seconds": 0.1}
_ERAS: tuple[load.Era, ...] = ("initialize", "modern")


async def measure(servers: Servers) -> None:
    """Calls whose downstream asks once, beside a call of a tool that asks nothing; then calls that wait."""
    bench = servers.bench
    asks = contenders.downstream(bench.downstreams, ASKS)
    many = contenders.llm_url(bench.llm, f"tool{TURNS - 1}")
    agents = {
        "tooled": servers.agents["tooled"],
        "asking": Agent(contenders.llm_url(bench.llm, "tool"), (asks,)),
        "turns": Agent(
            many, (contenders.downstream(bench.downstreams, ASKS_LONG),), settings={"loop_repeat_threshold": 0}
        ),
    }
    async with contenders.gateway(bench.new_folder(), agents, settings=_SETTINGS) as gateway:
        await _cpu(bench, gateway["asking"], gateway["tooled"])
        await _state(bench, gateway["turns"])
    await _memory(bench)


async def _cpu(bench: Bench, asking: Endpoint, tooled: Endpoint) -> None:
    """A question costs its call a request of the client and one to the downstream, which are not the question's."""
    plan = bench.plan
    loads = Load(_CLIENTS, plan.seconds, plan.warm_up_seconds, era="modern", can_be_asked=True)
    samples = await bench.rounds("asking", {"asking": asking, "tooled": tooled}, loads)
    requests = [await _cpu_ms_of_a_request(tooled) for _ in range(plan.rounds)]
    rounds = zip(samples["asking"], samples["tooled"], requests, strict=True)
    measured = figure([asked.cpu_ms - plain.cpu_ms - 2 * request for asked, plain, request in rounds])
    bench.results["asking"] = {"request_cpu_ms": requests}
    title = "a question, CPU of its call less a plain tool call and two requests (`tools/list`)"
    bench.check("asking", title, measured, Bounds(3, 2, at_least=False), "ms")


async def _cpu_ms_of_a_request(endpoint: Endpoint) -> float:
    async with load.client(endpoint, era="modern") as one:
        before = endpoint.process.cpu_seconds
        for _ in range(_REQUESTS):
            await one.list_tools()
        return 1000 * (endpoint.process.cpu_seconds - before) / _REQUESTS


async def _state(bench: Bench, endpoint: Endpoint) -> None:
    async with load.client(endpoint, era="modern", can_be_asked=True) as one:
        await one.call()
    title = f"state of a call that asks in each of its {TURNS} turns, with tool results of 2,000 characters"
    bench.check("asking/state", title, figure([one.largest_state / 1024]), Bounds(64, 32, at_least=False), "KB")


async def _memory(bench: Bench) -> None:
    """Measure each kind of question in each era, at a gateway whose memory no earlier calls have left free."""
    asks, facts = (contenders.downstream(bench.downstreams, name) for name in (ASKS, "facts"))
    agents = {
        "form": Agent(contenders.llm_url(bench.llm, "tool"), (asks,)),
        "approval": Agent(contenders.llm_url(bench.llm, "tool"), (facts,), settings={"approve": ["*/*"]}),
        "human-input": Agent(contenders.llm_url(bench.llm, "tools"), (facts,), human_input=True),
    }
    async with (
        contenders.gateway(bench.new_folder(), agents, settings=_SETTINGS) as gateway,
        AsyncExitStack() as stack,
    ):
        for era in _ERAS:
            for kind, endpoint in gateway.items():
                held = await _held_kb(endpoint, era, stack)
                title = f"call that waits for an answer ({era}, {kind}), memory"
                bench.check(
                    f"asking/memory/{era}/{kind}", title, figure([held]), Bounds(250, 150, at_least=False), "KB"
                )


async def _held_kb(endpoint: Endpoint, era: load.Era, stack: AsyncExitStack) -> float:
    """Return the KB that each waiting call holds; the calls wait until the stack ends."""

    async def client() -> load.Client:
        return await stack.enter_async_context(load.client(endpoint, era=era, can_be_asked=True))

    async def ask(calls: int) -> None:
        one = await client()
        for _ in range(calls):
            await one.leave_asked()
            if era == "initialize":  # the response of the call is still open
                one = await client()

    await ask(_CLIENTS)  # loads what a process loads once
    before = endpoint.process.memory_kb
    await ask(WAITING)
    return (endpoint.process.memory_kb - before) / WAITING
