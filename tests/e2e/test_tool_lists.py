"""What a client's model reads of the agents: short, true enough to be checked by, and which of them only read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from pallas_gateway.calls.parameters import params_schema
from pallas_gateway.config.model.parameters import PARAMETERS
from tests.support.askable_callers import DECLINE, Person, client_of, told
from tests.support.asking_gateways import asking_gateway
from tests.support.calling import EACH_VERSION, ask
from tests.support.changing import ChangingTool, changing_downstream
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.gateway import Agent, Running, running, with_code, write_project
from tests.support.listener import reserved_port
from tests.support.waiting import eventually
from tests.support.watching import DESK

LONGEST_LIST, LONGEST_AT_MCP = 2500, 1000
"""Bytes of an agent's whole `tools/list`, and of an agent at `/mcp`."""
NAME = "technical_research"
DESCRIPTION = "Finds out what others have found out about übergroße Maschinen. \n" * 20
EVERYTHING = {
    "title": "Technische Recherche für große und übergroße Maschinen aller Art",
    "description": DESCRIPTION,
    "caller_params": {"names": [*PARAMETERS], "extra": ["enable_search", "reasoning_effort"]},
    "models": ["generic.listed-one", "generic.listed-two"],
    "icon": "https://agents.example.com/icons/technical-research.svg",
    "model_capabilities": {"vision": True},
}
PNG = {"data": "iVBORw0KGgo=", "mime_type": "image/png"}
GOOD: list[dict[str, Any]] = [
    {"message": "hi"},
    {"message": "hi", "conversation_id": "c-1", "params": {"temperature": 0.5, "stop": ["a"], "seed": None}},
    {"message": "hi", "history": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"message": "hi", "params": {"tool_choice": "auto", "extra": {"min_p": 0.1, "enable_search": True}}},
]
IMAGES: dict[str, Any] = {"message": "", "images": [PNG], "history": [{"role": "user", "content": "", "images": [PNG]}]}
NULLS = {"message": "hi", "images": None, "history": None, "conversation_id": None, "params": None}
"""What clients send that fill in each argument which they were not given."""
BAD: list[dict[str, Any]] = [{}, {"message": 3}, {"message": "hi", "color": "red"}, {"message": "hi", "params": "hot"}]


async def listed(url: str, version: str) -> tuple[list[dict[str, Any]], str]:
    """The tools, and the result they were in as it was sent."""
    async with raw_client(url, protocol_version=version) as client:
        reply = await client.request("tools/list")
    body = reply.text or json.dumps(reply.messages[-1], separators=(",", ":"), ensure_ascii=False)
    tools: list[dict[str, Any]] = reply.result["tools"]
    return tools, body


async def endpoints(served: Running, version: str) -> list[tuple[dict[str, Any], str, str]]:
    """Every message tool with the endpoint and name to call it by."""
    own, _ = await listed(served.url(NAME), version)
    everywhere, _ = await listed(f"{served.base_url}/mcp", version)
    tools = [(tool, served.url(NAME)) for tool in own] + [(tool, f"{served.base_url}/mcp") for tool in everywhere]
    return [(tool["inputSchema"], url, tool["name"]) for tool, url in tools if tool["name"] != "get_health"]


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_lists_are_short_with_every_feature_on(version: str, tmp_path: Path) -> None:
    agents = {NAME: Agent(settings=EVERYTHING), "plain": Agent()}
    gateway = {"database": "sqlite:///threads.db", "openai_api": True}
    async with running(write_project(tmp_path, agents, gateway=gateway)) as served:
        own, own_body = await listed(served.url(NAME), version)
        everywhere, _ = await listed(f"{served.base_url}/mcp", version)

    assert [tool["name"] for tool in own] == ["send_message", NAME, "get_health"]
    assert len(own_body.encode()) <= LONGEST_LIST
    sizes = {tool["name"]: len(json.dumps(tool, separators=(",", ":"))) for tool in everywhere}
    assert sizes.keys() == {f"agent-{NAME}", "agent-plain", "get_health"}
    assert max(sizes.values()) <= LONGEST_AT_MCP
    assert own[0]["description"].startswith("Finds out what others have found out about übergroße Maschinen. Finds")
    assert own[0]["description"].endswith("…")


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_arguments_that_a_listed_schema_takes_are_taken(version: str, tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {NAME: Agent(settings=EVERYTHING)})) as served:
        for schema, url, name in await endpoints(served, version):
            jsonschema.Draft202012Validator.check_schema(schema)
            jsonschema.validate(IMAGES, schema)
            for arguments in GOOD:
                jsonschema.validate(arguments, schema)
            for arguments in [*GOOD, NULLS]:
                answer = await ask(url, tool=name, version=version, **arguments)
                assert (answer.text, answer.is_error) == ("hi", False)
            for arguments in BAD:
                with pytest.raises(jsonschema.ValidationError):
                    jsonschema.validate(arguments, schema)


async def test_every_list_in_a_schema_says_what_it_is_of(tmp_path: Path) -> None:
    """OpenAI's API refuses tools that do not."""
    async with running(write_project(tmp_path, {NAME: Agent(settings=EVERYTHING)})) as served:
        schemas = [schema for schema, *_ in await endpoints(served, MODERN_VERSION)]

    found = [one for schema in schemas for one in _parts(schema) if one.get("type") == "array"]
    assert len(found) > len(schemas)
    assert all("items" in one for one in found)


async def test_no_schema_that_clients_read_has_a_list_of_types(tmp_path: Path) -> None:
    """Clients that cannot read one fail while they list the tools, so no agent is left to them."""
    person = Person(DECLINE, DECLINE)
    asks = Agent(["asking"], decorator="human_input=True", settings={**EVERYTHING, "approve": ["asking/wipe"]})
    gateway = {"database": "sqlite:///threads.db"}
    async with (
        asking_gateway(tmp_path, agents={NAME: asks}, gateway=gateway) as (served, _),
        httpx.AsyncClient(base_url=served.base_url) as http,
        client_of(served.url(NAME), person) as client,
    ):
        pages = ["/api/v1/openapi.json", f"/api/v1/agents/{NAME}", "/v0.1/servers", "/.well-known/mcp/server.json"]
        documents: dict[str, Any] = {path: (await http.get(path)).raise_for_status().json() for path in pages}
        for version in EACH_VERSION:
            for url in (served.url(NAME), f"{served.base_url}/mcp"):
                documents[f"{url} {version}"], _ = await listed(url, version)
        await told(client, "wipe human")
    documents |= {params.message: params.model_dump(by_alias=True) for params in person.asked}

    assert len(person.asked) == 2
    with_lists = [
        name
        for name, document in documents.items()
        if any(isinstance(one.get("type"), list) for one in _parts(document))
    ]
    assert with_lists == []


def _parts(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [part for one in schema for part in _parts(one)]
    return [schema, *_parts([*schema.values()])] if isinstance(schema, dict) else []


async def test_the_whole_schema_of_params_is_at_the_api(tmp_path: Path) -> None:
    project = write_project(tmp_path, {NAME: Agent(settings=EVERYTHING)}, gateway={"database": "sqlite:///threads.db"})
    async with running(project) as served, httpx.AsyncClient() as http:
        document = (await http.get(f"{served.base_url}/api/v1/agents/{NAME}")).raise_for_status().json()
        settings = served.gateway.agents[NAME].settings

    schema = document["paramsSchema"]
    assert schema == params_schema(settings)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"temperature": 1, "extra": {"enable_search": True}, "model": "generic.listed-one"}, schema)
    wrong: list[dict[str, Any]] = [{"temperature": 3}, {"model": "x"}, {"extra": {"provider": {}}}]
    for bad in [*wrong, {"tools_allowlist": ["x"] * 1001}]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


# --- readOnlyHint: clients such as Codex ask their user before each call of a tool without it -------------------------

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
    "function": with_code(FUNCTION, Agent(decorator="function_tools=[wipe]"), "function"),
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
                await eventually(lambda: only_reads(served, "reader") is bool(hint), what="the hint")  # noqa: B023  awaited here
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
