"""Large and long calls, small calls during them, the first text of an answer, and `/metrics` of many agents."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks import contenders, growth, load
from benchmarks.fakes.downstream import LONG
from benchmarks.figures import Bounds, difference, figure, ratio
from benchmarks.processes import HOST
from benchmarks.project import Agent
from benchmarks.wire import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint
    from benchmarks.servers import Servers

AGENTS = 100
ROUNDS = (10, 30, 50)
CLIENTS = 16
_CALLS_PER_SECOND = 40
"""Small calls of one client in a round, roughly; the number of calls is fixed, so that their tail is comparable."""
_SENT_AT = re.compile(rb"sent at (\d+\.\d+);")
_IMAGE_KB = 4096


async def metrics(servers: Servers) -> None:
    """The start of many agents, and probes while `/metrics` is scraped without a pause."""
    await servers.end()
    bench = servers.bench
    agents = {f"agent{i}": Agent(contenders.llm_url(bench.llm)) for i in range(AGENTS)}
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        process = gateway["agent0"].process
        title = f"time to ready, {AGENTS} agents"
        bench.check("metrics/ready", title, figure([process.seconds_to_ready]), Bounds(5, 4, at_least=False), "s")
        probing, scraping = Reader(process.port, "/livez"), Reader(process.port, "/metrics")
        alone, beside = [], []
        for _ in range(bench.plan.rounds):
            alone.append(await p99_of(bench, probing.read))
            async with again_and_again(scraping.read):
                beside.append(await p99_of(bench, probing.read))
    title = f"p99 of `/livez` while `/metrics` of {AGENTS} agents is scraped, over that without"
    bench.check("metrics/probes", title, difference(beside, alone), Bounds(10, 5, at_least=False), "ms")


async def rounds(servers: Servers) -> None:
    """Calls with many rounds of a tool with a result of 4 KB: the cost of late rounds by that of early ones."""
    bench = servers.bench
    server = contenders.downstream(bench.downstreams, LONG)
    most = {"max_iterations": 2 * ROUNDS[-1]}
    agents = {
        f"rounds{count}": Agent(contenders.llm_url(bench.llm, f"tool{count}"), (server,), most) for count in ROUNDS
    }
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        endpoints = {f"{count} rounds": gateway[f"rounds{count}"] for count in ROUNDS}
        samples = await bench.rounds("rounds", endpoints, bench.load(1))
    few, some, many = ([one.cpu_ms for one in samples[f"{count} rounds"]] for count in ROUNDS)
    early, late = _each(some, few, ROUNDS[1] - ROUNDS[0]), _each(many, some, ROUNDS[2] - ROUNDS[1])
    title = "tool rounds with results of 4 KB, CPU per round of the last 20 of 50 / of the 20 before"
    bench.check("rounds", title, ratio(late, early), Bounds(1.2, 1.1, at_least=False))


async def images(servers: Servers) -> None:
    """Small calls during large images: of 16 clients, and of one, which has the process for itself otherwise."""
    bench = servers.bench
    sees = {"model_capabilities": {"vision": True}}
    agents = {"bare": Agent(contenders.llm_url(bench.llm), settings=sees)}
    size = f"{_IMAGE_KB // 1024} MB"
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        alone, beside = await _beside_images(bench, gateway["bare"], CLIENTS)
        title = f"p99 of small calls of {CLIENTS} clients while another sends images of {size} / alone"
        bench.check("images/beside", title, ratio(beside, alone), Bounds(1.5, 1.2, at_least=False))
        alone, beside = await _beside_images(bench, gateway["bare"], 1)
        title = f"p99 of small calls of one client while another sends images of {size}, over that alone"
        bench.check("images/beside-one", title, difference(beside, alone), Bounds(30, 10, at_least=False), "ms")


async def _beside_images(bench: Bench, small: Endpoint, clients: int) -> tuple[list[float], list[float]]:
    """The p99 of small calls in each round, in milliseconds: alone, and while another client sends images."""
    large = small.saying(images=[growth.image(_IMAGE_KB)])
    alone, beside = [], []
    async with AsyncExitStack() as stack:
        calling = [await stack.enter_async_context(load.client(small)) for _ in range(clients)]
        sending = await stack.enter_async_context(load.client(large))
        takes = [partial(milliseconds, client) for client in calling]
        for _ in range(bench.plan.rounds):
            alone.append(await p99_of(bench, *takes))
            async with again_and_again(sending.call):
                beside.append(await p99_of(bench, *takes))
    return alone, beside


async def milliseconds(client: load.Client) -> float:
    return 1000 * (await client.call()).seconds


async def first_text(servers: Servers) -> None:
    """The time from the model's first text to its arrival at the client, both by the machine's monotonic clock."""
    bench = servers.bench
    agents = {"timed": Agent(contenders.llm_url(bench.llm, "clock"))}
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        taken = [await _first_text(gateway["timed"]) for _ in range(_calls(bench))]
    taken.sort()
    for name, at, bounds in (
        ("p50", 0.5, Bounds(3, 2, at_least=False)),
        ("p99", 0.99, Bounds(15, 10, at_least=False)),
    ):
        measured = figure([taken[int(len(taken) * at)]])
        bench.check(f"first-text/{name}", f"first text at the client after the model's, {name}", measured, bounds, "ms")


async def _first_text(endpoint: Endpoint) -> float:
    """Milliseconds."""
    async with load.client(endpoint, era="modern", with_progress=True, live=True) as client:
        reader, writer = await asyncio.open_connection(HOST, endpoint.process.port)
        try:
            writer.write(client.call_bytes)
            received = b""
            while (found := _SENT_AT.search(received)) is None:
                if not (piece := await reader.read(65_536)):
                    raise load.WrongAnswerError(received.decode(errors="replace")[:2000])
                received += piece
            return 1000 * (perf_counter() - float(found[1]))
        finally:
            writer.close()


class Reader:
    """Reads one page of a server, on one connection for as long as the server keeps it."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._request = f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode()
        self._connection: Connection | None = None

    async def read(self) -> float:
        """Milliseconds."""
        if self._connection is None or self._connection.is_last:
            loop = asyncio.get_running_loop()
            _, self._connection = await loop.create_connection(Connection, HOST, self._port)
        began = perf_counter()
        response = await self._connection.exchange(self._request)
        if response.status != HTTPStatus.OK:
            raise load.WrongAnswerError(response.head.decode())
        return 1000 * (perf_counter() - began)


def _calls(bench: Bench) -> int:
    return max(50, int(_CALLS_PER_SECOND * bench.plan.seconds))


async def p99_of(bench: Bench, *takes: Callable[[], Awaitable[float]]) -> float:
    """The p99 of what each of these takes at the same time, again and again."""

    async def series(take: Callable[[], Awaitable[float]]) -> list[float]:
        return [await take() for _ in range(_calls(bench))]

    taken = sorted(chain.from_iterable(await asyncio.gather(*map(series, takes))))
    return taken[int(len(taken) * 0.99)]


@asynccontextmanager
async def again_and_again(work: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Do one piece of work after the other during the block, each to its end."""
    ends = asyncio.Event()

    async def repeat() -> None:
        while not ends.is_set():
            await work()

    async with asyncio.TaskGroup() as working:
        working.create_task(repeat())
        try:
            yield
        finally:
            ends.set()


def _each(more: Sequence[float], less: Sequence[float], count: int) -> list[float]:
    return [(of_more - of_less) / count for of_more, of_less in zip(more, less, strict=True)]
