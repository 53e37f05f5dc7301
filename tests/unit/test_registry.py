"""The registry's documents: pure functions of what is configured and what is known."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.requests import Request

from pallas_gateway.agents.agent_state import State
from pallas_gateway.config.loading.loader import Overrides, load_deployment
from pallas_gateway.hosting.gateway import Gateway
from pallas_gateway.runtime.protocols import ModelFacts
from pallas_gateway.urls import Addresses
from pallas_gateway.web import registry
from pallas_gateway.web.registry import OFFICIAL, PUBLISHER, clamped
from tests.support.memory_runtime import MemoryAgent, MemoryAgentRuntime, MemoryRuntime

LONG = "A sentence that goes on and on " * 5
CAPABILITIES = {"vision": True, "context_window": 32768, "max_output_tokens": 2048}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gateway_of(
    agents: Mapping[str, Mapping[str, Any]],
    *,
    fastagent: Mapping[str, Any] | None = None,
    overrides: Overrides | None = None,
    **document: Any,
) -> Gateway:
    modules = {name: {"module": f"agents.{name}", **agent} for name, agent in agents.items()}
    Path("agents.yaml").write_text(yaml.safe_dump({"name": "demo", **document, "agents": modules}, sort_keys=False))
    Path("fastagent.config.yaml").write_text(yaml.safe_dump(dict(fastagent or {})))
    configuration = load_deployment(Path("agents.yaml"), environ={}, overrides=overrides or Overrides())
    return Gateway(configuration, Addresses(configuration), MemoryRuntime({}))


def server_of(agent: Mapping[str, Any] | None = None, **project: Any) -> dict[str, Any]:
    gateway = gateway_of({"echo": agent or {}}, **project)
    server: dict[str, Any] = registry.entry(gateway, gateway.agents["echo"])["server"]
    return server


def test_a_bare_agent_has_a_whole_entry() -> None:
    gateway = gateway_of({"tech_research": {}})
    assert registry.entry(gateway, gateway.agents["tech_research"]) == {
        "server": {
            "$schema": registry.SCHEMA,
            "name": "local.demo/tech-research",
            "title": "Tech_Research",
            "description": "Tech_Research",
            "version": "1.0.0",
            "remotes": [{"type": "streamable-http", "url": "http://localhost:24200/agents/tech_research/mcp"}],
            "_meta": {PUBLISHER: {"title": "Tech_Research", "description": "Tech_Research"}},
        },
        "_meta": {
            OFFICIAL: {
                "status": "active",
                "updatedAt": gateway.loaded_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
                "isLatest": True,
            }
        },
    }


@pytest.mark.parametrize(
    ("project", "name"),
    [
        ({"namespace": "com.example.project"}, "com.example.project/echo"),
        ({"name": "my project_1"}, "local.my-project-1/echo"),
        ({"name": "Großes"}, "local.Gro-es/echo"),
    ],
)
def test_a_name_is_the_namespace_and_the_slug(project: dict[str, Any], name: str) -> None:
    assert server_of(**project)["name"] == name


def test_title_description_and_version_are_the_configured_ones() -> None:
    server = server_of({"title": "Echo!", "description": "Says it again."}, version="2.1.0")
    assert (server["title"], server["description"], server["version"]) == ("Echo!", "Says it again.", "2.1.0")


def test_a_description_falls_back_to_the_title() -> None:
    assert server_of({"title": "Echo!"})["description"] == "Echo!"


def test_long_texts_are_clamped_and_published_in_full() -> None:
    server = server_of({"title": LONG, "description": LONG})
    assert max(len(server["title"]), len(server["description"])) <= 100
    assert server["_meta"][PUBLISHER] == {"title": LONG.strip(), "description": LONG.strip()}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("short", "short"),
        ("x" * 100, "x" * 100),
        ("x" * 101, "x" * 99 + "…"),
        ("x" * 98 + "  and more", "x" * 98 + "…"),
        ("ü" * 200, "ü" * 99 + "…"),
    ],
)
def test_a_text_is_clamped_to_a_hundred_characters(text: str, shown: str) -> None:
    assert clamped(text) == shown


def test_the_url_is_the_one_that_clients_see() -> None:
    url = server_of(gateway={"public_url": "https://agents.example.com/pallas"})["remotes"][0]["url"]
    assert url == "https://agents.example.com/pallas/agents/echo/mcp"
    per_port = server_of({"port": 24201}, host="my-host", gateway={"per_port": True})
    assert per_port["remotes"][0]["url"] == "http://my-host:24201/mcp"


@pytest.mark.parametrize(
    ("icons", "shown"),
    [
        ({}, None),
        ({"icon": "https://a.example/i.svg"}, [{"src": "https://a.example/i.svg"}]),
        ({"icon": "i.svg"}, [{"src": "https://agents.example.com/i.svg"}]),
        (
            {"icons": [{"src": "/a.png", "sizes": ["48x48", "96x96"]}, {"src": "b.svg", "sizes": "any"}]},
            [
                {"src": "https://agents.example.com/a.png", "sizes": ["48x48", "96x96"]},
                {"src": "https://agents.example.com/b.svg", "sizes": ["any"]},
            ],
        ),
    ],
)
def test_icons_are_absolute_and_their_sizes_a_list(icons: dict[str, Any], shown: list[dict[str, Any]] | None) -> None:
    assert server_of(icons, gateway={"public_url": "https://agents.example.com"}).get("icons") == shown


def test_without_a_declaration_there_are_no_capabilities() -> None:
    server = server_of(fastagent={"default_model": "openai.gpt-x"})
    assert "capabilities" not in server
    assert "capabilities" not in server["_meta"][PUBLISHER]


@pytest.mark.parametrize("where", ["of the agent", "of the project"])
def test_declared_capabilities_stand_where_daedalus_and_where_the_schema_want_them(where: str) -> None:
    declared = {"model_capabilities": CAPABILITIES}
    agent = declared if where == "of the agent" else {}
    fastagent = {"default_model": "openai.vendor/gpt.x"} | (declared if where == "of the project" else {})

    server = server_of(agent, fastagent=fastagent)

    assert server["capabilities"] == {"model": "vendor/gpt.x", **CAPABILITIES}
    assert server["_meta"][PUBLISHER]["capabilities"] == server["capabilities"]


def test_an_agents_own_capabilities_win_over_the_projects() -> None:
    fastagent = {"model_capabilities": {"vision": False, "context_window": 1}}
    assert server_of({"model_capabilities": CAPABILITIES}, fastagent=fastagent)["capabilities"] == CAPABILITIES


def test_the_model_is_the_one_a_started_agent_really_uses() -> None:
    gateway = gateway_of({"echo": {"model_capabilities": CAPABILITIES}}, fastagent={"default_model": "openai.gpt-x"})
    running = MemoryAgentRuntime(MemoryAgent(model=ModelFacts("gpt-of-its-own")))
    gateway.agents["echo"].enter(State.READY, runtime=running)
    assert registry.entry(gateway, gateway.agents["echo"])["server"]["capabilities"]["model"] == "gpt-of-its-own"


def test_until_then_it_is_the_one_the_agent_is_declared_with() -> None:
    declared = {"module": None, "instruction": "You are echo.", "model": "openai.gpt-of-its-own"}
    server = server_of({**declared, "model_capabilities": CAPABILITIES}, fastagent={"default_model": "openai.gpt-x"})
    assert server["capabilities"]["model"] == "gpt-of-its-own"


def test_every_agent_is_listed_in_the_files_order_whatever_its_state() -> None:
    gateway = gateway_of({"zeta": {}, "alpha": {}, "mid": {}})
    gateway.agents["alpha"].enter(State.FAILED, reason="no key")
    documents = registry.well_known_document(gateway), registry.list_document(gateway)
    for document in documents:
        names = [entry["server"]["name"] for entry in document["servers"]]
        assert names == ["local.demo/zeta", "local.demo/alpha", "local.demo/mid"]
    assert documents[1]["metadata"] == {"count": 3}


def requested(if_none_match: str | None = None) -> Request:
    headers = [] if if_none_match is None else [(b"if-none-match", if_none_match.encode())]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": headers})


def test_a_response_may_be_kept_but_must_be_asked_about() -> None:
    response = registry.respond(requested(), {"servers": []})
    assert (response.status_code, response.body) == (200, b'{"servers": []}')
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["content-type"] == "application/json"
    assert response.headers["etag"].startswith('"')


def test_the_same_document_has_the_same_etag_and_another_one_another() -> None:
    one, same, another = (registry.respond(requested(), {"servers": value}) for value in ([], [], [1]))
    assert one.headers["etag"] == same.headers["etag"] != another.headers["etag"]


@pytest.mark.parametrize(
    ("template", "status"),
    [("{etag}", 304), ("W/{etag}", 304), ('"other", {etag}', 304), ("*", 304), ('"other"', 200), ("", 200)],
)
def test_a_client_that_has_the_document_is_told_so(template: str, status: int) -> None:
    etag = registry.respond(requested(), {"servers": []}).headers["etag"]
    response = registry.respond(requested(template.format(etag=etag)), {"servers": []})
    assert response.status_code == status
    assert response.headers["etag"] == etag
    assert bool(response.body) is (status == 200)
