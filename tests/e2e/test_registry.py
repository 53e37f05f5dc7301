"""The registry: what it says of every agent, that it fits the schema, and how it is cached."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.support.gateway import Agent, running, write_project
from tests.support_programs import program

CLIENTS = Path(__file__).parents[1] / "registry_clients"
OF_SDK = pytest.mark.skipif(sys.version_info < (3, 13), reason="mcp-registry-sdk requires Python 3.13")
WELL_KNOWN, LIST = "/.well-known/mcp/server.json", "/v0.1/servers"
OFFICIAL = "io.modelcontextprotocol.registry/official"
PUBLISHER = "io.modelcontextprotocol.registry/publisher-provided"
LONG = "Finds what nobody else finds, " * 5
CAPABILITIES = {"vision": True, "context_window": 200_000, "max_output_tokens": 32_000}


@asynccontextmanager
async def registry(path: Path, agents: Mapping[str, Agent], **options: Any) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the port that serves the registry of `agents`."""
    project = write_project(path, agents, **options)
    async with running(project) as served, httpx.AsyncClient(base_url=served.base_url, trust_env=False) as http:
        yield http


async def servers(http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    """The `server` of each entry by the last part of its name, in order."""
    entries = (await http.get(WELL_KNOWN)).json()["servers"]
    return {entry["server"]["name"].partition("/")[2]: entry["server"] for entry in entries}


async def the_only_server(path: Path, agent: Agent, **options: Any) -> dict[str, Any]:
    async with registry(path, {"echo": agent}, **options) as http:
        return (await servers(http))["echo"]


EVERYTHING = {
    "plain": Agent(),
    "tech_research": Agent(
        model="generic.big.model-1.5",
        settings={
            "title": "Research " + LONG,
            "description": LONG,
            "icons": [{"src": "icons/48.png", "sizes": ["48x48", "96x96"]}, {"src": "/any.svg", "sizes": "any"}],
            "model_capabilities": CAPABILITIES,
        },
    ),
    "broken": Agent(source="raise ValueError('no')", settings={"model_capabilities": CAPABILITIES}),
    "Dotted.Name": Agent(settings={"icon": "https://elsewhere.example/icon.svg"}),
}


@pytest.mark.needs("registry-clients")
@OF_SDK
@pytest.mark.parametrize("public_url", [None, "https://agents.example.com/pallas"])
async def test_every_entry_is_valid_against_the_published_schema(public_url: str | None, tmp_path: Path) -> None:
    # Of 2025-12-11; one of the two clients has a copy.
    [path] = CLIENTS.glob(".venv/lib/*/site-packages/mcpreg/_spec/server.schema.snapshot.json")
    schema = json.loads(path.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    async with registry(
        tmp_path, EVERYTHING, llm_url="http://127.0.0.1:1/v1", gateway={"public_url": public_url}
    ) as http:
        entries = (await http.get(WELL_KNOWN)).json()["servers"]

    assert [entry["server"]["name"] for entry in entries] == [
        f"com.example.test/{slug}" for slug in ("plain", "tech-research", "broken", "Dotted.Name")
    ]
    problems = [str(error) for e in entries for error in jsonschema.Draft7Validator(schema).iter_errors(e["server"])]
    assert problems == []


async def test_an_entry_says_everything_there_is_to_say(tmp_path: Path) -> None:
    began = datetime.now(UTC).replace(microsecond=0)
    options: dict[str, Any] = {
        "deployment": {"version": "2.1.0"},
        "gateway": {"public_url": "https://agents.example.com/pallas/"},
        "llm_url": "http://127.0.0.1:1/v1",
    }
    async with registry(tmp_path, EVERYTHING, **options) as http:
        answer = await http.get(WELL_KNOWN)

    assert answer.headers["content-type"] == "application/json"
    entry = answer.json()["servers"][1]
    began_at, updated = (entry["_meta"][OFFICIAL][stamp] for stamp in ("publishedAt", "updatedAt"))
    assert began <= datetime.fromisoformat(began_at) <= datetime.fromisoformat(updated) <= datetime.now(UTC)
    capabilities = {"model": "big.model-1.5", **CAPABILITIES}
    title, description = "Research " + LONG.strip(), LONG.strip()
    published = {
        "agent": "tech_research",
        "title": title,
        "description": description,
        "model": "big.model-1.5",
        "capabilities": capabilities,
    }
    assert entry == {
        "server": {
            "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
            "name": "com.example.test/tech-research",
            "title": entry["server"]["title"],
            "description": entry["server"]["description"],
            "version": "2.1.0",
            "remotes": [
                {"type": "streamable-http", "url": "https://agents.example.com/pallas/agents/tech_research/mcp"}
            ],
            "icons": [
                {"src": "https://agents.example.com/pallas/icons/48.png", "sizes": ["48x48", "96x96"]},
                {"src": "https://agents.example.com/any.svg", "sizes": ["any"]},
            ],
            "capabilities": capabilities,
            "_meta": {PUBLISHER: published},
        },
        "_meta": {
            OFFICIAL: {"status": "active", "isLatest": True, "publishedAt": began_at, "updatedAt": updated},
        },
    }
    for shown, full in ((entry["server"]["title"], title), (entry["server"]["description"], description)):
        assert 90 <= len(shown) <= 100
        assert shown.endswith("…")
        assert full.startswith(shown[:-1])


ENTRIES: dict[str, tuple[Agent, dict[str, Any]]] = {
    "tech_research": (Agent(), {"title": "Tech_Research", "description": "Tech_Research", "version": "1.0.0"}),
    "titled": (Agent(settings={"title": "The Echo"}), {"title": "The Echo", "description": "The Echo"}),
    **{
        f"text_of_{length}": (
            Agent(settings={"title": "t" * length, "description": "ü" * length}),
            {"title": "t" * length, "description": "ü" * length},
        )
        for length in (99, 100)
    },
    "whole": (
        Agent(settings={"icon": "https://elsewhere.example/a.svg"}),
        {"icons": [{"src": "https://elsewhere.example/a.svg"}]},
    ),
    "relative": (Agent(settings={"icon": "a.svg"}), {"icons": [{"src": "https://agents.example.com/a.svg"}]}),
    "no_scheme": (
        Agent(settings={"icons": [{"src": "//cdn.example/a.png"}]}),
        {"icons": [{"src": "https://cdn.example/a.png"}]},
    ),
    "sizes": (
        Agent(settings={"icons": [{"src": "../a.png", "sizes": "16x16 any"}]}),
        {"icons": [{"src": "https://agents.example.com/a.png", "sizes": ["16x16", "any"]}]},
    ),
}


async def test_an_entry_has_whole_texts_within_the_limit_the_agents_name_for_missing_ones_and_absolute_icons(
    tmp_path: Path,
) -> None:
    agents = {name: agent for name, (agent, _) in ENTRIES.items()}
    async with registry(tmp_path, agents, gateway={"public_url": "https://agents.example.com"}) as http:
        found = await servers(http)

    for name, (_, expected) in ENTRIES.items():
        assert found[name.replace("_", "-")].items() >= expected.items()
    assert "icons" not in found["titled"]


DEFAULTS = {"vision": False, "context_window": 131_072, "max_output_tokens": 16_384}


@pytest.mark.parametrize(
    ("agent", "fastagent", "expected"),
    [
        (Agent(), {"model_capabilities": {}}, {"model": "test-model", **DEFAULTS}),
        (Agent(), {"model_capabilities": CAPABILITIES}, {"model": "test-model", **CAPABILITIES}),
        (
            Agent(settings={"model_capabilities": {"vision": False}}),
            {"model_capabilities": CAPABILITIES},
            {"model": "test-model", **DEFAULTS},
        ),
        (
            Agent(model="generic.org/qwen-2.5.vl"),
            {"model_capabilities": CAPABILITIES},
            {"model": "org/qwen-2.5.vl", **CAPABILITIES},
        ),
        (
            Agent(),
            {"default_model": "passthrough", "model_capabilities": CAPABILITIES},
            {"model": "passthrough", **CAPABILITIES},
        ),
        (
            Agent(source="raise ValueError('no')"),
            {"default_model": "generic.down.model", "model_capabilities": CAPABILITIES},
            {"model": "down.model", **CAPABILITIES},
        ),
    ],
    ids=[
        *("declared empty", "declared for the project", "declared for the agent"),
        *("a model of the module", "a model without provider", "an agent that failed"),
    ],
)
async def test_capabilities_are_published_where_declared_with_the_model_really_used(
    agent: Agent, fastagent: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    server = await the_only_server(tmp_path, agent, llm_url="http://127.0.0.1:1/v1", fastagent=fastagent)

    published = server["_meta"][PUBLISHER]
    assert server["capabilities"] == published["capabilities"] == expected
    assert published["model"] == expected["model"]


async def test_the_model_is_published_where_nothing_is_declared_too(tmp_path: Path) -> None:
    agents = {"plain": Agent(), "own": Agent(model="generic.other")}
    async with registry(tmp_path, agents, llm_url="http://127.0.0.1:1/v1") as http:
        found = await servers(http)
        details = [(await http.get(f"/api/agents/{name}")).json()["model"] for name in agents]

    assert [found[name]["_meta"][PUBLISHER]["model"] for name in agents] == details == ["test-model", "other"]
    for server in found.values():
        assert "capabilities" not in {*server, *server["_meta"][PUBLISHER]}


@pytest.mark.parametrize(
    ("deployment", "name"),
    [
        ({"namespace": "org.example.team"}, "org.example.team/echo"),
        ({"namespace": None, "name": "workshop"}, "local.workshop/echo"),
        ({"namespace": None, "name": "My workshop (ü)"}, "local.My-workshop----/echo"),
    ],
)
async def test_the_namespace_is_the_configured_one_or_local(
    deployment: dict[str, Any], name: str, tmp_path: Path
) -> None:
    server = await the_only_server(tmp_path, Agent(), deployment=deployment)

    assert server["name"] == name


@pytest.mark.parametrize(
    ("deployment", "public_url", "base"),
    [
        ({}, None, "http://localhost:{port}"),
        ({"host": "gw.example.net"}, None, "http://gw.example.net:{port}"),
        ({"host": "fd00::1"}, None, "http://[fd00::1]:{port}"),
        ({"host": "gw.example.net"}, "https://agents.example.com", "https://agents.example.com"),
        ({}, "https://agents.example.com:8443/team/", "https://agents.example.com:8443/team"),
    ],
)
async def test_a_remote_is_the_address_clients_use(
    deployment: dict[str, Any], public_url: str | None, base: str, tmp_path: Path
) -> None:
    async with registry(
        tmp_path, {"tech_research": Agent()}, deployment=deployment, gateway={"public_url": public_url}
    ) as http:
        server = (await servers(http))["tech-research"]

    url = f"{base.format(port=http.base_url.port)}/agents/tech_research/mcp"
    assert server["remotes"] == [{"type": "streamable-http", "url": url}]


async def test_the_registry_api_lists_by_name_in_pages(tmp_path: Path) -> None:
    async with registry(tmp_path, {"two": Agent(), "one": Agent(), "a_third": Agent()}) as http:
        well_known, whole = (await http.get(WELL_KNOWN)).json()["servers"], (await http.get("/v0.1/servers")).json()
        pages: list[dict[str, Any]] = []
        cursor = ""
        while not pages or (cursor := pages[-1]["metadata"].get("nextCursor", "")):
            pages.append((await http.get("/v0/servers", params={"limit": 2, "cursor": cursor})).json())
        refused = [await http.get(LIST, params={"limit": limit}) for limit in ("0", "some")]

    assert [entry["server"]["name"].partition("/")[2] for entry in whole["servers"]] == ["a-third", "one", "two"]
    assert sorted(well_known, key=lambda entry: entry["server"]["name"]) == whole["servers"]
    assert whole["metadata"] == {"count": 3}
    assert [one["metadata"]["count"] for one in pages] == [2, 1]
    assert [entry for one in pages for entry in one["servers"]] == whole["servers"]
    assert {answer.status_code for answer in refused} == {400}
    assert all(answer.json()["error"].startswith("limit: ") for answer in refused)


@pytest.mark.parametrize(
    ("api", "name"), [("/v0", "com.example.test%2Ftech-research"), ("/v0.1", "com.example.test/tech-research")]
)
async def test_the_registry_api_has_each_entry_by_its_name_and_version(api: str, name: str, tmp_path: Path) -> None:
    async with registry(tmp_path, {"tech_research": Agent(), "other": Agent()}) as http:
        listed = (await http.get(f"{api}/servers", params={"search": "Tech-Re", "version": "latest"})).json()
        versions = (await http.get(f"{api}/servers/{name}/versions")).json()
        entries = [(await http.get(f"{api}/servers/{name}/versions/{of}")).json() for of in ("latest", "1.0.0")]
        absent = [
            await http.get(f"{api}/servers/{path}")
            for path in (f"{name}/versions/2.0.0", f"{name}x/versions", "nothing/versions/latest")
        ]

    assert listed == versions
    assert listed["servers"] == [entries[0]]
    assert entries[0] == entries[1]
    assert [(answer.status_code, answer.json()) for answer in absent] == [(404, {"error": "Server not found"})] * 3


@pytest.mark.needs("registry-clients")
@pytest.mark.parametrize("kind", [pytest.param("sdk", marks=OF_SDK), "cli"])
async def test_clients_of_the_mcp_registry_read_this_one(kind: str, tmp_path: Path) -> None:
    async with registry(tmp_path, {"two": Agent(), "one": Agent(), "three": Agent()}) as http:
        url, name = str(http.base_url).rstrip("/"), "com.example.test/one"
        command = [program("registry-clients"), str(CLIENTS / f"{kind}.py"), url, name]
        client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        said, _ = await asyncio.wait_for(client.communicate(), 60)

    read = json.loads(said)
    assert read["pages"] == [["com.example.test/one", "com.example.test/three"], ["com.example.test/two"]]
    assert (read["found"], read["versions"], read["status"]) == ([name], ["1.0.0"], "active")
    assert read["url"] == f"{url.replace('127.0.0.1', 'localhost')}/agents/one/mcp"
    if kind == "sdk":
        assert (read["changed"], read["same"], read["absent"]) == ([], True, "Server not found")
        assert datetime.fromisoformat(read["published"]) <= datetime.now(UTC)


@pytest.mark.parametrize("path", [WELL_KNOWN, LIST, f"{LIST}/com.example.test%2Fecho/versions/latest"])
async def test_a_client_that_has_the_document_already_is_not_sent_it_again(path: str, tmp_path: Path) -> None:
    async with registry(tmp_path, {"echo": Agent()}) as http:
        first, again = await http.get(path), await http.get(path)
        tag = first.headers["etag"]
        same = [
            await http.request(method, path, headers={"if-none-match": known})
            for method in ("GET", "HEAD")
            for known in (tag, f"W/{tag}", f'"other", {tag}', "*")
        ]
        other = [await http.get(path, headers={"if-none-match": known}) for known in ('"other"', "", tag.strip('"'))]

    assert tag.startswith('"')
    assert tag.endswith('"')
    assert (again.headers["etag"], again.content) == (tag, first.content)
    assert [(answer.status_code, answer.content) for answer in same] == [(304, b"")] * len(same)
    assert [(answer.status_code, answer.content) for answer in other] == [(200, first.content)] * len(other)
    everything = [first, again, *same, *other]
    assert {answer.headers["cache-control"] for answer in everything} == {"no-cache"}
    assert {answer.headers["etag"] for answer in everything} == {tag}


async def test_the_tag_follows_the_document(tmp_path: Path) -> None:
    tags = set()
    for title in ("Echo", "Another"):
        async with registry(tmp_path / title, {"echo": Agent(settings={"title": title})}) as http:
            tags |= {(await http.get(path)).headers["etag"] for path in (WELL_KNOWN, LIST)}

    assert len(tags) == 4


async def test_an_agent_was_updated_when_the_gateway_started_or_one_of_its_files_was_changed_later(
    tmp_path: Path,
) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    project = write_project(tmp_path, {"one": Agent(), "two": Agent()})
    async with running(project) as served:
        after = datetime.now(UTC)

        async def stamps() -> list[tuple[datetime, datetime]]:
            async with httpx.AsyncClient(base_url=served.base_url, trust_env=False) as http:
                entries = [one for path in (WELL_KNOWN, LIST) for one in (await http.get(path)).json()["servers"]]
            official = [entry["_meta"][OFFICIAL] for entry in entries]
            assert all(one["updatedAt"].endswith("Z") for one in official)
            return [
                (datetime.fromisoformat(one["publishedAt"]), datetime.fromisoformat(one["updatedAt"]))
                for one in official
            ]

        [(published, updated)] = set(await stamps())
        assert before <= published == updated <= after + timedelta(seconds=1)
        project.edit(lambda document: document["agents"]["one"].update(title="One"))
        later = (published + timedelta(hours=1)).timestamp()
        os.utime(project.path / "agents.yaml", (later, later))
        await served.reload()
        assert set(await stamps()) == {(published, published + timedelta(hours=1))}
        os.utime(project.path / project.package / "one.py", (later + 60, later + 60))
        assert set(await stamps()) == {(published, published + timedelta(hours=1))}
        await served.reload()
        assert (await stamps())[0] == (published, published + timedelta(hours=1, minutes=1))
