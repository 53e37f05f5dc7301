"""What a client's model reads of the agents: little enough for its context, and true enough to be checked by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import jsonschema
import pytest

from pallas_gateway.calls.parameters import params_schema
from pallas_gateway.config.model.parameters import PARAMETERS
from tests.support.askable_callers import DECLINE, Person, client_of, told
from tests.support.asking_gateways import asking_gateway
from tests.support.calling import EACH_VERSION, ask
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.gateway import Agent, running, write_project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gateway import Running

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
    assert [name for name, document in documents.items() if _has_list_of_types(document)] == []


def _has_list_of_types(document: Any) -> bool:
    return any(isinstance(one.get("type"), list) for one in _parts(document))


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
