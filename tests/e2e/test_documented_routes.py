"""The routes that README.md and docs/ name are answered, and every route of a gateway is named there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import httpx

from pallas_gateway.urls import AGENT_DETAILS, CONSOLE, GATEWAY_STATE, RIGHTS, SIGN_IN
from pallas_gateway.web import open_endpoints, protected_resource
from pallas_gateway.web.console import files
from pallas_gateway.web.openai import api as openai_api
from pallas_gateway.web.refusals import NOTHING_HERE
from pallas_gateway.web.threads import openapi
from tests.support.documents import pages
from tests.support.guarded import STATIC_KEY, bearer, guarded, static_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

METHODS = "GET|POST|PUT|PATCH|DELETE"
FIRST = r"agents|api|console|docs|livez|readyz|metrics|mcp|v0\.1|v0|v1|\.well-known"
ROUTE = re.compile(
    rf"(?:(?P<methods>(?:{METHODS})(?:`?, `?(?:{METHODS}))*) |(?P<of_curl>(?<=curl )[^\n]*?))?"
    rf"(?:(?<![\w/.:…}}])|(?P<url>https?://agents\.example\.com|(?:http://)?localhost:242\d\d))"
    rf"(?P<path>/(?:(?:{FIRST})(?:[/?][^\s`'\"),|;:\\]*)?(?![\w-])|(?=`)))"
)
SHORTENED = re.compile(rf"`(?P<method>{METHODS}) …(?P<path>/[^`]+)`")
OF_OTHERS = {
    ("docs/operate/observability.md", "/v1/traces"): "of a collector of traces",
    ("docs/operate/providers-at-work.md", "/v1/models/{model}"): "of a provider",
    ("docs/use/sign-in.md", "/.well-known/oauth-authorization-server"): "of an authorization server",
    ("docs/use/sign-in.md", "/.well-known/openid-configuration"): "of an authorization server",
}
PREFIXES = {"/v0", "/v0.1", "/v1", "/v1/", "/api/", "/api/v1", "/api/v1/", "/agents/", "/docs/"}
"""Beginnings of routes, as documents name an API or a rule of a proxy."""


@dataclass(frozen=True, order=True)
class Named:
    """A route as a document names it; without a method where only the path stands there."""

    document: str
    method: str
    path: str
    parameters: frozenset[str] = frozenset()


def named_in(document: str, text: str) -> Iterator[Named]:
    for found in ROUTE.finditer(text):
        methods = re.findall(METHODS, found["methods"] or "") or [""]
        path, _, query = found["path"].rstrip(".").partition("?")
        asked = frozenset(re.findall(r"(\w+)=", query))
        yield from (Named(document, method, path, asked) for method in methods)
    for found in SHORTENED.finditer(text):
        wholes = [
            path for method, path in routes() if method == found["method"] and path.endswith(shape(found["path"]))
        ]
        yield from (Named(document, found["method"], path) for path in wholes or [found["path"]])


@cache
def documented() -> frozenset[Named]:
    texts = {name: text for name, text in pages().items() if name not in {"docs/upstream.md", "docs/performance.md"}}
    found = {one for name, text in texts.items() for one in named_in(name, text)}
    return frozenset(one for one in found if (one.document, one.path) not in OF_OTHERS)


def shape(path: str) -> str:
    """The path with `{}` for each part that differs between requests."""
    path = re.sub(r"\{\w+\}|<\w+>|\b[A-Z]+\b(?!\.)", "{}", path)
    known = ("/agents/", "/api/agents/", "/api/v1/agents/", "/api/v1/threads/", "/versions/", "/turns/")
    for begin in known:
        path = re.sub(rf"({re.escape(begin)})[^/]+", r"\1{}", path)
    return path


def routes() -> set[tuple[str, str]]:
    """The routes of the code, by method and shape."""
    opened = {("GET", path) for path in (*open_endpoints._ON_EVERY_PORT, *open_endpoints._WITH_REGISTRY)}
    api = {
        (method.upper(), shape(path))
        for path, methods in openapi.document([])["paths"].items()
        for method in methods
        if method != "parameters"
    }
    console = {("GET", path) for path in (GATEWAY_STATE, RIGHTS, SIGN_IN, f"{AGENT_DETAILS}{{}}")}
    paged = {("GET", f"{CONSOLE}{page}") for page in files._PAGES}
    openai = {(method, path) for path, method in openai_api._METHODS.items()} | {("GET", f"{openai_api.MODELS}/{{}}")}
    metadata = {("GET", f"{protected_resource.WELL_KNOWN}{path}") for path in ("/mcp", "/agents/{}/mcp")}
    return {
        *opened, *api, *console, *paged, *openai, *metadata,
        ("GET", "/api/v1/openapi.json"), ("POST", f"{AGENT_DETAILS}{{}}/tools/{{}}/{{}}"),
        ("POST", "/mcp"), ("POST", "/agents/{}/mcp"),
    }  # fmt: skip


def test_the_routes_of_documents_are_found() -> None:
    text = (
        "`PUT`, `DELETE /api/v1/x/{id}?a=&b=`, `/livez`, `/etc/mcp`, `POST …/fork`, `GET …/nothing`, localhost:24200/v1"
    )
    assert {(one.method, one.path) for one in named_in("", text)} == {
        ("PUT", "/api/v1/x/{id}"),
        ("DELETE", "/api/v1/x/{id}"),
        ("", "/livez"),
        ("POST", "/api/v1/threads/{}/fork"),
        ("GET", "/nothing"),
        ("", "/v1"),
    }
    assert len(documented()) > 100


def test_every_route_is_named_by_a_document() -> None:
    named = {(one.method, shape(one.path)) for one in documented()}
    missing = {one for one in routes() if not {one, ("", one[1])} & named}
    assert missing == set()


def test_the_query_parameters_of_a_route_are_those_of_its_openapi_document() -> None:
    paths = openapi.document([])["paths"]
    known = {
        shape(path): {one["name"] for one in methods["get"].get("parameters", []) if one.get("in") == "query"}
        for path, methods in paths.items()
        if "get" in methods
    }
    asked = {one for one in documented() if one.parameters and shape(one.path) in known}
    assert asked
    assert {one for one in asked if not one.parameters <= known[shape(one.path)]} == set()


async def test_a_gateway_answers_every_route_that_a_document_names(tmp_path: Path) -> None:
    settings = {"database": "sqlite:///pallas.db", "openai_api": True, "console": True, "console_run_tools": True}
    auth = {"tokens": [static_key("run:agents", "view:instructions", "edit:agents", "view:metrics", "view:calls")]}
    async with guarded(tmp_path, agents=("echo",), auth=auth, gateway=settings) as g:
        headers = {"Authorization": bearer(STATIC_KEY), "Accept": "application/json"}
        base = g.served.base_url
        async with httpx.AsyncClient(base_url=base, headers=headers, trust_env=False) as http:
            lost = [one for one in sorted(documented(), key=str) if not await is_answered(http, one)]
            for method, path in (("GET", "/api/v1/nothing"), ("POST", "/livez"), ("", "/v1/nothing"), ("", "/metric")):
                assert not await is_answered(http, Named("", method, path))
    assert lost == []


async def is_answered(http: httpx.AsyncClient, one: Named) -> bool:
    """Return False where a gateway has nothing, or another method than the document says."""
    if one.path in PREFIXES:
        begin = one.path.rstrip("/") + "/"
        return any(path.startswith(begin) for _, path in routes()) or begin in {"/v0/", "/docs/"}
    path = re.sub(r"\{name\}|<name>|NAME|(?<=/agents/)[\w-]+", "echo", one.path)
    path = re.sub(r"\{\w*\}|\b[A-Z]+\b(?!\.)", "1", path)
    answer = await http.request(one.method or "GET", path)
    is_nothing = answer.status_code == httpx.codes.NOT_FOUND and NOTHING_HERE in answer.text.lower().replace("is ", "")
    is_other_method = answer.status_code == httpx.codes.METHOD_NOT_ALLOWED and one.method != ""
    return not is_nothing and not is_other_method
