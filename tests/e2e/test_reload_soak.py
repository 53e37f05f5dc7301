"""Two hundred reloads under load: all that they took is given back. Run by `make soak`, which prints the figures."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest
from fast_agent.core.fastagent import FastAgent

from tests.support.calling import ask
from tests.support.gateway import Agent, Running, module_source, running, until_idle, write_project
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.scripted_llm import echo, scripted_llm

AGENTS = [f"agent{number}" for number in range(20)]
CHANGES, FLICKERS = AGENTS[0], AGENTS[1]
WARM_UP, RELOADS = 20, 200
MOST_GROWTH_MB = 15
"""In 200 reloads. A version that stayed would take half a megabyte each time."""
LONGEST_BLOCK_SECONDS = 0.5
POOLS = ("AnyIO worker", "asyncio_", "ThreadPoolExecutor")
"""Threads that are kept for a next piece of work, as many as there were pieces at once."""


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_two_hundred_reloads_under_load_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_llm(echo) as llm:
        project = write_project(tmp_path, {name: Agent() for name in AGENTS}, llm_url=llm.base_url)
        entry = {"module": f"{project.package}.{FLICKERS}"}
        async with running(project) as served:

            async def reload(number: int) -> float:
                project.write_module(CHANGES, f"{module_source(CHANGES, Agent())}\nNUMBER = {number}\n")
                project.edit(lambda document: document["agents"].pop(FLICKERS, None))
                if number % 2:
                    project.edit(lambda document: document["agents"].update({FLICKERS: entry}))
                began = monotonic()
                await served.reload()
                return monotonic() - began

            async def settled() -> Taken:
                await until_idle(served)
                llm.requests.clear()
                caplog.clear()
                taken()  # looking at every object for the first time takes memory itself
                return taken()

            async with watching_the_loop() as loop:
                quiet = sorted([await reload(number) for number in range(WARM_UP)])
            async with under_load(served, AGENTS[2:6]):
                for number in range(WARM_UP):
                    await reload(number)
            before, open_before = await settled(), snapshot()
            async with under_load(served, AGENTS[2:6]) as load:
                durations = sorted([await reload(number) for number in range(RELOADS)])
            await assert_nothing_left(open_before)
            after = await settled()
            assert served.metric("pallas_config_reloads_total", outcome="ok") == 2 * WARM_UP + RELOADS

    with capsys.disabled():
        print(f"\nbefore {before}\nafter  {after}\n{load.calls} calls during {RELOADS} reloads")
        print(f"under load: {spread(durations)}; alone: {spread(quiet)}, the loop blocked {loop.longest:.3f} s")
    assert after.threads <= before.threads
    assert after.modules <= before.modules
    assert after.fast_agents <= len(AGENTS)
    assert after.memory_mb - before.memory_mb < MOST_GROWTH_MB
    assert loop.longest < LONGEST_BLOCK_SECONDS
    assert load.went_back == []


@dataclass(frozen=True)
class Taken:
    memory_mb: float
    threads: int
    modules: int
    fast_agents: int


def spread(durations: list[float]) -> str:
    return f"a reload takes {durations[len(durations) // 2]:.2f} s, at most {durations[-1]:.2f} s"


def taken() -> Taken:
    for _ in range(3):
        gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed and not given back is no growth
    pages = int(Path("/proc/self/statm").read_text().split()[1])  # resident; see proc(5)
    fast_agents = sum(isinstance(one, FastAgent) for one in gc.get_objects())
    threads = sum(not thread.name.startswith(POOLS) for thread in threading.enumerate())
    return Taken(pages * 4096 / 1e6, threads, len(sys.modules), fast_agents)


class under_load:  # noqa: N801  used as a function
    """Calls of some agents all the time; their counters are looked at after each."""

    def __init__(self, served: Running, names: list[str]) -> None:
        self._served, self._names = served, names
        self._over = asyncio.Event()
        self.calls = 0
        self.went_back: list[str] = []

    async def __aenter__(self) -> under_load:
        self._tasks = [asyncio.create_task(self._call(name)) for name in self._names]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)

    async def _call(self, name: str) -> None:
        latest = 0.0
        while not self._over.is_set():
            answer = await ask(self._served.url(name), f"call {self.calls}")
            assert not answer.is_error, answer.text
            self.calls += 1
            count = self._served.metric("pallas_send_message_total", agent=name, outcome="ok")
            if count <= latest:
                self.went_back.append(name)
            latest = count


class watching_the_loop:  # noqa: N801  used as a function
    """How long the event loop let a timer wait at most."""

    longest = 0.0

    async def __aenter__(self) -> watching_the_loop:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _look(self) -> None:
        ticks: Callable[[], float] = asyncio.get_running_loop().time
        while True:
            began = ticks()
            await asyncio.sleep(0.005)
            self.longest = max(self.longest, ticks() - began - 0.005)
