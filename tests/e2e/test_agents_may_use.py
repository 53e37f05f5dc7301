"""What agents of the database may use, as `/api/v1/agents_may_use` and the console's endpoints tell it, and to whom."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.identity.caller import ANONYMOUS
from pallas_gateway.identity.static_keys import hash_of
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, declare_project, running, write_project
from tests.support.listener import reserved_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from tests.support.gateway import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")

GRANTS = {
    "maker": ["create:agents", "run:agents:scribe", "view:instructions:scribe"],
    "editor": ["edit:agents:made", "run:agents"],
    "reader": ["run:agents", "view:instructions"],
    "remover": ["view:agents:made", "delete:agents:made"],
}
NOBODY = {"id": "anonymous", "kind": "anonymous", "name": "anonymous"}
AUTH = {"tokens": [{"name": name, "sha256": hash_of(name), "grants": grants} for name, grants in GRANTS.items()]}
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


@dataclass
class Api:
    """A served gateway."""

    served: Running

    async def send(self, method: str, path: str, who: str | None = None, body: Any = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {who}"} if who else {}
        async with httpx.AsyncClient(base_url=self.served.base_url, headers=headers, trust_env=False) as http:
            return await http.request(method, path, json=body, timeout=60)

    async def details(self, name: str, who: str) -> dict[str, Any]:
        """Return what the console shows of an agent's definition."""
        found = (await self.send("GET", f"/api/agents/{name}", who)).json()
        return {key: value for key, value in found.items() if key == "source" or key.startswith("may_")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Api]:
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
            gateway={"database": DATABASE, "agents_may_use": dict(MAY_USE), "auth": AUTH, "console": True},
        )
        async with running(project) as served:
            one = Api(served)
            made = {"name": "made", "instruction": "You are made."}
            answer = await one.send("POST", "/api/v1/agents?wait=true", "maker", made)
            assert answer.status_code == 201, answer.text
            yield one


async def test_models_servers_with_their_tools_and_agents_are_those_that_are_released(api: Api) -> None:
    runtime = api.served.gateway.agents["scribe"].runtime
    assert runtime is not None
    await eventually(lambda: any(one.tools for one in runtime.server_tools(ANONYMOUS)), what="the listing of notes")
    answer = await api.send("GET", "/api/v1/agents_may_use", "maker")
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


async def test_it_is_for_those_who_may_create_or_edit_an_agent(api: Api) -> None:
    answers = {who: await api.send("GET", "/api/v1/agents_may_use", who) for who in (*GRANTS, "nobody", None)}
    assert [answer.status_code for answer in answers.values()] == [200, 200, 403, 403, 401, 401]
    assert answers["editor"].json()["mayCreate"] is False
    assert "create:agents" in answers["reader"].headers["www-authenticate"]
    unknown = await api.send("GET", "/api/v1/agents_may_use?x=1", "maker")
    other = await api.send("POST", "/api/v1/agents_may_use", "maker", {})
    assert (unknown.status_code, other.status_code) == (400, 405)


async def test_the_console_is_told_what_the_caller_may_do_with_a_definition(api: Api) -> None:
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
    assert await api.details("made", "maker") == {**made, **whole}
    assert await api.details("scribe", "maker") == {**of_file, "may_copy": True}
    assert await api.details("made", "editor") == {**made, "may_edit": True}
    assert await api.details("made", "reader") == made
    assert await api.details("scribe", "reader") == of_file
    assert await api.details("made", "remover") == {
        **made,
        "may_run": False,
        "may_run_tools": False,
        "may_delete": True,
    }
    assert (await api.send("GET", "/api/agents/scribe", "reader")).json()["examples"] == ["Hello"]


async def test_the_console_is_told_who_may_create_agents(api: Api) -> None:
    found = {who: (await api.send("GET", "/api/rights", who)).json() for who in ("maker", "editor", None)}
    runs: dict[str | None, list[str]] = {"maker": ["made", "scribe"], "editor": ["made", "s.dot", "scribe"], None: []}
    for who, rights in found.items():
        assert sorted(rights.pop("run")) == sorted(runs[who])
        assert set(runs[who]) <= set(rights.pop("view"))
        assert rights.pop("you")["name"] == (who or "anonymous")
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
        found = await Api(served).send("GET", "/api/rights")
        document = await Api(served).send("GET", "/api/v1/agents_may_use")
    may = {"create_agents": may_create, "list_calls": True, "run": ["echo"], "view": ["echo"]}
    assert found.json() == {**may, "you": NOBODY}
    assert document.status_code == status


async def test_per_port_there_are_no_agents_to_create(tmp_path: Path) -> None:
    with ExitStack() as stack:
        registry, own = (stack.enter_context(reserved_port()) for _ in range(2))
        project = write_project(
            tmp_path,
            {"echo": Agent(settings={"port": own})},
            gateway={"database": DATABASE, "agents_may_use": {"models": ["*"]}, "console": True, "host": "127.0.0.1"},
            deployment={"registry_port": registry, "host": "localhost"},
        )
        async with running(project, overrides=Overrides(per_port=True)) as served:
            rights = await Api(served).send("GET", "/api/rights")
            document = await Api(served).send("GET", "/api/v1/agents_may_use")
            details = await Api(served).details("echo", "")
    may = {"create_agents": False, "list_calls": True, "run": ["echo"], "view": ["echo"]}
    assert rights.json() == {**may, "you": NOBODY}
    assert (document.status_code, document.json()["error"]) == (404, "not_found")
    assert details == {"may_run": True, "may_run_tools": True}
