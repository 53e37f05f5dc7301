"""Writes docs/use/routes.md from the table of routes."""

from pallas_gateway.composition.features import FEATURES
from pallas_gateway.core.feature import ListedRoute
from pallas_gateway.doors.http import open_endpoints
from pallas_gateway.doors.http.routes import of_api, others
from pallas_gateway.doors.openai import api as openai_api

INTRODUCTION = """\
# Routes

<!-- Made by `make docs` from the table of routes in the code, which `pallas-gateway routes` prints, too. -->

For authors of clients, and operators of ingresses. All routes are on the gateway's port. With `--per-port`, an agent's
own port has `/mcp`, `/livez`, `/readyz`, `/metrics`, `/docs/`, the metadata for sign-in, and its front page. "Requires"
holds with `gateway.auth` ([security](../operate/security.md#access)).

## `/api/v1`

`GET /api/v1/openapi.json` describes it exactly. Pages: [threads](threads.md#the-api),
[agents as data](agents-as-data.md#the-api), [calls](../operate/calls.md), [usage](../operate/limits.md#usage).

"""
OF_DATABASE = "\nWith `gateway.database`:\n\n"
OF_OTHERS = "\n## Others\n\n"
API_HEADER = "| request | does | requires |\n|---|---|---|\n"
HEADER = "| request | does | requires | setting |\n|---|---|---|---|\n"


def markdown() -> str:
    """Return the page `docs/use/routes.md`."""
    known = {f"GET {path}" for path in open_endpoints._ON_EVERY_PORT}
    known |= {f"{method} {path}" for path, method in openai_api._METHODS.items()}
    listed = {f"{one.method} {one.path}" for one in others(FEATURES)}
    assert known <= listed, known - listed
    api, (always, database) = of_api(FEATURES), ("", "`gateway.database`")
    assert {one.setting for one in api} == {always, database}
    parts = [API_HEADER + "".join(_row(one) for one in api if one.setting == setting) for setting in (always, database)]
    rest = (f"{_row(one).removesuffix('\n')} {one.setting} |\n" for one in others(FEATURES))
    return "".join([INTRODUCTION, OF_DATABASE.join(parts), OF_OTHERS, HEADER, *rest])


def _row(route: ListedRoute) -> str:
    return f"| `{route.method} {route.path}` | {route.does} | {route.requires} |\n"
