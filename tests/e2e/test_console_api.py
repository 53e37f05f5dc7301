"""The console's endpoints: what they show of an agent, of the gateway, and of what agents of the database may use."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.identity.caller import ANONYMOUS
from pallas_gateway.identity.static_keys import hash_of
from tests.support.changing import ChangingTool, changing_downstream
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, Running, declare_project, module_source, running, write_project
from tests.support.listener import reserved_port
from tests.support.stdio_processes import Processes
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

GRANTS = {
    "viewer": ["view:agents:lead"],
    "reader": ["view:agents:lead", "view:instructions:lead"],
    "runner": ["run:agents", "view:instructions:lead"],
    "operator": ["view:gateway", "view:agents"],
    "stranger": ["view:instructions", "view:metrics"],
}
SECRET = "s3cret-of-the-notes"
LEAD = Agent(
    servers=["notes", "echo", "mine", "gone", "program"],
    decorator='tools={"notes": ["add", "e*"]}',
    settings={"depends_on": ["echo"]},
)


def keys_of(grants: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    return [{"name": name, "sha256": hash_of(f"key-of-{name}"), "grants": its} for name, its in grants.items()]


@dataclass
class Console:
    served: Running

    async def send(
        self, method: str, path: str, who: str | None = None, body: Any = None, **headers: str
    ) -> httpx.Response:
        authorization = {"Authorization": f"Bearer key-of-{who}"} if who else {}
        async with httpx.AsyncClient(trust_env=False, base_url=self.served.base_url, timeout=60) as http:
            return await http.request(method, path, json=body, headers={**authorization, **headers})

    async def get(self, path: str, who: str | None = None, **headers: str) -> httpx.Response:
        return await self.send("GET", path, who, **headers)

    async def details(self, name: str, who: str) -> dict[str, Any]:
        """Return what is shown of an agent's definition."""
        found = (await self.get(f"/api/agents/{name}", who)).json()
        return {key: value for key, value in found.items() if key == "source" or key.startswith("may_")}

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
    async with serving(tmp_path_factory.mktemp("console"), auth={"tokens": keys_of(GRANTS)}) as found:
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
        assert (await console.send("POST", path)).status_code == 405


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


# --- What agents of the database may use, at `/api/v1/agents_may_use` and at the console's endpoints


EDITORS = {
    "maker": ["create:agents", "run:agents:scribe", "view:instructions:scribe"],
    "editor": ["edit:agents:made", "run:agents"],
    "reader": ["run:agents", "view:instructions"],
    "remover": ["view:agents:made", "delete:agents:made"],
}
NOBODY = {"id": "anonymous", "kind": "anonymous", "name": "anonymous"}
EDITING = {"tokens": keys_of(EDITORS)}
MAY_USE: Mapping[str, Any] = {
    "models": ["generic.*", "passthrough"],
    "servers": {
        **{"notes": ["add", "e*"], "idle": ["*"], "mine": ["*"]},
        "theirs": {"tools": ["*"], "forwards": True},
    },
    "agents": ["s*", "made"],
    "approve": ["notes/emit"],
    "most": {"max_iterations": 20},
}
DATABASE = "sqlite:///agents.db"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def released(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Console]:
    async with stateless_downstream() as notes:
        servers: dict[str, dict[str, Any]] = {name: {"url": notes.url} for name in ("notes", "idle")}
        servers |= {name: {"url": notes.url, "forward_inbound_auth": True} for name in ("mine", "theirs")}
        agents: dict[str, dict[str, Any]] = {
            "scribe": {
                **{"instruction": "You are scribe.", "title": "A scribe", "servers": ["notes"], "examples": ["Hello"]},
                **{"models": ["generic.two", "openai.gpt-5"], "caller_params": ["model"]},
            },
            "s.dot": {"instruction": "You are s.dot."},
        }
        project = declare_project(
            tmp_path_factory.mktemp("may_use"),
            agents,
            servers=servers,
            gateway={"database": DATABASE, "agents_may_use": dict(MAY_USE), "auth": EDITING, "console": True},
        )
        async with running(project) as served:
            one = Console(served)
            made = {"name": "made", "instruction": "You are made."}
            answer = await one.send("POST", "/api/v1/agents?wait=true", "maker", made)
            assert answer.status_code == 201, answer.text
            yield one


async def test_models_servers_with_their_tools_and_agents_are_those_that_are_released(released: Console) -> None:
    runtime = released.served.gateway.agents["scribe"].runtime
    assert runtime is not None
    await eventually(lambda: any(one.tools for one in runtime.server_tools(ANONYMOUS)), what="the listing of notes")
    answer = await released.get("/api/v1/agents_may_use", "maker")
    document = answer.json()
    assert answer.headers["cache-control"] == "no-store"
    notes, *others = document.pop("servers")
    assert (notes["name"], notes["globs"]) == ("notes", ["add", "e*"])
    assert {one["name"] for one in notes["tools"]} == {"add", "echo", "emit"}
    assert notes["tools"][0] == {"name": "add", "description": "Add two numbers."}
    unknown = {"tools": None, "reason": "No agent that runs uses this server."}
    assert others == [
        {"name": "idle", "globs": ["*"], **unknown},
        {"name": "theirs", "globs": ["*"], **unknown},
    ]
    assert document == {
        "mayCreate": True,
        "models": ["passthrough", "generic.two"],
        "modelPatterns": ["generic.*", "passthrough"],
        "defaultModel": "passthrough",
        "agents": [{"name": "scribe", "title": "A scribe"}, {"name": "made", "title": "Made"}],
        "approve": ["notes/emit"],
        "most": {"maxIterations": 20, "callTimeoutSeconds": 600},
    }


async def test_it_is_for_those_who_may_create_or_edit_an_agent(released: Console) -> None:
    answers = {who: await released.get("/api/v1/agents_may_use", who) for who in (*EDITORS, "nobody", None)}
    assert [answer.status_code for answer in answers.values()] == [200, 200, 403, 403, 401, 401]
    assert answers["editor"].json()["mayCreate"] is False
    assert "create:agents" in answers["reader"].headers["www-authenticate"]
    unknown = await released.get("/api/v1/agents_may_use?x=1", "maker")
    other = await released.send("POST", "/api/v1/agents_may_use", "maker", {})
    assert (unknown.status_code, other.status_code) == (400, 405)


async def test_the_console_is_told_what_the_caller_may_do_with_a_definition(released: Console) -> None:
    may = {
        "may_run": True,
        "may_run_tools": True,
        "may_copy": False,
        "may_edit": False,
        "may_hand_over": False,
        "may_delete": False,
        "may_delete_threads": False,
    }
    whole = dict.fromkeys(("may_copy", "may_edit", "may_hand_over", "may_delete"), True)
    of_file = {**may, "source": "file"}
    made = {**may, "source": "database"}
    assert await released.details("made", "maker") == {**made, **whole}
    assert await released.details("scribe", "maker") == {**of_file, "may_copy": True}
    assert await released.details("made", "editor") == {**made, "may_edit": True}
    assert await released.details("made", "reader") == made
    assert await released.details("scribe", "reader") == of_file
    assert await released.details("made", "remover") == {
        **made,
        "may_run": False,
        "may_run_tools": False,
        "may_delete": True,
    }
    assert (await released.get("/api/agents/scribe", "reader")).json()["examples"] == ["Hello"]


async def test_the_console_is_told_who_may_create_agents(released: Console) -> None:
    found = {who: (await released.get("/api/rights", who)).json() for who in ("maker", "editor", "remover", None)}
    runs: dict[str | None, list[str]] = {"maker": ["made", "scribe"], "editor": ["made", "s.dot", "scribe"]}
    for who, rights in found.items():
        assert sorted(rights.pop("run")) == runs.get(who, [])
        assert sorted(rights.pop("view")) == (["made"] if who == "remover" else runs.get(who, []))
        assert rights.pop("you") == ({"id": f"key:{who}", "kind": "key", "name": who} if who else NOBODY)
        assert rights == {"create_agents": who == "maker", "list_calls": who is not None}


@pytest.mark.parametrize(
    ("settings", "may_create", "status"),
    [
        ({"database": DATABASE, "agents_may_use": {"models": ["*"]}}, True, 200),
        ({"database": DATABASE}, False, 200),
        ({}, False, 404),
    ],
)
async def test_without_auth_everybody_may_create_agents_where_something_is_released(
    settings: dict[str, Any], may_create: bool, status: int, tmp_path: Path
) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={**settings, "console": True})) as served:
        found = await Console(served).get("/api/rights")
        document = await Console(served).get("/api/v1/agents_may_use")
    may = {"create_agents": may_create, "list_calls": True, "run": ["echo"], "view": ["echo"]}
    assert found.json() == {**may, "you": NOBODY}
    assert document.status_code == status
