"""Writes docs/use/routes.md from the table of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.composition.features import FEATURES
from pallas_gateway.doors.http import open_endpoints
from pallas_gateway.doors.http.routes import of_api, others
from pallas_gateway.doors.openai import api as openai_api

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pallas_gateway.core.feature import ListedRoute

INTRODUCTION = """\
# Routes

<!-- Made by `make docs` from the table of routes in the code, which `pallas-gateway routes` prints, too. -->

All on the gateway's port. With `--per-port`, an agent's own port has `/mcp`, `/livez`, `/readyz`, `/metrics`, `/docs/`,
the metadata for sign-in, and its front page. Who may use a route matters where `gateway.auth` asks for tokens; see
[security](../operate/security.md#access).

## `/api/v1`

`GET /api/v1/openapi.json` describes it exactly. Pages: [threads](threads.md#the-api),
[agents as data](agents-as-data.md#the-api), [calls](../operate/calls.md), [usage](../operate/limits.md#usage).

"""
OF_OTHERS = """\

## Others

"""
HEADER = "| request | does | requires | setting |\n|---|---|---|---|\n"


def markdown() -> str:
    """Return the page `docs/use/routes.md`."""
    known = {f"GET {path}" for path in open_endpoints._ON_EVERY_PORT}
    known |= {f"{method} {path}" for path, method in openai_api._METHODS.items()}
    listed = {f"{one.method} {one.path}" for one in others(FEATURES)}
    assert known <= listed, known - listed
    return "".join([INTRODUCTION, HEADER, *_rows(of_api(FEATURES)), OF_OTHERS, HEADER, *_rows(others(FEATURES))])


def _rows(routes: Iterable[ListedRoute]) -> list[str]:
    return [f"| `{one.method} {one.path}` | {one.does} | {one.requires} | {one.setting} |\n" for one in routes]
