"""`GET /`: the page and its JSON, to whom it shows which agents, in each mode."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.features.pages.documentation import documents
from pallas_gateway.identity.static_keys import hash_of
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.listener import reserved_port

if TYPE_CHECKING:
    from pathlib import Path

PAGE = {"console": False}  # with it, browsers are redirected there
JSON = {"Accept": "application/json"}
AGENTS = {
    "echo": Agent(settings={"title": "<b>Echo</b>", "description": "Repeats & returns."}),
    "broken": Agent(source="raise ValueError('no <key>')\n"),
}
KEYS = [{"name": "narrow", "sha256": hash_of("narrow"), "grants": ["view:agents:echo"]}]


async def get(base_url: str, path: str = "/", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.get(f"{base_url}{path}", headers=headers)


async def content(served: Running, **headers: str) -> dict[str, Any]:
    return dict((await get(served.base_url, **JSON, **headers)).json())


async def test_the_page_shows_agents_states_and_addresses(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, AGENTS, gateway=PAGE)) as served:
        page = await get(served.base_url, Accept="text/html,application/xhtml+xml,*/*;q=0.8")
        public = served.gateway.configuration.public_base_url

    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for shown in ("echo", "ready", "failed: ", f"{public}/agents/echo/mcp", f"{public}/agents/broken/mcp"):
        assert shown in page.text
    assert f"{public}/.well-known/mcp/server.json" in page.text
    assert f"{public}/mcp" in page.text


async def test_the_page_shows_text_of_the_configuration_as_text(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, AGENTS, gateway=PAGE)) as served:
        page = await get(served.base_url)
    assert "&lt;b&gt;Echo&lt;/b&gt;" in page.text
    assert "no &lt;key&gt;" in page.text
    assert "<b>" not in page.text


async def test_the_page_has_no_script_and_loads_nothing(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, AGENTS, gateway=PAGE)) as served:
        page = await get(served.base_url)
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy.pop("style-src").startswith("'sha256-")
    assert set(policy.values()) == {"'none'"}
    assert set(policy) == {"default-src", "base-uri", "form-action", "frame-ancestors"}
    assert "<script" not in page.text
    assert not re.search(r"\b(src|action|srcset)=|@import|url\(", page.text)


async def test_every_link_of_the_page_leads_to_a_document_of_this_gateway(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, AGENTS, gateway=PAGE)) as served:
        links = re.findall(r'href="([^"]*)"', (await get(served.base_url)).text)
        assert {f"/{link}" for link in links} == {path for path in documents() if "/decisions/" not in path}
        for link in links:
            assert (await get(served.base_url, f"/{link}")).text.startswith("# ")


async def test_a_client_that_accepts_json_gets_the_content_as_json(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, AGENTS, gateway={**PAGE, "openai_api": True})) as served:
        public, found = served.gateway.configuration.public_base_url, await content(served)
        both = await get(served.base_url, Accept="text/html, application/json")
    echo, broken = found.pop("agents")
    assert found == {
        "registry": f"{public}/.well-known/mcp/server.json",
        "all_agents": f"{public}/mcp",
        "openai_api": f"{public}/v1",
        "threads_api": None,
    }
    assert echo == {
        "name": "echo",
        "title": "<b>Echo</b>",
        "description": "Repeats & returns.",
        "state": "ready",
        "reason": None,
        "url": f"{public}/agents/echo/mcp",
    }
    assert (broken["name"], broken["state"]) == ("broken", "failed")
    assert "no <key>" in broken["reason"]
    assert both.headers["content-type"].startswith("text/html")


async def test_a_filtered_registry_shows_a_caller_only_the_agents_that_it_may_view(tmp_path: Path) -> None:
    auth = {"tokens": KEYS, "registry": "filtered"}
    async with running(write_project(tmp_path, AGENTS, gateway={**PAGE, "auth": auth, "openai_api": True})) as served:
        nothing = await content(served)
        page = await get(served.base_url)
        narrow = await content(served, Authorization="Bearer narrow")
        wrong = await get(served.base_url, Authorization="Bearer wrong")
        public = served.gateway.configuration.public_base_url
    assert nothing == {
        "registry": f"{public}/.well-known/mcp/server.json",
        "all_agents": None,
        "openai_api": None,
        "threads_api": None,
        "agents": [],
    }
    assert "echo" not in page.text
    assert "A caller without a token may view none here." in page.text
    assert [agent["name"] for agent in narrow["agents"]] == ["echo"]
    assert wrong.status_code == 401


async def test_other_methods_are_refused(tmp_path: Path) -> None:
    async with (
        running(write_project(tmp_path, {"echo": Agent()}, gateway=PAGE)) as served,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        posted = await http.post(f"{served.base_url}/")
        looked = await http.head(f"{served.base_url}/")
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
    assert (looked.status_code, looked.text) == (200, "")


@pytest.mark.parametrize("alone", [None, "one"])
async def test_with_a_port_per_agent_each_port_shows_what_it_serves(alone: str | None, tmp_path: Path) -> None:
    with ExitStack() as reserved:
        registry, one, two = (reserved.enter_context(reserved_port()) for _ in range(3))
        agents = {name: Agent(settings={"port": port}) for name, port in (("one", one), ("two", two))}
        deployment = {"registry_port": registry, "host": "127.0.0.1"}
        project = write_project(tmp_path, agents, gateway={"host": "127.0.0.1"}, deployment=deployment)
        async with running(project, overrides=Overrides(per_port=True, agent=alone)) as served:
            own = (await get(f"http://127.0.0.1:{one}", **JSON)).json()
            whole = None if alone else await content(served)
    url = f"http://127.0.0.1:{one}/mcp"
    assert [(agent["name"], agent["url"]) for agent in own["agents"]] == [("one", url)]
    assert own["all_agents"] is None
    assert own["registry"] == (None if alone else f"http://127.0.0.1:{registry}/.well-known/mcp/server.json")
    if whole is not None:
        assert [(agent["name"], agent["url"]) for agent in whole["agents"]] == [
            ("one", url),
            ("two", f"http://127.0.0.1:{two}/mcp"),
        ]
