"""One module behind several entries of agents.yaml: imported once, with one FastAgent, each entry with its agent."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.core.agent_state import State, Status
from tests.support.calling import ask
from tests.support.downstreams import StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, Limits, Project, Running, running, starts, write_project
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say, scripted_llm
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("imports")

TWO = """
import threading
from fast_agent import FastAgent

threading.noted_imports.append(__name__)
agents = FastAgent("two", parse_cli_args=False)

@agents.agent(name="writer", instruction="You are writer{more}.", servers=["tools", "reader"])
@agents.agent(name="reader", instruction="You are reader{more}.", servers=["books"])
async def main() -> None: ...
"""


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []
    monkeypatch.setattr(threading, "noted_imports", noted, raising=False)
    return noted


def script(request: LlmRequest) -> Turn:
    me = str(request.messages[0]["content"]).removeprefix("You are ").split(".")[0]
    if request.tool_results:
        return say(f"{me} read: {', '.join(request.tool_results.values())}")
    if "reader__send_message" in request.tools:
        return call_tools([("reader__send_message", {"message": "read"})])
    return say(f"{me} with {', '.join(request.tools)}")


def entries(project: Project, **agents: Mapping[str, Any]) -> None:
    """Have these entries, all of the one module."""
    of_module = {name: {"module": f"{project.package}.two", **more} for name, more in agents.items()}
    project.edit(lambda document: document.update(agents=of_module))


@asynccontextmanager
async def shared(path: Path) -> AsyncGenerator[tuple[Running, StatelessDownstream]]:
    async with scripted_llm(script) as llm, stateless_downstream() as tools, stateless_downstream() as books:
        servers = {"tools": {"url": tools.url}, "books": {"url": books.url}}
        source = TWO.format(more="")
        project = write_project(path, {"two": Agent(source=source)}, llm_url=llm.base_url, servers=servers)
        entries(project, writer={"agent": "writer", "depends_on": ["reader"]}, reader={"agent": "reader"})
        async with running(project) as served:
            yield served, books


def downstreams(served: Running, agent: str) -> list[tuple[str, str | None]]:
    runtime = served.gateway.agents[agent].runtime
    assert runtime is not None, served.gateway.agents[agent].status.reason
    return sorted((one.name, one.peer) for one in runtime.downstreams)


async def test_each_entry_serves_its_own_agent_of_a_module_that_is_imported_once(
    imports: list[str], tmp_path: Path
) -> None:
    async with shared(tmp_path) as (served, _):
        assert len(imports) == 1
        # The peer is known although only one entry depends on it, and no entry connects to servers of the other.
        assert downstreams(served, "writer") == [("reader", "reader"), ("tools", None)]
        assert downstreams(served, "reader") == [("books", None)]
        reader = await ask(served.url("reader"))
        assert reader.text.startswith("reader with books__")
        writer = await ask(served.url("writer"))
        assert writer.text.startswith("writer read: reader with books__")


async def test_entries_of_a_module_are_reloaded_each_by_itself_and_together(imports: list[str], tmp_path: Path) -> None:
    async with shared(tmp_path) as (served, _):
        project = served.project
        before = starts(served, "writer")
        entries(project, writer={"agent": "writer", "depends_on": ["reader"]}, reader={"agent": "reader"}, other={})
        await served.reload()
        await eventually(lambda: served.gateway.agents["other"].status.state is State.FAILED, what="an unclear entry")
        assert "(reader or writer)" in str(served.gateway.agents["other"].status.reason)

        entries(
            project,
            writer={"agent": "writer", "depends_on": ["reader"]},
            reader={"agent": "reader"},
            other={"agent": "reader", "max_iterations": 3},
        )
        await served.reload()
        await eventually(lambda: served.gateway.agents["other"].runtime, what="another entry of the module")
        assert (await ask(served.url("other"))).text.startswith("reader with books__")
        assert len(imports) == 1  # nothing changed in the module
        assert starts(served, "writer") == before

        project.write_module("two", TWO.format(more=" again"))
        await served.reload()
        assert len(imports) == 2
        for name, says in (("writer", "writer again read: "), ("reader", "reader again"), ("other", "reader again")):
            assert (await ask(served.url(name))).text.startswith(says)


async def test_an_entry_that_fails_leaves_the_module_of_the_others_alone(
    imports: list[str], tmp_path: Path, limits: Limits
) -> None:
    limits.gateway.lives.first_retry_seconds = limits.gateway.lives.last_retry_seconds = 0.01
    async with shared(tmp_path) as (served, _):
        # Only `writer` has this server, so only entries that serve it fail without it.
        served.project.edit(lambda document: document["mcp"]["servers"].pop("tools"), "fastagent.config.yaml")
        entries(served.project, wrong={"agent": "writer"}, reader={"agent": "reader"})
        await served.reload()
        tries: list[Status] = []

        def has_failed_often() -> bool:
            status = served.gateway.agents["wrong"].status  # a new one at each try
            if not any(status is one for one in tries):
                tries.append(status)
            return len(tries) > 3

        await eventually(has_failed_often, what="tries of an entry that fails")
        assert "not defined in config: tools" in str(served.gateway.agents["wrong"].status.reason)
        assert len(imports) == 2  # the second with the new settings
        assert downstreams(served, "reader") == [("books", None)]
        assert (await ask(served.url("reader"))).text.startswith("reader with books__")
