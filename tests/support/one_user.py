"""A gateway with the agent 'user', whose model uses what a script says."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.gateway import Agent, Running, running, write_project
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, say, scripted_llm

ADD = ("tools__add", {"a": 1, "b": 2})


@dataclass(frozen=True)
class World:
    served: Running
    llm: ScriptedLlm

    @property
    def url(self) -> str:
        return self.served.url("user")

    def tool_results(self) -> list[str]:
        """What the tools of the latest call gave the model, in the order it asked for them."""
        return [result for _, result in sorted(self.llm.requests[-1].tool_results.items())]


@asynccontextmanager
async def world(path: Path, script: Any, /, **servers: str | Mapping[str, Any]) -> AsyncIterator[World]:
    """Serve `user`, who uses all `servers` (a URL, or settings), and `loner`, who uses none."""
    settings = {
        name: {"transport": "http", **({"url": server} if isinstance(server, str) else server)}
        for name, server in servers.items()
    }
    agents = {"user": Agent(servers=list(servers)), "loner": Agent()}
    async with scripted_llm(script) as llm:
        project = write_project(path, agents, llm_url=llm.base_url, servers=settings)
        async with running(project) as served:
            yield World(served, llm)


def use(*calls: tuple[str, Mapping[str, Any]]) -> Any:
    """A script that makes these tool calls at once, in every conversation, and then says `done`."""

    def script(request: LlmRequest) -> Turn:
        return say("done") if request.tool_results else call_tools(calls)

    return script


def named_tools(request: LlmRequest) -> Turn:
    """A model that says which servers' tools it was offered."""
    return say(" ".join(sorted({tool.partition("__")[0] for tool in request.tools})) or "no tools")


def use_if_told(request: LlmRequest) -> Turn:
    """One tool call if the message asks for it, then the answer."""
    if "use it" in request.last_user_text and not request.tool_results:
        return call_tools([("tools__add", {"a": 1, "b": 2})])
    return say("Done.")
