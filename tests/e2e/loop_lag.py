"""The longest pieces of work on the event loop of a gateway that asks every provider, as JSON: `python -m` in a folder.

A program of its own, because only a fresh process imports the providers' libraries. It counts CPU time of the loop's
thread, so a busy machine changes nothing; waiting is what `slow_proxy` is there for.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.events import Handle
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from pallas_gateway import composition
from tests.support.calling import ask
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, Running, running, until_idle, write_project
from tests.support.provider_gateways import Provider
from tests.support.provider_matrix import GENERIC, GOOGLEOAI, PROVIDERS, WEBSOCKET
from tests.support.providers.provider import scripted_provider
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say
from tests.support.slow_proxy import slow_proxy

REFERENCE_LOOPS = 150_000
"""About 5 ms of CPU on the machine where the limit of 50 ms was set."""
ALL = (*(one for one in PROVIDERS if one is not GOOGLEOAI and not one.logs_in), WEBSOCKET)
"""Google's models by OpenAI's protocol, and by Vertex AI, have the section of the others."""


class Longest:
    """The longest callback of the loop since `take`, in seconds of CPU."""

    def __init__(self) -> None:
        self._seconds = 0.0
        run = Handle._run

        def timed(handle: Handle) -> None:
            began = time.thread_time()
            run(handle)
            self._seconds = max(self._seconds, time.thread_time() - began)

        Handle._run = timed  # type: ignore[assignment, method-assign]

    def take(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def reference() -> float:
    """Seconds of CPU that a fixed piece of work takes here."""
    costs = []
    for _ in range(9):
        began = time.thread_time()
        sum(number % 7 for number in range(REFERENCE_LOOPS))
        costs.append(time.thread_time() - began)
    return min(costs)


def script(request: LlmRequest) -> Turn:
    if request.tools and not request.tool_results:
        return call_tools([("tools__add", {"a": 1, "b": 2})])
    return say("It is 3, " * 20)


@asynccontextmanager
async def serving(path: Path, providers: Sequence[Provider]) -> AsyncGenerator[Running]:
    """A gateway with an agent for each provider, whose server is slow."""
    async with AsyncExitStack() as stack:
        tools = await stack.enter_async_context(stateless_downstream())
        config = {}
        for one in providers:
            llm = await stack.enter_async_context(scripted_provider(one.dialect, script))
            if one.dialect is not None:
                _make_schemas(one)
            url = await stack.enter_async_context(slow_proxy(urlsplit(llm.base_url).port or 0))
            config[one.section or one.name] = {name: value.format(url=url) for name, value in one.config.items()}
            os.environ.update({name: value.format(url=url) for name, value in one.environ.items()})
        agents = {_agent(one): Agent(servers=["tools"], model=one.model) for one in providers}
        servers = {"tools": {"transport": "http", "url": tools.url}}
        async with running(write_project(path, agents, servers=servers, fastagent=config)) as gateway:
            yield gateway
            await until_idle(gateway)


def _agent(provider: Provider) -> str:
    return provider.name.replace(" ", "-")


def _make_schemas(provider: Provider) -> None:
    """A scripted provider checks what it sends by the library's types: not what is measured."""
    assert provider.dialect is not None
    request = LlmRequest(1, {"model": "any"}, {})
    provider.dialect.opening(say("Hi"), request)
    provider.dialect.piece("Hi")
    provider.dialect.calls(call_tools([("tool", {})]), request)
    provider.dialect.ending(say("Hi"), request)


async def measure(folder: Path) -> dict[str, float]:
    """How many times the reference the longest callback took, by what happened."""
    longest, found = Longest(), {}
    async with serving(folder / "first", (GENERIC,)) as gateway:  # imports what every gateway and every call needs
        for _ in range(2):
            await ask(gateway.url(GENERIC.name))
    unit = reference()
    longest.take()
    async with serving(folder / "all", ALL) as gateway:
        found["start"] = longest.take() / unit
        for one in ALL:
            for number in ("first", "second"):
                answer = await ask(gateway.url(_agent(one)))
                assert answer.text.startswith("It is 3"), answer
                found[f"{one} {number}"] = longest.take() / unit
    return found


if __name__ == "__main__":
    composition.use_changes()
    print(json.dumps(asyncio.run(measure(Path(sys.argv[1])))))
