"""Writes docs/use/routes.md from the OpenAPI document of `/api/v1` and the paths of the other routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.urls import AGENT_DETAILS, CONSOLE, GATEWAY_STATE, RIGHTS, SIGN_IN, WELL_KNOWN
from pallas_gateway.web import open_endpoints, protected_resource, registry_api
from pallas_gateway.web.openai import api as openai_api
from pallas_gateway.web.threads import openapi

if TYPE_CHECKING:
    from collections.abc import Iterator

INTRODUCTION = """\
# Routes

<!-- Made by `make docs` from the OpenAPI document and the paths of the code. -->

All on the gateway's port. With `--per-port`, an agent's own port has `/mcp`, `/livez`, `/readyz`, `/metrics`, `/docs/`
and its front page. [Security](../operate/security.md#access) has what callers may do.
"""
OF_API = """\

## `/api/v1`

Served with `gateway.database`; calls and usage without one, too. `GET /api/v1/openapi.json` describes it exactly.
[Threads](threads.md#the-api), [agents as data](agents-as-data.md#the-api), [calls](../operate/calls.md),
[usage](../operate/limits.md#usage).

| request | does |
|---|---|
"""
OTHERS = """\

## Others

| request | does |
|---|---|
"""
MEANINGS = {
    "POST /mcp": "[all agents](clients.md#all-agents-behind-one-url) over MCP; on an agent's own port that agent",
    "POST /agents/{name}/mcp": "one agent over [MCP](clients.md)",
    "GET /": "the console for browsers, the front page as JSON for programs",
    "GET /livez": "200 while the process runs",
    "GET /readyz": "200 when every agent was tried; with `strict=1` only if none has failed",
    "GET /metrics": "[metrics](../operate/metrics.md)",
    f"GET {WELL_KNOWN}": "the [registry](clients.md) of the agents",
    f"GET {registry_api.PATH}": "the part of an MCP registry's API that reads; also below `/v0`",
    f"GET {protected_resource.WELL_KNOWN}/mcp": "how clients [sign in](sign-in.md), also with the path of an agent",
    f"POST {openai_api.CHAT}": "agents for [OpenAI clients](openai-api.md), with `gateway.openai_api`",
    f"GET {openai_api.MODELS}": "the agents as models, with `gateway.openai_api`; below it each of them",
    f"GET {CONSOLE}": "the [console](console.md)",
    "GET /docs/": "these pages",
    f"GET {GATEWAY_STATE}": "for the console: the gateway",
    f"GET {RIGHTS}": "for the console: what the caller may do",
    f"GET {SIGN_IN}": "how people [sign in](sign-in.md)",
    f"GET {AGENT_DETAILS}{{name}}": "for the console: one agent",
    f"POST {AGENT_DETAILS}{{name}}/tools/{{server}}/{{tool}}": "[runs a tool](console.md#run-a-tool)",
}


def markdown() -> str:
    """Return the page `docs/use/routes.md`."""
    known = {f"GET {path}" for path in (*open_endpoints._ON_EVERY_PORT, *open_endpoints._WITH_REGISTRY)}
    known |= {f"{method} {path}" for path, method in openai_api._METHODS.items()}
    assert known <= MEANINGS.keys(), known - MEANINGS.keys()
    others = "".join(f"| `{route}` | {meaning} |\n" for route, meaning in MEANINGS.items())
    return "".join([INTRODUCTION, OF_API, *_of_api(), OTHERS, others])


def _of_api() -> Iterator[str]:
    for path, methods in openapi.document([])["paths"].items():
        for method, route in methods.items():
            if method != "parameters":
                query = "&".join(f"{one['name']}=" for one in route.get("parameters", ()) if one.get("in") == "query")
                yield f"| `{method.upper()} {path}{'?' if query else ''}{query}` | {route['summary']} |\n"
