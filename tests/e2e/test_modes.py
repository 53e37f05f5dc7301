"""One port for all, a port per agent, one agent alone: what is where, and what is said of a route that is off."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.identity.static_keys import hash_of
from pallas_gateway.process.sockets import BindError
from tests.support.calling import EACH_VERSION, ask, health
from tests.support.clients import raw_client
from tests.support.gateway import Agent, running, write_project
from tests.support.listener import reserved_port

PER_PORT = Overrides(per_port=True)
REGISTRY = "/.well-known/mcp/server.json"


@dataclass(frozen=True)
class Ports:
    registry: int
    one: int
    two: int

    def of(self, agent: str) -> str:
        return f"http://127.0.0.1:{getattr(self, agent)}"


@pytest.fixture
def ports() -> Iterator[Ports]:
    with ExitStack() as reserved:
        yield Ports(*(reserved.enter_context(reserved_port()) for _ in range(3)))


def project_arguments(ports: Ports) -> dict[str, Any]:
    """Agents `one` and `two` with ports of their own; per-port mode would bind every interface without `host`."""
    return {
        "agents": {name: Agent(settings={"port": getattr(ports, name)}) for name in ("one", "two")},
        "gateway": {"host": "127.0.0.1"},
        "deployment": {"registry_port": ports.registry, "host": "127.0.0.1"},
    }


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_per_port_serves_each_agent_at_its_own_port_only(version: str, ports: Ports, tmp_path: Path) -> None:
    project = write_project(tmp_path, **project_arguments(ports))
    async with running(project, overrides=PER_PORT):
        for name in ("one", "two"):
            for path in ("/mcp", "/mcp/"):
                answer = await ask(f"{ports.of(name)}{path}", version=version)
                assert (answer.text, answer.meta["agent"]) == ("hello", name)
            async with raw_client(f"{ports.of(name)}/mcp", protocol_version=version) as client:
                assert [tool["name"] for tool in await client.list_tools()] == ["send_message", name, "get_health"]
            for path in ("/agents/one/mcp", "/agents/two/mcp"):
                await assert_not_found(f"{ports.of(name)}{path}", version)
        for path in ("/mcp", "/agents/one/mcp"):
            await assert_not_found(f"{ports.of('registry')}{path}", version)


async def test_per_port_registry_is_on_its_own_port_with_each_agents_url(ports: Ports, tmp_path: Path) -> None:
    arguments = project_arguments(ports)
    arguments["gateway"]["public_url"] = "https://agents.example.com"  # of what is at the registry's port alone
    async with running(write_project(tmp_path, **arguments), overrides=PER_PORT):
        listed = await get(f"{ports.of('registry')}{REGISTRY}")
        assert (await get(f"{ports.of('registry')}/v0.1/servers")).json()["servers"] == listed.json()["servers"]
        for name in ("one", "two"):
            assert (await get(f"{ports.of(name)}{REGISTRY}")).status_code == 404

        remotes = [entry["server"]["remotes"] for entry in listed.json()["servers"]]
        assert remotes == [[{"type": "streamable-http", "url": f"{ports.of(name)}/mcp"}] for name in ("one", "two")]
        for [remote] in remotes:
            assert (await ask(remote["url"], "as listed")).text == "as listed"


async def test_per_port_answers_probes_and_metrics_on_every_port(ports: Ports, tmp_path: Path) -> None:
    project = write_project(tmp_path, **project_arguments(ports))
    async with running(project, overrides=PER_PORT):
        for listener in ("registry", "one", "two"):
            assert (await get(f"{ports.of(listener)}/livez")).status_code == 200
            assert (await get(f"{ports.of(listener)}/readyz?strict=1")).status_code == 200
            metrics = (await get(f"{ports.of(listener)}/metrics")).text
            for name in ("one", "two"):
                assert f'pallas_agent_info{{agent="{name}",port="{getattr(ports, name)}"}} 1.0' in metrics


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_one_agent_alone_is_at_its_own_port_without_a_registry(
    version: str, ports: Ports, tmp_path: Path
) -> None:
    arguments = project_arguments(ports)
    arguments["agents"]["two"].settings["depends_on"] = ["one"]  # which is not started for it
    async with running(write_project(tmp_path, **arguments), overrides=Overrides(agent="two")) as served:
        assert (await ask(f"{ports.of('two')}/mcp", version=version)).meta["agent"] == "two"
        assert (await health(f"{ports.of('two')}/mcp", version=version))["status"] == "ok"
        for path in (REGISTRY, "/v0.1/servers", "/agents/two/mcp"):
            assert (await get(f"{ports.of('two')}{path}")).status_code == 404
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await get(f"{ports.of('two')}{path}")).status_code == 200
        assert list(served.gateway.agents) == ["two"]
        for silent in ("one", "registry"):
            with pytest.raises(httpx.ConnectError):
                await get(f"{ports.of(silent)}/livez")


@pytest.mark.parametrize(("overrides", "there"), [(PER_PORT, "registry"), (Overrides(agent="one"), "one")])
async def test_other_apis_are_where_the_registry_is_or_at_the_only_agent(
    overrides: Overrides, there: str, ports: Ports, tmp_path: Path
) -> None:
    arguments = project_arguments(ports)
    login = {"issuer": "https://login.example", "jwks_uri": "https://login.example/jwks"}
    auth = {"jwt": login, "console_client_id": "pallas", "anonymous": ["run:agents", "view:calls"]}
    arguments["gateway"] |= {"openai_api": True, "database": "sqlite:///threads.db", "auth": auth}
    paths = ("/v1/models", "/api/v1/calls", "/api/v1/agents/one", "/api/sign-in")
    async with running(write_project(tmp_path, **arguments), overrides=overrides):
        listeners = ("registry", "one", "two") if overrides.per_port else ("one",)
        found = {name: [await get(f"{ports.of(name)}{path}") for path in paths] for name in listeners}
    for name, answers in found.items():
        assert {one.status_code for one in answers} == {200 if name == there else 404}
    models, calls, agent, _ = (one.json() for one in found[there])
    assert [model["id"] for model in models["data"]] == (["one", "two"] if overrides.per_port else ["one"])
    assert (calls, "paramsSchema" in agent) == ({"calls": []}, True)


@pytest.mark.parametrize(
    ("overrides", "taken"),
    [(PER_PORT, "two"), (PER_PORT, "registry"), (Overrides(), "registry"), (Overrides(agent="one"), "one")],
)
async def test_port_that_is_taken_is_named(overrides: Overrides, taken: str, ports: Ports, tmp_path: Path) -> None:
    arguments = project_arguments(ports)
    arguments["gateway"]["port"] = ports.registry
    project = write_project(tmp_path, **arguments)
    with listening_on(getattr(ports, taken)), pytest.raises(BindError, match=f"127.0.0.1:{getattr(ports, taken)}: "):
        async with running(project, overrides=overrides):
            pytest.fail("it was served")

    async with running(project, overrides=overrides):  # nothing was left bound, and the port is free again
        pass


async def assert_not_found(url: str, version: str) -> None:
    """404 as JSON, to a POST that would otherwise be a call."""
    async with raw_client(url, protocol_version=version) as client:
        reply = await client.call_tool("send_message", {"message": "hello"})
    assert reply.status == 404
    assert reply.headers["content-type"] == "application/json"
    assert "error" in json.loads(reply.text)


async def get(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.get(url)


@contextmanager
def listening_on(port: int) -> Iterator[None]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield


# --- routes that are switched off -------------------------------------------------------------------------------------

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


async def test_per_port_the_registrys_port_says_where_an_agent_is(ports: Ports, tmp_path: Path) -> None:
    async with running(write_project(tmp_path, **project_arguments(ports)), overrides=PER_PORT):
        at_path = await error_at(f"{ports.of('registry')}/agents/one/mcp")
        other = await error_at(f"{ports.of('registry')}/agents/nobody/mcp")
        at_once = await error_at(f"{ports.of('registry')}/mcp")
    assert at_path == f"agent 'one' has a port of its own (gateway.per_port): {ports.of('one')}/mcp"
    assert other == "no agent on this port"
    assert at_once == "each agent is at /mcp on a port of its own; without `gateway.per_port` (--per-port) all are here"


async def test_per_port_a_name_that_the_gateway_does_not_know_gets_421(ports: Ports, tmp_path: Path) -> None:
    project, headers = write_project(tmp_path, **project_arguments(ports)), {"Host": f"box.example.com:{ports.one}"}
    async with running(project, overrides=PER_PORT), httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{ports.of('one')}/mcp", headers=headers, json={})
    assert answer.status_code == 421
