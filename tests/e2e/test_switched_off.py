"""The 404 of a route that is switched off: which setting enables it, and who learns that."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.identity.static_keys import hash_of
from tests.support.gateway import Agent, running, write_project
from tests.support.listener import reserved_port

if TYPE_CHECKING:
    from pathlib import Path

OPENAI = "the OpenAI API is off; `gateway.openai_api: true` in agents.yaml enables it"
DATABASE = (
    "threads and agents of the database are off; `gateway.database` in agents.yaml, the URL of a database, enables them"
)
ROUTES = {
    "/v1": OPENAI,
    "/v1/models": OPENAI,
    "/v1/chat/completions": OPENAI,
    "/v1/responses": OPENAI,
    "/api/v1": DATABASE,
    "/api/v1/threads": DATABASE,
    "/api/v1/agents": DATABASE,
    "/api/v1/agents/echo/versions": DATABASE,
    "/api/v1/agents_may_use": DATABASE,
    "/v2": "nothing here",
    "/api": "nothing here",
    "/agents/echo": "nothing here; an agent is at /agents/NAME/mcp",
    "/agents/echo/mpc": "nothing here; an agent is at /agents/NAME/mcp",
}
KEYS = [
    {"name": "narrow", "sha256": hash_of("narrow"), "grants": ["view:agents:echo"]},
    {"name": "idle", "sha256": hash_of("idle"), "grants": ["view:metrics"]},
]


async def error_at(url: str, **headers: str) -> str:
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(url, headers=headers)
    assert answer.status_code == 404
    body = answer.json()
    return str(body.get("error_description", body["error"]))


async def test_a_route_that_is_off_names_the_setting_that_enables_it(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        assert {path: await error_at(f"{served.base_url}{path}") for path in ROUTES} == ROUTES


@pytest.mark.parametrize(("token", "told"), [(None, False), ("wrong", False), ("idle", False), ("narrow", True)])
async def test_the_setting_is_named_only_to_callers_that_may_view_an_agent(
    token: str | None, told: bool, tmp_path: Path
) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={"auth": {"tokens": KEYS}})) as served:
        error = await error_at(f"{served.base_url}/v1/models", **headers)
        refused = served.metric("pallas_auth_refused_total", reason="invalid_token")
    assert error == (OPENAI if told else "nothing here")
    assert refused == (token == "wrong")


async def test_per_port_the_registrys_port_says_where_an_agent_is(tmp_path: Path) -> None:
    with ExitStack() as reserved:
        registry, one = (reserved.enter_context(reserved_port()) for _ in range(2))
        agents = {"one": Agent(settings={"port": one})}
        deployment = {"registry_port": registry, "host": "127.0.0.1"}
        project = write_project(tmp_path, agents, gateway={"host": "127.0.0.1"}, deployment=deployment)
        async with running(project, overrides=Overrides(per_port=True)) as served:
            at_path = await error_at(f"{served.base_url}/agents/one/mcp")
            other = await error_at(f"{served.base_url}/agents/two/mcp")
            at_once = await error_at(f"{served.base_url}/mcp")
    assert at_path == f"agent 'one' has a port of its own (gateway.per_port): http://127.0.0.1:{one}/mcp"
    assert other == "no agent on this port"
    assert at_once == "each agent is at /mcp on a port of its own; without `gateway.per_port` (--per-port) all are here"
