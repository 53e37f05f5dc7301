"""A gateway whose agents have one stdio server, and a model that uses the tools which the message names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.calling import ask, health
from tests.support.gateway import Agent, Running, gateway_and_model
from tests.support.scripted_llm import LlmRequest, Script, Turn, call_tools, hang, say
from tests.support.stdio_processes import Processes
from tests.support.waiting import Gate, eventually


def uses_the_tools_it_is_told(request: LlmRequest) -> Turn:
    """Call the tools that the message names, one after the other; then say what they returned."""
    words = request.last_user_text.split()
    if len(request.tool_results) < len(words):
        return call_tools([(f"p__{words[len(request.tool_results)]}", {})])
    named = " ".join(sorted({tool.partition("__")[0] for tool in request.tools}))
    return say(" | ".join(request.tool_results.values()) or f"has {named}")


def holding(gate: Gate) -> Script:
    """As `uses_the_tools_it_is_told`; at the word `hold` the call waits at the gate, then says `held` or goes on."""

    def script(request: LlmRequest) -> Turn:
        words = request.last_user_text.split()
        done = len(request.tool_results)
        if "hold" not in words or done < words.index("hold"):
            return uses_the_tools_it_is_told(request)
        held = [word for word in words if word != "hold"]
        if done == len(held):
            said = say("held") if words[-1] == "hold" else say(" | ".join(request.tool_results.values()))
            return hang(gate, said)
        turn = call_tools([(f"p__{held[done]}", {})])
        return hang(gate, turn) if done == words.index("hold") else turn

    return script


@dataclass(frozen=True)
class World:
    """A gateway with agents that have the stdio server `p`."""

    served: Running
    processes: Processes

    async def ask(self, tools: str = "", agent: str = "user") -> str:
        """Return the answer of a call that uses these tools."""
        return (await ask(self.served.url(agent), tools)).text

    async def until_running(self, calls: int) -> None:
        """Wait until so many calls of `user` run."""
        running = partial(self.served.metric, "pallas_calls_in_flight", agent="user")
        await eventually(lambda: running() == calls, what=f"{calls} calls")

    async def problem(self, agent: str = "user") -> str | None:
        """Why the agent is not well."""
        found = await health(self.served.url(agent))
        return found.get("message") and f"{found['status']}: {found['downstream'][0]['error']}"


@asynccontextmanager
async def world(
    path: Path,
    *faults: str,
    era: str = "initialize",
    agents: tuple[str, ...] = ("user",),
    script: Any = None,
    gateway: Mapping[str, Any] | None = None,
    approve: tuple[str, ...] = (),
    **settings: Any,
) -> AsyncIterator[World]:
    """Serve agents with one stdio server; at the end none of its processes is left."""
    (folder := path / "processes").mkdir(exist_ok=True)
    processes = Processes(folder, era)
    async with gateway_and_model(
        path,
        {name: Agent(servers=["p"], settings={"approve": list(approve)}) for name in agents},
        script or uses_the_tools_it_is_told,
        servers={"p": processes.settings(*faults, **settings)},
        gateway=gateway,
    ) as (served, _):
        yield World(served, processes)
    assert processes.alive == []
