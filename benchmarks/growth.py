"""How a call's cost grows with agents, downstreams, history, images, the length of the answer, and concurrent calls."""

from __future__ import annotations

import base64
import random
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks import contenders, load, long_calls, threads
from benchmarks.figures import Bounds, figure
from benchmarks.load import Load
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from benchmarks.bench import Bench
    from benchmarks.contenders import Endpoint

AGENTS = (1, 5, 10, 20, 100)
DOWNSTREAMS = (0, 1, 2, 4, 8)
HISTORY = (0, 1, 10, 100, 1000)
IMAGE_KB = (0, 16, 128, 1024, 4096)
CLIENTS = (1, 4, 16, 64, 200)
PIECES = (8, 50, 200, 800)
"""A piece of a streamed answer is about a token."""
ANSWER_SECONDS = 4.0
"""How long an answer of any number of pieces takes: each comes by itself, as models send them."""
ANSWERED_AT_ONCE = 32
_ENTRY = "What was said before, in about as many words as people use when they ask a question or answer one. " * 3


async def measure_all(bench: Bench) -> None:
    """Every curve; each point is the gateway asked for the plan's time."""
    await bench.run(CURVES, bench)


async def _agents(bench: Bench) -> None:
    points = bench.results["growth"]["agents"] = []
    for count in AGENTS:
        agents = {f"agent{i}": Agent(contenders.llm_url(bench.llm)) for i in range(count)}
        async with contenders.gateway(bench.new_folder(), agents) as gateway:
            last = gateway[f"agent{count - 1}"]
            started = {"seconds_to_ready": last.process.seconds_to_ready}
            point = await _point(bench, "agents", count, last)
            points.append({**point, **started, "memory_mb": last.process.memory_kb / 1024})


async def _downstreams(bench: Bench) -> None:
    """Agents that do not use what they hold: what connections alone cost."""
    answer = contenders.llm_url(bench.llm)
    servers = [contenders.downstream(bench.downstreams, f"held{i}") for i in range(max(DOWNSTREAMS))]
    agents = {f"holds{count}": Agent(answer, tuple(servers[:count])) for count in DOWNSTREAMS}
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        await _one_by_one(bench, "downstreams", {count: gateway[f"holds{count}"] for count in DOWNSTREAMS})


async def _history(bench: Bench) -> None:
    async with _bare(bench) as bare:
        cpu_ms = await _one_by_one(bench, "history", {count: bare.saying(history=history(count)) for count in HISTORY})
    title = f"history of {HISTORY[-1]:,} entries, CPU over that of none"
    measured = figure([cpu_ms[HISTORY[-1]] - cpu_ms[0]])
    bench.check("growth/history", title, measured, Bounds(8, 8, at_least=False), "ms")


async def _images(bench: Bench) -> None:
    async with _bare(bench) as bare:
        asking = {size: bare.saying(images=[image(size)]) if size else bare for size in IMAGE_KB}
        cpu_ms = await _one_by_one(bench, "images", asking)
    for size, bounds in ((1024, Bounds(3, 3, at_least=False)), (4096, Bounds(20, 15, at_least=False))):
        title = f"image of {size // 1024} MB, CPU over that of none"
        bench.check(f"growth/images/{size}", title, figure([cpu_ms[size] - cpu_ms[0]]), bounds, "ms")


async def _pieces(bench: Bench) -> None:
    says = {f"says{count}": ("answer", count) for count in PIECES} | {"again": ("again", PIECES[-1])}
    agents = {
        name: Agent(contenders.llm_url(bench.llm, kind, seconds=ANSWER_SECONDS, pieces=count))
        for name, (kind, count) in says.items()
    }
    how = Load(ANSWERED_AT_ONCE, seconds=2 * ANSWER_SECONDS, warm_up_seconds=ANSWER_SECONDS)
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        points = [await _point(bench, "pieces", count, gateway[f"says{count}"], how) for count in PIECES]
        again = await _point(bench, "equal pieces", PIECES[-1], gateway["again"], how)
    bench.results["growth"]["pieces"] = points
    few = points[0]
    for id_, many, title in (("pieces", points[-1], "streamed"), ("equal-pieces", again, "streamed, equal")):
        each = 1000 * (many["cpu_ms"] - few["cpu_ms"]) / (many["at"] - few["at"])
        bench.check(f"growth/{id_}", f"CPU of a {title} piece", figure([each]), Bounds(15, 15, at_least=False), "µs")


async def _clients(bench: Bench) -> None:
    async with _bare(bench) as bare:
        points = [await _point(bench, "clients", count, bare, bench.load(count)) for count in CLIENTS]
        bench.results["growth"]["clients"] = points


CURVES = {
    "agents": _agents,
    "downstreams": _downstreams,
    "history": _history,
    "images": _images,
    "pieces": _pieces,
    "clients": _clients,
    "threads": threads.measure,
    "long-calls": long_calls.measure,
}


@asynccontextmanager
async def _bare(bench: Bench) -> AsyncIterator[Endpoint]:
    sees = {"model_capabilities": {"vision": True}}
    agents = {"bare": Agent(contenders.llm_url(bench.llm), settings=sees)}
    async with contenders.gateway(bench.new_folder(), agents) as gateway:
        yield gateway["bare"]


async def _one_by_one(bench: Bench, curve: str, endpoints: Mapping[int, Endpoint]) -> dict[int, float]:
    """Return the CPU of a call at each point, in ms."""
    points = [await _point(bench, curve, at, endpoint) for at, endpoint in endpoints.items()]
    bench.results["growth"][curve] = points
    return {point["at"]: point["cpu_ms"] for point in points}


async def _point(bench: Bench, curve: str, at: int, endpoint: Endpoint, how: Load | None = None) -> dict[str, Any]:
    sample = await load.measure(endpoint, how or bench.load(1))
    bench.say(f"growth: {curve} {at}: {sample.p50_ms:.1f} ms, CPU {sample.cpu_ms:.1f} ms")
    return {"at": at, **asdict(sample)}


def history(entries: int) -> list[dict[str, str]]:
    """A conversation of so many entries, 300 characters each."""
    return [{"role": ("user", "assistant")[i % 2], "content": _ENTRY} for i in range(entries)]


def image(kilobytes: int) -> dict[str, str]:
    """A PNG file of so many KB."""
    data = b"\x89PNG\r\n\x1a\n" + random.Random(kilobytes).randbytes(kilobytes * 1024)  # noqa: S311  no secret
    return {"mime_type": "image/png", "data": base64.b64encode(data).decode()}
