"""A server of others that most `npx` servers resemble: npm's server-everything, on release 1 of the TypeScript SDK.

It runs as a stdio server, in the Node of `make programs`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from pallas_gateway.config.loading.loader import Overrides
from tests.support.askable_callers import Person, accept, client_of, told
from tests.support.calling import ask, health
from tests.support.clients import MODERN_VERSION
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Script, Turn, call_tools, say, scripted_llm
from tests.support_programs import program

from .conformance import PROGRAMS

SERVER = PROGRAMS / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
pytestmark = [pytest.mark.needs("typescript"), pytest.mark.whole]


def everything() -> dict[str, object]:
    return {"transport": "stdio", "command": program("typescript"), "args": [str(SERVER), "stdio"]}


def echoes(request: LlmRequest) -> Turn:
    if request.tool_results:
        return say(" | ".join(request.tool_results.values()))
    return call_tools([("everything__echo", {"message": request.last_user_text})])


@asynccontextmanager
async def served_in(path: Path, script: Script, *, per_port: bool = False) -> AsyncIterator[str]:
    async with scripted_llm(script) as llm:
        with ExitStack() as reserved:
            registry, own = (reserved.enter_context(reserved_port()) for _ in range(2))
            project = write_project(
                path,
                {"user": Agent(["everything"], settings={"port": own})},
                llm_url=llm.base_url,
                servers={"everything": everything()},
                gateway={"host": "127.0.0.1"},
                deployment={"host": "127.0.0.1", "registry_port": registry},
            )
            async with running(project, overrides=Overrides(per_port=per_port)) as served:
                yield f"http://127.0.0.1:{own}/mcp" if per_port else served.url("user")
                await until_idle(served)


@pytest.mark.parametrize("per_port", [False, True])
async def test_calls_in_a_row_and_at_once_are_answered(per_port: bool, tmp_path: Path) -> None:
    async with served_in(tmp_path, echoes, per_port=per_port) as url:
        for number in range(3):
            assert (await ask(url, f"call {number}")).text == f"Echo: call {number}"
        answers = await asyncio.gather(*(ask(url, f"call {number}") for number in range(20)))
        assert [one.text for one in answers] == [f"Echo: call {number}" for number in range(20)]
        assert (await health(url))["status"] == "ok"


def asks(request: LlmRequest) -> Turn:
    """Name the tools that need a caller who can be asked; at `ask` use one of them."""
    if request.last_user_text == "ask" and not request.tool_results:
        return call_tools([("everything__trigger-elicitation-request", {})])
    offered = sorted(tool.partition("__")[2] for tool in request.tools if "elicitation" in tool)
    return say(" ".join(["offered:", *offered, *request.tool_results.values()]))


@pytest.mark.parametrize("mode", ["legacy", MODERN_VERSION])
async def test_tools_that_need_a_caller_who_can_be_asked_are_offered_to_such_callers_alone(
    mode: str, tmp_path: Path
) -> None:
    person = Person(accept(name="Ada"))
    async with served_in(tmp_path, asks) as url:
        assert (await ask(url, "which?")).text == "offered:"
        async with client_of(url, person, mode) as client:
            assert await told(client, "which?") == "offered: trigger-elicitation-request trigger-url-elicitation"
            assert "Ada" in await told(client, "ask")
        assert (await ask(url, "which?")).text == "offered:"
