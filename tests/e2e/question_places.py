"""Gateways whose downstreams ask: of one process, of two workers, and two replicas.

Calls come to one process, and answers to another one where there is one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

import httpx

from tests.e2e.fleet import WorkerManager
from tests.support.asking import Asking, asking_downstream
from tests.support.asking_gateways import HUMAN
from tests.support.commands import PATIENT_GATEWAY, READY_SECONDS, Program, started
from tests.support.exposition import Exposition
from tests.support.gateway import Agent, Project, Running, running, write_project
from tests.support.patient_gateway import LATE_REQUESTS
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, hang, say, scripted_llm
from tests.support.waiting import Gate, eventually

type Change = Callable[[dict[str, Any]], object]

AGENTS = {
    "user": Agent(["asking", "older"], decorator="human_input=True", settings={"approve": ["asking/wipe"]}),
    "boss": Agent(["user"], settings={"depends_on": ["user"]}),
}


@dataclass
class World:
    """A project, the model of its agents and their downstreams, one of each era."""

    project: Project
    llm: ScriptedLlm
    downstreams: dict[str, Asking]
    gate: Gate
    """Where the model is held after an answer, if the message has `held`."""

    @property
    def ran(self) -> Counter[str]:
        """How often each tool was called."""
        return Counter(f"{name}/{call.tool}" for name, one in self.downstreams.items() for call in one.recorder.calls())

    def turns(self, message: str) -> int:
        """How often a model was asked by the calls of this message."""
        return len([one for one in self.llm.requests if one.last_user_text.endswith(message)])


@asynccontextmanager
async def world(path: Path, **gateway: Any) -> AsyncGenerator[World]:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if request.tool_results:
            then = say(" | ".join(request.tool_results.values()))
            return hang(gate, then) if " held " in request.last_user_text else then
        peer, _, message = request.last_user_text.partition(": ")
        if message:
            return call_tools([(f"{peer}__send_message", {"message": message})])
        server, _, tool = peer.split()[0].partition("/")
        return call_tools([(f"{server}__{tool}", {}) if tool else HUMAN])

    async with (
        scripted_llm(script) as llm,
        asking_downstream("modern") as asking,
        asking_downstream("initialize") as older,
    ):
        downstreams = {"asking": asking, "older": older}
        project = write_project(
            path / "project",
            AGENTS,
            llm_url=llm.base_url,
            servers={name: {"url": one.url} for name, one in downstreams.items()},
            gateway={
                "database": f"sqlite:///{path}/threads.db",
                "state_keys": ["k" * 32],
                "openai_api": True,
                **gateway,
            },
        )
        yield World(project, llm, downstreams, gate)
        gate.open()


@dataclass
class Place:
    """A gateway, or two; as it is here, of one process."""

    world: World
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    served: Running | None = None

    @property
    def calls_at(self) -> str:
        """The address of the process that takes the calls."""
        assert self.served is not None
        return self.served.base_url

    @property
    def answers_at(self) -> str:
        """The address of the process that takes the answers."""
        return self.calls_at

    def calls(self) -> AbstractContextManager[object]:
        """Connections that are opened in the block come to the process that takes calls."""
        return nullcontext()

    def answers(self) -> AbstractContextManager[object]:
        """Connections that are opened in the block come to the process that takes answers."""
        return nullcontext()

    async def start(self) -> None:
        self.served = await self.stack.enter_async_context(running(self.world.project))

    async def reload(self, change: Change) -> None:
        self.world.project.edit(change)
        assert self.served is not None
        await self.served.reload()

    async def drain(self) -> None:
        """Stop the process of the calls by a drain; another one is started in its place."""
        await self.stack.aclose()
        await self.start()

    async def kill(self) -> None:
        """Kill the process of the calls."""
        raise NotImplementedError

    async def metrics(self) -> list[Exposition]:
        """Those of each gateway that runs."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            urls = {self.calls_at, self.answers_at} - {""}
            return [Exposition((await http.get(f"{url}/metrics")).raise_for_status().text) for url in urls]


@dataclass
class TwoWorkers(Place):
    """`serve --workers 2`."""

    manager: WorkerManager | None = None
    workers: tuple[int, ...] = ()

    @property
    @override
    def calls_at(self) -> str:
        return self._manager.base_url if self.workers else ""

    @override
    def calls(self) -> AbstractContextManager[None]:
        return self._manager.only(self.workers[0])

    @override
    def answers(self) -> AbstractContextManager[None]:
        return self._manager.only(self.workers[1])

    @override
    async def start(self) -> None:
        """Start both workers, or wait for the one in place of one that was killed."""
        if self.manager is None:
            program = _program(self.world, self.stack, "--workers", "2")
            await asyncio.to_thread(program.wait_for, "Try:")
            self.manager = WorkerManager(program, self.world.project.path, self.world.llm, self.world.gate, {})
        manager = self.manager
        await eventually(lambda: len(manager.pids) == 2, 60, what="two workers")
        self.workers = tuple(sorted(manager.pids))
        for pid in self.workers:
            with manager.only(pid):
                await eventually(self._is_ready, 60, what="the agents of a worker")

    async def _is_ready(self) -> bool:
        try:
            return (await self._manager.get("/readyz")).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    @property
    def _manager(self) -> WorkerManager:
        assert self.manager is not None
        return self.manager

    @override
    async def reload(self, change: Change) -> None:
        manager = self._manager
        before = await manager.metric("pallas_config_reloads_total", outcome="ok")
        self.world.project.edit(change)
        manager.program.signal(signal.SIGHUP)

        async def done() -> bool:
            return await manager.metric("pallas_config_reloads_total", outcome="ok") == before + len(self.workers)

        await eventually(done, 60, what="a reload in each worker")

    @override
    async def kill(self) -> None:
        os.kill(self.workers[0], signal.SIGKILL)

    @override
    async def drain(self) -> None:
        """Stop the whole gateway."""
        self._manager.program.signal(signal.SIGTERM)
        ran = await asyncio.to_thread(self._manager.program.end, READY_SECONDS)
        assert ran.code == 0
        self.workers = ()


@dataclass
class Replicas(Place):
    """Two gateways with the same keys and the same database."""

    first: AsyncExitStack = field(default_factory=AsyncExitStack)
    calls_to: str = ""
    program: Program | None = None

    @property
    @override
    def calls_at(self) -> str:
        return self.calls_to

    @property
    @override
    def answers_at(self) -> str:
        return super().calls_at

    @override
    async def start(self) -> None:
        await self.stack.enter_async_context(self.first)
        await super().start()
        self.calls_to = (await self.first.enter_async_context(running(self.world.project))).base_url

    @override
    async def drain(self) -> None:
        await self.first.aclose()
        self.calls_to = ""


@dataclass
class ReplicaToKill(Replicas):
    """Two replicas, of which the one that takes the calls is a process of its own."""

    @override
    async def start(self) -> None:
        await Place.start(self)
        self.program = _program(self.world, self.stack)
        await asyncio.to_thread(self.program.wait_for, "Try:")
        self.calls_to = self.program.url.replace("localhost", "127.0.0.1")

    @override
    async def kill(self) -> None:
        assert self.program is not None
        self.program.kill()
        self.calls_to = ""


def _program(world: World, stack: AsyncExitStack, *arguments: str) -> Program:
    environ = {"PALLAS_LOG_FILE": str(world.project.path / "pallas.log"), "PALLAS_LOG_STDERR": "1"}
    environ[LATE_REQUESTS] = "1"  # of clients whose questions a stop has ended
    return stack.enter_context(
        started(["serve", *arguments], world.project.path, command=PATIENT_GATEWAY, environ=environ)
    )
