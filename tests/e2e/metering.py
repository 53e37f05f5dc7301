"""A gateway that goes through all it has metrics for, and what its scraper saw of it, in either listener mode."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastmcp.exceptions import PromptError

from pallas_gateway.config.loading.loader import Overrides
from tests.support.calling import ask, health
from tests.support.downstreams import StatelessDownstream, stateless_downstream
from tests.support.exposition import Exposition
from tests.support.gateway import Agent, Running, running, until_idle, write_project
from tests.support.guarded import STATIC_KEY, static_key
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, Usage, call_tools, fail, hang, say, scripted_llm
from tests.support.waiting import Gate, eventually
from tests.support.watching import calling, speaker, turns_so_far

CLERK = """
from fast_agent import FastAgent
from fast_agent.agents import McpAgent

fast = FastAgent("clerk", parse_cli_args=False)


class Clerk(McpAgent):
    async def generate_impl(self, messages, request_params=None, tools=None):
        kind, _, name = messages[-1].all_text().partition(" ")
        if kind == "prompt":
            await self.get_prompt(name, {"name": "Ann"}, server_name="tools")
        if kind == "resource":
            await self.get_resource(name, server_name="tools")
        return await super().generate_impl(messages, request_params, tools)


@fast.custom(Clerk, name="clerk", model="passthrough", servers=["tools"], default=True)
async def clerk(): ...
"""
"""An agent that gets the prompt or the resource its message names."""

WORKER_USAGE = Usage(prompt=100, completion=20, cached=40, written=10, reasoning=7)
PRICES = {"generic.test-model": {"input": 2, "output": 10}}
PORTS = ("registry", "worker", "clerk", "boss", "lost", "broken")
TODAY = "notes://today"


@dataclass(frozen=True)
class Metered:
    """`/metrics` of each listener after one and after two rounds of everything, and the ports by who listens there."""

    before: Mapping[str, Exposition]
    after: Mapping[str, Exposition]
    openmetrics: str
    ports: Mapping[str, int]


async def metered(path: Path, *, per_port: bool) -> Metered:
    """Serve the project in `path`, go through everything twice and scrape every listener after each time."""
    async with rehearsed(path, per_port=per_port) as stage:
        expositions = []
        for _ in range(2):
            await stage.go_through_everything()
            await until_idle(stage.served)
            expositions.append({name: Exposition(await stage.scrape(name)) for name in stage.listeners})
        openmetrics = await stage.scrape("registry", accept="application/openmetrics-text; version=1.0.0")
        return Metered(expositions[0], expositions[1], openmetrics, stage.ports)


@dataclass(frozen=True)
class Stage:
    """A gateway with an agent for each kind of trouble."""

    served: Running
    gate: Gate
    ports: Mapping[str, int]
    per_port: bool

    @property
    def listeners(self) -> tuple[str, ...]:
        """Where `/metrics` is to be found."""
        return PORTS if self.per_port else ("registry",)

    async def scrape(self, listener: str, *, accept: str = "") -> str:
        """`/metrics` of one listener."""
        port = self.ports[listener] if self.per_port else self.served.gateway.addresses.registry_port
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.get(f"http://127.0.0.1:{port}/metrics", headers={"accept": accept})
        return answer.raise_for_status().text

    def url(self, agent: str) -> str:
        """An agent's MCP endpoint."""
        return f"http://127.0.0.1:{self.ports[agent]}/mcp" if self.per_port else self.served.url(agent)

    async def go_through_everything(self) -> None:
        """One of each: answers, failures, refusals, a halt, a heartbeat, prompts, resources, a peer, health."""
        worker, clerk = self.url("worker"), self.url("clerk")
        await ask(worker, "work")
        await ask(worker, "overload")
        await ask(worker, "loop")
        await ask(worker, "refuse me", images="none")
        await self._wait_beside_a_busy_agent(worker)
        await ask(self.url("broken"))
        for errand in ("prompt greeting", "prompt riddle", f"resource {TODAY}", "resource notes://never"):
            await ask(clerk, errand)
        await ask(self.url("boss"), "delegate", bearer=STATIC_KEY)
        await health(worker)
        await health(self.url("lost"))

    async def _wait_beside_a_busy_agent(self, url: str) -> None:
        entered = len(self.gate.entered)
        beats = self.served.metric("pallas_heartbeats_total", agent="worker")
        async with calling(url, "wait") as (_, call):
            await self.gate.wait_for_entered(entered + 1)
            await ask(url, "too much")
            await eventually(
                lambda: self.served.metric("pallas_heartbeats_total", agent="worker") > beats, what="a heartbeat"
            )
            self.gate.let_through()
            await call.reply()


@asynccontextmanager
async def rehearsed(path: Path, *, per_port: bool) -> AsyncGenerator[Stage]:
    """Serve the project; in single-port mode no agent but `clerk`, a peer, has a port of its own."""
    gate = Gate()
    async with AsyncExitStack() as stack:
        llm = await stack.enter_async_context(scripted_llm(lambda request: _script(request, gate)))
        tools = await stack.enter_async_context(stateless_downstream())
        _add_more(tools)
        reserved = stack.enter_context(ExitStack())
        ports = {name: reserved.enter_context(reserved_port()) for name in PORTS}
        project = write_project(
            path,
            _agents(ports if per_port else {"clerk": ports["clerk"]}),
            llm_url=llm.base_url,
            servers={
                "tools": {"transport": "http", "url": tools.url},
                "clerk": {"transport": "http", "url": f"http://127.0.0.1:{ports['clerk']}/mcp"},
                "gone": {"transport": "http", "url": f"http://127.0.0.1:{stack.enter_context(reserved_port())}/mcp"},
            },
            gateway={
                "host": "127.0.0.1",
                "heartbeat_seconds": 0.05,
                "queue_seconds": 0.05,
                "prices": PRICES,
                "limits": {"rules": [{"name": "many", "calls_per_minute": 10_000, "tokens_per_day": 1_000_000}]},
                "audit_log": "audit.log",
                "auth": {
                    "tokens": [static_key("run:agents")],
                    "anonymous": ["run:agents", "view:metrics"],
                },
            },
            deployment={"host": "127.0.0.1", "registry_port": ports["registry"]},
        )
        served = await stack.enter_async_context(running(project, overrides=Overrides(per_port=per_port)))
        yield Stage(served, gate, ports, per_port)


def _agents(ports: Mapping[str, int]) -> dict[str, Agent]:
    def settings(name: str) -> dict[str, int]:
        return {"port": ports[name]} if name in ports else {}

    return {
        "worker": Agent(servers=["tools"], settings={**settings("worker"), "max_in_flight": 1}),
        "clerk": Agent(source=CLERK, settings=settings("clerk")),
        "boss": Agent(servers=["clerk"], settings={**settings("boss"), "depends_on": ["clerk"]}),
        "lost": Agent(servers=["gone"], settings=settings("lost")),
        "broken": Agent(source="raise ValueError('no key')", settings=settings("broken")),
    }


def _add_more(tools: StatelessDownstream) -> None:
    @tools.server.prompt
    def riddle(name: str) -> str:
        """Fail."""
        raise PromptError(f"{name} knows the answer")

    @tools.server.resource(TODAY)
    def today() -> str:
        """What is on today."""
        return "nothing"


def _script(request: LlmRequest, gate: Gate) -> Turn:
    if speaker(request) == "boss":
        called = [("clerk__send_message", {"message": "prompt greeting"})]
        return say("delegated") if request.tool_results else call_tools(called)
    scenes: Mapping[str, Turn] = {
        "overload": fail(500),
        "wait": hang(gate),
        "loop": call_tools([("tools__echo", {"text": "again"})]),
    }
    if request.last_user_text in scenes:
        return scenes[request.last_user_text]
    if turns_so_far(request):
        return say("done", usage=WORKER_USAGE)
    return call_tools([("tools__add", {"a": 1, "b": 2}), ("tools__fail", {"message": "no"})], usage=WORKER_USAGE)
