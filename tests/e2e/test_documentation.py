"""The documentation that a gateway serves below `/docs/`: Markdown for programs, pages for browsers."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, override
from urllib.parse import urldefrag, urljoin

import httpx
import pytest
import pytest_asyncio

from pallas_gateway.features.pages.documentation import documents, images
from tests.support.gateway import Agent, running, write_project

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = pytest.mark.asyncio(loop_scope="module")
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
    "accept", ["*/*", "text/markdown", "text/plain, */*", "application/json", "", ";;,,=", "a" * 9000]
)
async def test_a_program_gets_markdown(http: httpx.AsyncClient, accept: str) -> None:
    answer = await http.get("/docs/use/clients.md", headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert answer.text == documents()["/docs/use/clients.md"].read_text()
    assert "Accept" in answer.headers["vary"]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/html;q=0.5, text/markdown", "plain"),
        ("text/markdown;q=0.5, text/html", "html"),
        ("text/html, text/plain", "plain"),
        ("text/html;q=0, */*", "plain"),
        ("TEXT/HTML; q=0.9; charset=utf-8, */*;q=0.8", "html"),
        ("text/html;q=nan, text/plain;q=inf", "plain"),
    ],
)
async def test_a_client_gets_what_it_prefers(http: httpx.AsyncClient, accept: str, kind: str) -> None:
    answer = await http.head("/docs/use/clients.md", headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, f"text/{kind}; charset=utf-8")


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


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        ("/docs", "README.md"),
        ("", "README.md"),
        ("clients.md", "use/clients.md"),
        ("configuration.md", "operate/configuration.md"),
        ("operating.md", "operate/README.md"),
        ("architecture.md", "develop/architecture.md"),
        ("decisions/0003-path-of-a-call.md", "develop/decisions/0003-path-of-a-call.md"),
    ],
)
async def test_the_earlier_address_of_a_document_leads_to_it_below_any_prefix(
    http: httpx.AsyncClient, earlier: str, now: str
) -> None:
    redirect = await http.get(urljoin("/docs/", earlier))
    assert redirect.status_code == 308
    place = urljoin(f"https://proxy.example/prefix{urljoin('/docs/', earlier)}", redirect.headers["location"])
    assert place == f"https://proxy.example/prefix/docs/{now}"
    assert (await http.get(f"/docs/{now}")).text.startswith("# ")
