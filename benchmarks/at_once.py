"""Many slow calls at once: how long all take, and what each holds meanwhile.

Measured in the second of two waves, against the server before the first. A server keeps the memory of its first wave:
in the second alone it would seem to need none, and the first also loads what a server loads once.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks import load

if TYPE_CHECKING:
    from benchmarks.contenders import Endpoint

CALLS = 200
WARM_UP_CALLS = 5
_MEMORY_SECONDS = 0.25


@dataclass(frozen=True)
class AtOnce:
    """The time, memory and descriptors of `CALLS` calls in the second wave."""

    seconds: float
    kb_per_call: float
    descriptors_before: int
    descriptors_per_call: float


async def measure(endpoint: Endpoint) -> AtOnce:
    """Make the calls of both waves, and look at the server's processes until all are answered.

    Args:
        endpoint: an agent of a server that has answered few calls.
    """
    process = endpoint.process
    memory, descriptors = process.memory_kb, process.descriptors
    await _wave(endpoint)
    seconds, most_memory, most_descriptors = await _wave(endpoint)
    return AtOnce(seconds, (most_memory - memory) / CALLS, descriptors, (most_descriptors - descriptors) / CALLS)


async def _wave(endpoint: Endpoint) -> tuple[float, int, int]:
    """Return the seconds of a wave, and the most KB and descriptors in it."""
    process = endpoint.process
    most_memory = most_descriptors = 0
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(load.client(endpoint)) for _ in range(CALLS)]
        began = perf_counter()
        calls = asyncio.gather(*(client.call() for client in clients))
        while not calls.done():
            await asyncio.wait({calls}, timeout=_MEMORY_SECONDS)
            most_memory = max(most_memory, process.memory_kb)
            most_descriptors = max(most_descriptors, process.descriptors)
        await calls
    return perf_counter() - began, most_memory, most_descriptors
