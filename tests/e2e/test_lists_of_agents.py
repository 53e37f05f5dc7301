"""Everything that lists agents shows a caller the same ones: those that it may view, or may run where it calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.agents_api import agents_api
from tests.support.clients import MODERN_VERSION, raw_client

if TYPE_CHECKING:
    from collections.abc import Set
    from pathlib import Path

    from tests.support.agents_api import AgentsApi

ALL = {"echo", "secret", "declared", "poet"}
CALLERS: dict[str | None, tuple[Set[str], Set[str]]] = {
    None: (set(), set()),
    "nobody": (set(), set()),
    "creator": ({"echo"}, {"echo"}),
    "viewer": (ALL, set()),
    "runner": (ALL, ALL),
    "editor": ({"poet"}, {"poet"}),
    "deleter": ({"poet"}, set()),
    "owner": ({"poet"}, {"poet"}),
}
"""The agents that each caller may view, and may run; None is without a token."""

CALLING = {"/v1/models", "/api/rights", "/mcp"}
"""Lists of what a caller may run; the others show what it may view."""
REGISTERS = ("/", "/.well-known/mcp/server.json", "/v0.1/servers")
"""With `/readyz`, what shows everybody all agents where the registry is open."""


async def listed(api: AgentsApi, key: str | None) -> dict[str, Set[str]]:
    """What a caller is shown, by where; of `/readyz` the number only, and nothing where it needs a token."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=api.served.base_url, trust_env=False, headers=headers) as http:

        async def document(path: str) -> dict[str, Any]:
            response = await http.get(path, headers={"Accept": "application/json"})
            assert response.status_code == 200 or (key is None and response.status_code == 401), (path, response.text)
            return dict(response.json()) if response.status_code == 200 else {}

        viewed = {
            "/": {one["name"] for one in (await document("/"))["agents"]},
            "/api/v1/agents": {one["name"] for one in (await document("/api/v1/agents")).get("agents", ())},
        }
        for path in ("/.well-known/mcp/server.json", "/v0.1/servers"):
            entries = (await document(path)).get("servers", ())
            viewed[path] = {one["server"]["name"].partition("/")[2] for one in entries}
        ran = {
            "/v1/models": {one["id"] for one in (await document("/v1/models")).get("data", ())},
            "/api/rights": set((await document("/api/rights")).get("run", ())),
        }
        count = (await document("/readyz"))["agents"]
    url = f"{api.served.base_url}/mcp"
    if CALLERS[key][0]:
        async with raw_client(url, protocol_version=MODERN_VERSION, bearer=key) as client:
            tools = {str(tool["name"]) for tool in await client.list_tools()}
        ran["/mcp"] = {tool.removeprefix("agent-") for tool in tools - {"get_health"}}
    return {**viewed, **ran, "/readyz": {str(count)}}


@pytest.mark.parametrize("registry", ["open", "filtered"])
async def test_every_list_shows_a_caller_the_same_agents(registry: str, tmp_path: Path) -> None:
    async with agents_api(tmp_path, openai_api=True, console=True, registry=registry) as api:
        await api.make(wait=True)
        found = {key: await listed(api, key) for key in CALLERS}
    for key, shown in found.items():
        may_view, may_run = CALLERS[key]
        registered = ALL if registry == "open" else may_view
        wanted = {path: may_run if path in CALLING else may_view for path in shown}
        assert shown == wanted | dict.fromkeys(REGISTERS, registered) | {"/readyz": {str(len(registered))}}, key
    assert found["runner"].keys() >= {"/mcp", *CALLING}
