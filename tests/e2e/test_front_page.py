"""`GET /` and the documentation below `/docs/`: Markdown and JSON for programs, pages for browsers, to whom what."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, override
from urllib.parse import urldefrag, urljoin

import httpx
import pytest
import pytest_asyncio

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.features.pages.documentation import documents, images
from pallas_gateway.identity.static_keys import hash_of
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.listener import reserved_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
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


# --- Documentation


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[httpx.AsyncClient]:
    project = write_project(tmp_path_factory.mktemp("documents"), {"echo": Agent()}, gateway={"console": False})
    async with running(project) as served, httpx.AsyncClient(base_url=served.base_url, trust_env=False) as client:
        yield client


class Page(HTMLParser):
    """What a page holds: ids, addresses of links and images, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        named = dict(attrs)
        self.ids += [named["id"] or ""] if "id" in named else []
        self.addresses += [named[one] or "" for one in ("href", "src") if one in named]

    @override
    def handle_data(self, data: str) -> None:
        self.text += data


PAGES: dict[str, Page] = {}
"""Those that were requested."""


async def page(http: httpx.AsyncClient, path: str) -> Page:
    if path in PAGES:
        return PAGES[path]
    answer = await http.get(path, headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    return PAGES.setdefault(path, Page(answer.text))


@pytest.mark.parametrize("path", documents())
async def test_a_browser_gets_a_page_all_links_of_which_lead_somewhere(http: httpx.AsyncClient, path: str) -> None:
    shown = await page(http, path)
    assert len(shown.ids) == len(set(shown.ids))
    assert shown.tags.isdisjoint({"script", "iframe", "form", "object"})
    base = str(http.base_url).rstrip("/")
    front, *others = shown.addresses
    assert urljoin(f"{base}{path}", front) == f"{base}/"
    for address in others:
        if address.startswith(("https://", "http://")):
            continue
        target, anchor = urldefrag(urljoin(f"{base}{path}", address))
        there = target.removeprefix(base)
        assert there in documents().keys() | images().keys(), address
        if anchor:
            assert anchor in (await page(http, there)).ids, address


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        *((accept, "plain") for accept in ("*/*", "text/markdown", "text/plain, */*", "application/json", "", ";;,,=")),
        ("a" * 9000, "plain"),
        ("text/html;q=0.5, text/markdown", "plain"),
        ("text/markdown;q=0.5, text/html", "html"),
        ("text/html, text/plain", "plain"),
        ("text/html;q=0, */*", "plain"),
        ("TEXT/HTML; q=0.9; charset=utf-8, */*;q=0.8", "html"),
        ("text/html;q=nan, text/plain;q=inf", "plain"),
    ],
)
async def test_a_client_gets_what_it_prefers_and_markdown_otherwise(
    http: httpx.AsyncClient, accept: str, kind: str
) -> None:
    answer = await http.get("/docs/use/clients.md", headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, f"text/{kind}; charset=utf-8")
    assert "Accept" in answer.headers["vary"]
    assert (answer.text == documents()["/docs/use/clients.md"].read_text()) == (kind == "plain")


async def test_what_is_wider_than_a_phone_is_reached_by_keyboard(http: httpx.AsyncClient) -> None:
    for path in ("/docs/operate/observability.md", "/docs/use/clients.md"):
        shown = (await http.get(path, headers=BROWSER)).text
        assert (
            re.findall(r"<pre(?! tabindex)|(?<!<div class=\"wide\" role=\"group\" tabindex=\"0\">)<table", shown) == []
        )


async def test_a_page_runs_nothing_and_loads_images_of_the_gateway_alone(http: httpx.AsyncClient) -> None:
    policy: dict[str, Any] = {}
    headers = (await http.get("/docs/README.md", headers=BROWSER)).headers
    for part in headers["content-security-policy"].split(";"):
        name, _, value = part.strip().partition(" ")
        policy[name] = value
    assert policy.pop("style-src").startswith("'sha256-")
    assert policy.pop("img-src") == "'self'"
    assert set(policy.values()) == {"'none'"}
    assert headers["x-content-type-options"] == "nosniff"


async def test_code_is_shown_as_it_stands(http: httpx.AsyncClient) -> None:
    text = documents()["/docs/use/clients.md"].read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shown = (await http.get("/docs/use/clients.md", headers=BROWSER)).text
    assert blocks
    assert all(block in unescape(shown) for block in blocks)


async def test_a_link_out_of_the_documentation_is_text(http: httpx.AsyncClient) -> None:
    assert "](../../deploy/prometheus)" in documents()["/docs/operate/deploy.md"].read_text()
    shown = await page(http, "/docs/operate/deploy.md")
    assert "deploy/prometheus/" in shown.text
    assert not [one for one in shown.addresses if "deploy/prometheus" in one]


@pytest.mark.parametrize("path", images())
async def test_each_image_is_there(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert answer.content == images()[path].read_bytes()


@pytest.mark.parametrize(
    "path",
    [
        "/docs/../agents.yaml", "/docs/..%2fagents.yaml", "/docs/%2e%2e/agents.yaml", "/docs/use/clients.md%00",
        "/docs/use//clients.md", "/docs/use", "/docs/use/", "/docs/other.md", "/docs/images/none.png",
    ],
)  # fmt: skip
async def test_no_other_file_is_served(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path, headers=BROWSER)).status_code == 404


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
async def test_the_folder_of_the_documents_leads_to_their_index_below_any_prefix(
    http: httpx.AsyncClient, path: str
) -> None:
    redirect = await http.get(path)
    assert redirect.status_code == 308
    place = urljoin(f"https://proxy.example/prefix{path}", redirect.headers["location"])
    assert place == "https://proxy.example/prefix/docs/README.md"
    assert (await http.get("/docs/README.md")).text.startswith("# ")
