"""The console's endpoints: what they show of an agent and of the gateway, and to whom."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.identity.caller import ANONYMOUS
from pallas_gateway.identity.static_keys import hash_of
from tests.support.changing import ChangingTool, changing_downstream
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, module_source, running, write_project
from tests.support.listener import reserved_port
from tests.support.stdio_processes import Processes
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.support.gateway import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")

GRANTS = {
    "viewer": ["view:agents:lead"],
    "reader": ["view:agents:lead", "view:instructions:lead"],
    "runner": ["run:agents", "view:instructions:lead"],
    "operator": ["view:gateway", "view:agents"],
    "stranger": ["view:instructions", "view:metrics"],
}
KEYS = [{"name": name, "sha256": hash_of(f"key-of-{name}"), "grants": grants} for name, grants in GRANTS.items()]
SECRET = "s3cret-of-the-notes"
LEAD = Agent(
    servers=["notes", "echo", "mine", "gone", "program"],
    decorator='tools={"notes": ["add", "e*"]}',
    settings={"depends_on": ["echo"]},
)


@dataclass
class Console:
    """A served gateway with keys."""

    served: Running

    async def get(self, path: str, who: str | None = None, **headers: str) -> httpx.Response:
        """Request a path, with the key of `who`."""
        authorization = {"Authorization": f"Bearer key-of-{who}"} if who else {}
        async with httpx.AsyncClient(trust_env=False, base_url=self.served.base_url) as http:
            return await http.get(path, headers={**authorization, **headers})

    async def lead(self, who: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The document of `lead`, and its servers by name, once two have been listed."""
        runtime = self.served.gateway.agents["lead"].runtime
        assert runtime is not None
        await eventually(
            lambda: {"notes", "program"} <= {one.name for one in runtime.server_tools(ANONYMOUS) if one.tools},
            what="the listings",
        )
        document = (await self.get("/api/agents/lead", who)).json()
        return document, {one["name"]: one for one in document["servers"]}


@asynccontextmanager
async def serving(path: Path, **gateway: Any) -> AsyncGenerator[Console]:
    async with AsyncExitStack() as stack:
        notes = await stack.enter_async_context(stateless_downstream())
        gone = await stack.enter_async_context(stateless_downstream(start=False))
        headers = {"Authorization": f"Bearer {SECRET}"}
        servers: dict[str, dict[str, Any]] = {
            "notes": {"url": notes.url, "headers": headers},
            "mine": {"url": notes.url, "forward_inbound_auth": True},
            "gone": {"url": gone.url},
            "program": Processes(path).settings(),
        }
        agents = {"lead": LEAD, "echo": Agent(), "broken": Agent(source="raise ValueError('no key')\n")}
        project = write_project(path, agents, servers=servers, gateway=gateway)
        yield Console(await stack.enter_async_context(running(project)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Console]:
    async with serving(tmp_path_factory.mktemp("console"), auth={"tokens": KEYS}) as found:
        yield found


async def test_an_agent_shows_its_instruction_and_the_tools_that_it_may_use(console: Console) -> None:
    document, servers = await console.lead("runner")
    assert (document["name"], document["instruction"]) == ("lead", "You are lead.")
    assert document["may_run"] is True
    assert set(servers) == {"notes", "echo", "mine", "gone", "program"}
    assert "where" in [tool["name"] for tool in servers["program"]["tools"]]
    assert {tool["name"] for tool in servers["notes"]["tools"]} == {"add", "echo", "emit"}
    [add] = [tool for tool in servers["notes"]["tools"] if tool["name"] == "add"]
    assert set(add) == {"name", "title", "description", "inputSchema"}
    assert set(add["inputSchema"]["properties"]) == {"a", "b"}
    assert "send_message" in [tool["name"] for tool in servers["echo"]["tools"]]
    assert servers["mine"] == {"name": "mine", "tools": None, "reason": "The server may offer others to each caller."}
    assert servers["gone"] == {"name": "gone", "tools": None, "reason": "The server has not listed its tools."}


async def test_the_instruction_and_peers_require_their_grants(console: Console) -> None:
    viewed, servers = await console.lead("viewer")
    read, _ = await console.lead("reader")
    assert "instruction" not in viewed
    assert read["instruction"] == "You are lead."
    reason = "They are shown to callers that may view the agent."
    assert servers["echo"] == {"name": "echo", "tools": None, "reason": reason}


async def test_no_secret_leaves(console: Console) -> None:
    answer = await console.get("/api/agents/lead", "runner")
    assert SECRET not in answer.text
    assert "http://" not in answer.text
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("path", "who", "status"),
    [
        ("/api/agents/lead", None, 401),
        ("/api/agents/none", None, 401),
        ("/api/agents/lead", "nobody", 401),
        ("/api/agents/lead", "stranger", 404),
        ("/api/agents/echo", "reader", 404),
        ("/api/agents/none", "runner", 404),
        ("/api/agents/", "runner", 404),
        ("/api/agents/lead/more", "runner", 404),
        ("/api/gateway", None, 401),
        ("/api/gateway", "runner", 403),
        ("/api/gateway", "operator", 200),
        ("/api/gateway/", "operator", 404),
        ("/api/rights", None, 200),
        ("/api/rights", "nobody", 401),
        ("/api/rights/", "operator", 404),
        ("/api/sign-in", None, 200),
        ("/api/sign-in", "nobody", 200),
        ("/api/sign-in/", "operator", 404),
    ],
)
async def test_other_callers_are_refused(path: str, who: str | None, status: int, console: Console) -> None:
    answer = await console.get(path, who)
    assert answer.status_code == status
    assert "You are" not in answer.text


async def test_the_rights_name_the_agents_that_the_caller_may_run_and_whether_it_may_list_calls(
    console: Console,
) -> None:
    found = {who: (await console.get("/api/rights", who)).json() for who in ("runner", "viewer", None)}
    assert {"echo", "lead"} <= set(found["runner"]["run"])
    viewed = found["viewer"].pop("view")
    you = {"name": "viewer", "id": "key:viewer", "kind": "key"}
    assert found["viewer"] == {"create_agents": False, "list_calls": True, "run": [], "you": you}
    assert viewed == ["lead"]
    you = {"name": "anonymous", "id": "anonymous", "kind": "anonymous"}
    assert found[None] == {"create_agents": False, "list_calls": False, "run": [], "view": [], "you": you}


async def test_an_agent_that_failed_has_no_servers_yet(console: Console) -> None:
    answer = await console.get("/api/agents/broken", "operator")
    details: dict[str, Any] = {
        "name": "broken",
        "model": "passthrough",
        "servers": None,
        "may_run": False,
        "may_run_tools": False,
        "examples": [],
    }
    assert (answer.status_code, answer.json()) == (200, {**details, "max_body_bytes": 33_554_432})


async def test_the_guards_hold_for_the_endpoints(console: Console) -> None:
    for path in ("/api/agents/lead", "/api/gateway", "/api/rights", "/api/sign-in"):
        foreign = await console.get(path, "operator", Origin="https://foreign.example")
        rebound = await console.get(path, "operator", Host="rebound.example")
        assert (foreign.status_code, rebound.status_code) == (403, 421)
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.post(f"{console.served.base_url}{path}")).status_code == 405


async def test_a_failed_reload_shows_its_problems_until_one_succeeds(console: Console) -> None:
    async def problems() -> list[str]:
        return list((await console.get("/api/gateway", "operator")).json()["problems"])

    project = console.served.project
    before = (project.path / "agents.yaml").read_text()
    assert await problems() == []
    project.edit(lambda document: document.update(unknown=1))
    await console.served.reload()
    [problem] = await problems()
    (project.path / "agents.yaml").write_text(before)
    project.write_module("echo", "raise ValueError('no echo')\n")
    await console.served.reload()
    [kept] = await problems()
    project.write_module("echo", module_source("echo", Agent()))
    await console.served.reload()
    assert await problems() == []
    assert problem.startswith("agents.yaml:")
    assert ": unknown: " in problem
    assert kept.startswith("agent 'echo' was not replaced: ")
    assert "no echo" in kept


async def test_without_the_console_its_endpoints_are_off(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={"console": False})) as served:
        answers = [await Console(served).get(path) for path in ("/api/agents/echo", "/api/gateway", "/api/rights")]
    why = "the console is off; `gateway.console: true` in agents.yaml enables it"
    assert [(one.status_code, one.json()["error"]) for one in answers] == [(404, why)] * 3


async def test_per_port_the_endpoints_are_on_the_registrys_port(tmp_path: Path) -> None:
    with ExitStack() as stack:
        registry, own = (stack.enter_context(reserved_port()) for _ in range(2))
        project = write_project(
            tmp_path,
            {"echo_1": Agent(settings={"port": own})},
            gateway={"console": True, "host": "127.0.0.1"},
            deployment={"registry_port": registry},
        )
        async with running(project, overrides=Overrides(per_port=True)) as served:
            here = await Console(served).get("/api/agents/echo-1")  # its name in the registry
            async with httpx.AsyncClient(trust_env=False) as http:
                there = await http.get(f"http://127.0.0.1:{own}/api/agents/echo_1")
    assert (here.status_code, here.json()["instruction"]) == (200, "You are echo_1.")
    assert there.status_code == 404


async def test_tools_that_only_some_callers_are_offered_are_shown(tmp_path: Path) -> None:
    async with changing_downstream("plain", era="modern") as server:
        server.tools["asks"] = ChangingTool(asks=True)
        project = write_project(tmp_path, {"user": Agent(["n"])}, servers={"n": {"url": server.url}})
        async with running(project) as served:
            runtime = served.gateway.agents["user"].runtime
            assert runtime is not None

            def shown() -> list[str]:
                (found,) = runtime.server_tools(ANONYMOUS)
                return [tool.name for tool in found.tools or ()]

            await eventually(lambda: shown() == ["plain", "asks"], what="the listing")
