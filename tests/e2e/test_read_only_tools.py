"""`readOnlyHint` of the gateway's tools: clients such as Codex ask their user before each call of a tool without it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.support.calling import EACH_VERSION
from tests.support.changing import ChangingTool, changing_downstream
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.gateway import Agent, module_source, running, write_project
from tests.support.listener import reserved_port
from tests.support.waiting import eventually
from tests.support.watching import DESK

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gateway import Running

READS, WRITES, ASKS = ChangingTool(only_reads=True), ChangingTool(), ChangingTool(asks=True)
FUNCTION = """
def wipe() -> str:
    return "wiped"


"""
CUSTOM = """
from fast_agent import FastAgent
from fast_agent.agents import McpAgent

fast = FastAgent("custom", parse_cli_args=False)


class Custom(McpAgent):
    pass


@fast.custom(Custom, name="custom", default=True)
async def agent(): ...
"""
WITH_FUNCTION = Agent(decorator="function_tools=[wipe]")
MODULES = {
    "bare": Agent(),
    "reader": Agent(["reads"]),
    "filtered": Agent(["both"], decorator='tools={"both": ["look"]}'),
    "parent_of_reader": Agent(source=DESK.replace("tools", "reads")),
    "writer": Agent(["both"]),
    "parent_of_writer": Agent(source=DESK.replace("tools", "both")),
    "unlisted": Agent(["gone"]),
    "writes_if_it_can_ask": Agent(["asks"]),
    "asks_nobody": Agent(["asks"], settings={"ask_caller": False}),
    "by_caller": Agent(["mine"]),
    "function": Agent(source=FUNCTION + module_source("function", WITH_FUNCTION)),
    "shell": Agent(decorator="shell=True"),
    "asks": Agent(decorator="human_input=True"),
    "custom": Agent(source=CUSTOM),
    "failed": Agent(source="raise ValueError('no key')\n"),
}
DECLARED: dict[str, dict[str, Any]] = {
    "asks_reader": {"instruction": "Ask.", "agents": ["reader"]},
    "asks_writer": {"instruction": "Ask.", "agents": ["reader", "asks_reader", "writer"]},
    "asks_all": {"instruction": "Ask.", "servers": ["all"]},
}
ONLY_READ = {"bare", "reader", "filtered", "parent_of_reader", "asks_reader", "asks_nobody"}


async def hinted(url: str, version: str = MODERN_VERSION) -> dict[str, bool | None]:
    """The hint of each tool at an endpoint; None for a tool without annotations."""
    async with raw_client(url, protocol_version=version) as client:
        tools = await client.list_tools()
    return {tool["name"]: tool.get("annotations", {}).get("readOnlyHint") for tool in tools}


def only_reads(served: Running, *agents: str) -> bool:
    """Return whether the listings that the gateway has show it of all these agents."""
    runtimes = [served.gateway.agents[name].runtime for name in agents]
    return all(runtime is not None and runtime.only_reads for runtime in runtimes)


def _is_known(served: Running, *, only: bool) -> bool:
    return only_reads(served, "reader") is only


async def test_an_agent_is_declared_to_only_read_if_all_of_its_tools_are(tmp_path: Path) -> None:
    async with (
        changing_downstream() as reads,
        changing_downstream() as both,
        changing_downstream() as asks,
        changing_downstream(start=False) as gone,
    ):
        reads.tools, both.tools = {"look": READS, "find": READS}, {"look": READS, "write": WRITES}
        asks.tools = {"look": READS, "ask": ASKS}
        with reserved_port() as port:
            servers: dict[str, dict[str, Any]] = {
                "reads": {"url": reads.url},
                "both": {"url": both.url},
                "gone": {"url": gone.url},
                "asks": {"url": asks.url},
                "mine": {"url": reads.url, "forward_inbound_auth": True},
                "all": {"url": f"http://localhost:{port}/mcp"},
            }
            project = write_project(tmp_path, MODULES, servers=servers, gateway={"port": port})
            project.edit(lambda document: document["agents"].update(DECLARED))
            async with running(project) as served:
                await eventually(lambda: only_reads(served, *ONLY_READ), what="the listings")
                for version in EACH_VERSION:
                    own = {name: await hinted(served.url(name), version) for name in [*MODULES, *DECLARED]}
                    everywhere = await hinted(f"{served.base_url}/mcp", version)
                    hints = {name: True if name in ONLY_READ else None for name in own}
                    assert own == {
                        name: {"send_message": hint, name: hint, "get_health": True} for name, hint in hints.items()
                    }
                    assert everywhere == {f"agent-{name}": hint for name, hint in hints.items()} | {"get_health": True}


async def test_the_hint_follows_the_listings_of_the_agents_servers(tmp_path: Path) -> None:
    async with changing_downstream(tells=True) as reads:
        reads.tools = {"look": READS}
        project = write_project(tmp_path, {"reader": MODULES["reader"]}, servers={"reads": {"url": reads.url}})
        project.edit(lambda document: document["agents"].update(asks_reader=DECLARED["asks_reader"]))
        async with running(project) as served:
            for tool, hint in ((READS, True), (WRITES, None), (READS, True)):
                await reads.change(look=tool)
                await eventually(partial(_is_known, served, only=bool(hint)), what=f"the hint {hint}")
                assert (await hinted(served.url("reader")))["send_message"] is hint
                assert (await hinted(served.url("asks_reader")))["send_message"] is hint


async def test_peers_that_call_each_other_only_read_unless_one_of_them_does_more(tmp_path: Path) -> None:
    async with changing_downstream() as reads, changing_downstream() as both:
        reads.tools, both.tools = {"look": READS}, {"write": WRITES}
        with reserved_port() as port:
            base = f"http://localhost:{port}/agents"
            servers: dict[str, dict[str, Any]] = {
                "reads": {"url": reads.url},
                "both": {"url": both.url},
                **{name: {"url": f"{base}/{name}/mcp"} for name in ("one", "two", "three", "four")},
            }
            agents = {
                "one": Agent(["two", "reads"]), "two": Agent(["one"]),
                "three": Agent(["four", "reads"]), "four": Agent(["three", "both"]),
            }  # fmt: skip
            async with running(write_project(tmp_path, agents, servers=servers, gateway={"port": port})) as served:
                await eventually(lambda: only_reads(served, "one", "three"), what="the listings")
                found = {name: (await hinted(served.url(name)))[name] for name in agents}
    assert found == {"one": True, "two": True, "three": None, "four": None}
