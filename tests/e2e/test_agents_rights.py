"""Who may do what with agents of the database: each route for each kind of caller, and what editors try besides."""

from __future__ import annotations

import itertools
from collections.abc import Set
from functools import reduce
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.agents_api import INSTRUCTION, KEYS, POEM, RELEASED, AgentsApi, agents_api, project_of
from tests.support.calling import ask
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.gateway import running
from tests.support.guarded import bearer, guarded
from tests.support.waiting import eventually

STATES = ("state", "runningVersion", "reason")
CLAIMED = "agent of the database has the name of an agent of agents.yaml"
NOT_HERE, NO, OK, NEW, GONE = 404, 403, 200, 201, 204
COLUMNS = (
    "list", "read", "instruction", "versions", "version", "create", "copy", "put", "patch", "restore", "hand over",
    "delete", "delete with threads", "may use",
)  # fmt: skip
MATRIX: dict[str | None, tuple[Any, ...]] = {
    None: (401, *(401,) * 13),
    "mallory": (401, *(401,) * 13),
    "nobody": (0, *(NOT_HERE,) * 4, *(NO,) * 2, *(NOT_HERE,) * 6, NO),
    "creator": (0, *(NOT_HERE,) * 4, OK, 422, *(NOT_HERE,) * 6, OK),
    "editor-of-another": (0, *(NOT_HERE,) * 4, *(NO,) * 2, *(NOT_HERE,) * 6, NO),
    "viewer": (1, OK, False, OK, OK, *(NO,) * 2, *(NO,) * 6, NO),
    "runner": (1, OK, False, OK, OK, *(NO,) * 2, *(NO,) * 6, NO),
    "reader": (1, OK, True, OK, OK, *(NO,) * 2, *(NO,) * 6, NO),
    "editor": (1, OK, True, OK, OK, *(NO,) * 2, *(OK,) * 3, *(NO,) * 3, OK),
    "editor-of-all": (1, OK, True, OK, OK, *(NO,) * 2, *(OK,) * 3, *(NO,) * 3, OK),
    "deleter": (1, OK, False, OK, OK, *(NO,) * 2, *(NO,) * 4, GONE, NO, NO),
    "deleter-of-all": (1, OK, False, OK, OK, *(NO,) * 2, *(NO,) * 4, GONE, GONE, NO),
    "owner": (1, OK, True, OK, OK, *(OK,) * 2, *(OK,) * 4, GONE, NO, OK),
    "operator": (1, OK, True, OK, OK, *(NO,) * 2, *(OK,) * 4, GONE, GONE, OK),
    "everything": (1, OK, True, OK, OK, *(OK,) * 2, *(OK,) * 4, GONE, GONE, OK),
}


async def row_of(api: AgentsApi, key: str | None) -> tuple[Any, ...]:
    """The answers that a caller gets, all of them by dry runs; the number of agents in the list."""
    checked: dict[str, Any] = {"key": key, "dry_run": "true"}
    change = {**checked, "match": "*"}
    listed, read = await api.get(key=key), await api.get("/poet", key=key)
    named = [one["name"] for one in listed.json()["agents"]] if listed.status_code == OK else None
    return (
        listed.status_code if named is None else named.count("poet"),
        read.status_code,
        "instruction" in read.json() if read.status_code == OK else read.status_code,
        (await api.get("/poet/versions", key=key)).status_code,
        (await api.get("/poet/versions/1", key=key)).status_code,
        (await api.ask("POST", json={"name": "new", **POEM}, **checked)).status_code,
        (await api.ask("POST", json={"name": "new", "copyOf": "poet"}, **checked)).status_code,
        (await api.ask("PUT", "/poet", json=POEM, **change)).status_code,
        (await api.ask("PATCH", "/poet", json={"title": "X"}, **change)).status_code,
        (await api.ask("POST", "/poet/versions/1/restore", **change)).status_code,
        (await api.ask("PATCH", "/poet", json={"owner": "key:creator"}, **change)).status_code,
        (await api.ask("DELETE", "/poet", **change)).status_code,
        (await api.ask("DELETE", "/poet", threads="delete", **change)).status_code,
        (await api.get("_may_use", key=key)).status_code,
    )


async def test_each_caller_reaches_the_routes_of_its_rights_alone(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make(wait=True)
        found = {key: dict(zip(COLUMNS, await row_of(api, key), strict=True)) for key in MATRIX}
        document = await api.document()
    assert found == {key: dict(zip(COLUMNS, row, strict=True)) for key, row in MATRIX.items()}
    assert {key for key in MATRIX if key is not None} - {"mallory"} == KEYS.keys()
    assert (document["version"], document["owner"]) == (1, "owner")


async def test_each_route_of_the_document_refuses_callers_without_a_token_and_without_grants(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make(wait=True)
        thread = (await api.ask("POST", "/poet/chat", json={"message": "hello"})).raise_for_status().json()["threadId"]
        paths = (await api.http.get("/openapi.json")).json()["paths"]
        del paths["/api/v1/openapi.json"]  # is public
        places = {"{name}": "poet", "{version}": "1", "{id}": thread, "{call}": "0" * 16, "{turn}": "1"}
        found: dict[str, list[int]] = {}
        for path, operations in paths.items():
            filled = reduce(lambda text, place: text.replace(*place), places.items(), path)
            for method in operations.keys() & {"get", "post", "put", "patch", "delete"}:
                route = f"{method.upper()} {path}"
                body = None if method == "get" else {"message": "hello"}
                for key in (None, "mallory", "nobody"):
                    headers = {"If-Match": "*", **({"Authorization": f"Bearer {key}"} if key else {})}
                    url = f"{api.served.base_url}{filled}"
                    answer = await api.http.request(method, url, json=body, headers=headers)
                    found.setdefault(route, []).append(answer.status_code)
        document = await api.document()
    of_callers_own = {"GET /api/v1/calls", "GET /api/v1/usage", "GET /api/v1/agents", "GET /api/v1/threads"}
    by_a_grant = dict.fromkeys(("POST /api/v1/agents", "POST /api/v1/agents/try", "GET /api/v1/agents_may_use"), NO)
    assert len(found) > 20
    assert found == {
        route: [401, 401, OK if route in of_callers_own else by_a_grant.get(route, NOT_HERE)] for route in found
    }
    assert document["version"] == 1


async def test_a_hidden_agent_is_answered_as_one_that_does_not_exist(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make()

        async def answers(name: str) -> list[tuple[int, str, dict[str, str]]]:
            requests = [
                await api.get(f"/{name}", key="creator"),
                await api.get(f"/{name}/versions", key="creator"),
                await api.get(f"/{name}/versions/1", key="creator"),
                await api.ask("PUT", f"/{name}", key="creator", json=POEM, match='"9"'),
                await api.ask("PATCH", f"/{name}", key="creator", json={}),
                await api.ask("DELETE", f"/{name}", key="creator", match="*"),
                await api.ask("POST", f"/{name}/versions/1/restore", key="creator", match="*"),
                await api.ask("POST", key="creator", json={"name": "new", "copyOf": name}),
            ]
            kept = ("www-authenticate", "etag", "vary", "allow")
            return [
                (one.status_code, one.text.replace(name, "NAME"), {key: one.headers.get(key, "") for key in kept})
                for one in requests
            ]

        hidden, of_file, missing = [await answers(name) for name in ("poet", "secret", "nothere")]
    assert hidden == missing == of_file
    assert {status for status, _, _ in hidden} == {404, 422}


OTHER_SPELLINGS = (
        "/POET", "/po%65t%00", "/poet%20", "/%20poet", "/p%C3%B6et", "/p%D0%BEet", "/%2570oet", "/..%2Fpoet",
        "/poet%2F", "/%2E", "/..", "/poet%ff", "/poet%0A", "/poet;x", "/" + "p" * 3000, "/%F0%9F%98%80",
        "/poet%2Fversions%2F", "/poet/versions%0A",
)  # fmt: skip


async def test_no_other_spelling_of_a_path_reaches_an_agent(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api, httpx.AsyncClient(trust_env=False) as http:
        await api.make()
        for path, method in itertools.product(OTHER_SPELLINGS, ("GET", "PATCH", "DELETE")):
            headers = {"Authorization": "Bearer everything", "If-Match": "*"}
            url = f"{api.served.base_url}/api/v1/agents{path}"
            request = http.build_request(method, url, headers=headers, json={} if method == "PATCH" else None)
            request.url = request.url.copy_with(raw_path=f"/api/v1/agents{path}".encode())
            assert (await http.send(request)).status_code in {404, 405}, (method, path)
        assert (await api.document())["version"] == 1


async def test_a_percent_encoded_name_is_the_same_agent_with_the_same_rights(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make()
        found = {
            key: (await api.get("/p%6Fet", key=key)).status_code for key in ("owner", "editor", "creator", "viewer")
        }
        changed = await api.ask("PATCH", "/p%6Fet", key="viewer", json={}, match="*")
    assert found == {"owner": 200, "editor": 200, "creator": 404, "viewer": 200}
    assert changed.status_code == 403


async def test_an_editor_adds_the_sub_agents_that_it_may_run_and_reaches_no_others(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make("helper", key="everything")
        await api.make(key="everything", agents=["secret", "helper"])
        await api.ask("PATCH", "/poet", key="everything", match="*", json={"agents": ["helper"]})
        await api.ask("PATCH", "/poet", key="everything", match="*", json={"owner": "key:owner"})

        async def added(*names: str, key: str = "editor") -> dict[str, str]:
            answer = await api.ask("PATCH", "/poet", key=key, match="*", json={"agents": [*names]})
            return {one["path"]: one["message"] for one in answer.json().get("problems", ())}

        kept = await added("helper")  # it was there before
        hidden = await added("helper", "secret")
        missing = await added("helper", "nothere")
        of_database = await added("helper", "hidden")
        restored = await api.ask("POST", "/poet/versions/1/restore", key="editor", match="*")
        copied = await api.ask("POST", key="creator", json={"copyOf": "poet", "name": "mine"})
        run_by_all = await api.ask(
            "PATCH", "/poet", key="editor-of-all", match="*", json={"agents": ["helper", "poet"]}
        )
        document = await api.document()
    assert kept == {}
    assert {path: message.replace("secret", "nothere") for path, message in hidden.items()} == missing
    assert {path: message.replace("hidden", "nothere") for path, message in of_database.items()} == missing
    assert missing.keys() == {"agents.1"}
    assert restored.status_code == 422
    assert [one["path"] for one in restored.json()["problems"]] == ["agents.0"]
    assert copied.status_code == 422
    assert run_by_all.status_code == 422  # a circle
    assert document["agents"] == ["helper"]


async def test_agents_that_are_not_released_cannot_be_told_from_those_that_do_not_exist(tmp_path: Path) -> None:
    async with agents_api(tmp_path, agents_may_use={"models": ["passthrough"], "agents": ["echo"]}) as api:
        await api.make()
        told = {}
        for name in ("secret", "nothere"):
            answer = await api.ask("PATCH", "/poet", key="editor", match="*", json={"agents": [name]})
            told[name] = [one["message"].replace(name, "NAME") for one in answer.json()["problems"]]
    assert told["secret"] == told["nothere"]


async def test_an_earlier_version_that_is_not_released_any_more_is_not_restored(tmp_path: Path) -> None:
    project = project_of(tmp_path, agents_may_use={"models": ["passthrough", "playback"]})
    async with running(project) as served, httpx.AsyncClient(base_url=f"{served.base_url}/api/v1") as http:
        http.headers["Authorization"] = "Bearer owner"
        http.headers["If-Match"] = "*"
        made = await http.post("/agents", json={"name": "poet", **POEM, "model": "playback"})
        changed = await http.patch("/agents/poet", json={"model": "passthrough"})
        project.edit(lambda document: document["gateway"]["agents_may_use"].update(models=["passthrough"]))
        await served.reload()
        restored = await http.post("/agents/poet/versions/1/restore")
        copied = await http.post("/agents", json={"copyOf": "poet", "name": "second", "model": "playback"})
    assert (made.status_code, changed.status_code) == (201, 200)
    assert [one["path"] for one in restored.json()["problems"]] == ["model"]
    assert [one["path"] for one in copied.json()["problems"]] == ["model"]


async def test_an_owner_by_a_token_is_its_issuer_and_subject_whatever_its_name_is(tmp_path: Path) -> None:
    gateway = {"database": "sqlite:///pallas.db", "agents_may_use": RELEASED}
    async with (
        guarded(tmp_path, gateway=gateway, jwt={"name_claim": "email"}) as g,
        httpx.AsyncClient(base_url=f"{g.public}/api/v1", trust_env=False) as http,
    ):

        async def asked(method: str, path: str, json: Any = None, **claims: Any) -> httpx.Response:
            token = g.token(**{"scope": "", "aud": g.public, **claims})
            return await http.request(
                method, path, json=json, headers={"Authorization": bearer(token), "If-Match": "*"}
            )

        ann: dict[str, Any] = {"sub": "ann", "email": "ann@example.com"}
        made = await asked("POST", "/agents", {"name": "poet", **POEM}, **ann, scope="create:agents")
        renamed = await asked("GET", "/agents/poet", sub="ann", email="other@example.com")
        namesake = await asked("GET", "/agents/poet", sub="eve", email="ann@example.com")
        nameless = await asked(
            "POST", "/agents", {"name": "bard", **POEM}, sub=None, client_id=None, scope="create:agents"
        )
        given = await asked("PATCH", "/agents/poet", {"owner": {"issuer": g.server.issuer, "subject": "bob"}}, **ann)
        seen = {sub: (await asked("GET", "/agents/poet", sub=sub)).status_code for sub in ("ann", "bob")}
    assert (made.status_code, made.json()["owner"]) == (201, "ann@example.com")
    assert (renamed.status_code, namesake.status_code) == (200, 404)
    assert (nameless.status_code, nameless.json()["error"]) == (403, "no_owner")
    assert (given.status_code, given.json()["owner"], seen) == (200, "bob", {"ann": 404, "bob": 200})


async def test_a_former_owner_has_no_rights_left(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make()
        given = await api.ask("PATCH", "/poet", match="*", json={"owner": "key:creator"}, wait="true")
        rows = {key: dict(zip(COLUMNS, await row_of(api, key), strict=True)) for key in ("owner", "creator")}
        url = api.served.url("poet")
        statuses = {key: await status_of(url, key) for key in ("owner", "creator")}
    assert given.status_code == 200
    assert rows["owner"] == dict(zip(COLUMNS, (0, *(NOT_HERE,) * 4, OK, 422, *(NOT_HERE,) * 6, OK), strict=True))
    assert rows["creator"] == dict(zip(COLUMNS, MATRIX["owner"], strict=True))
    assert statuses == {"owner": 404, "creator": 200}


async def test_an_operator_hands_over_an_agent_whose_owner_is_gone(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    async with running(project) as served, httpx.AsyncClient(base_url=f"{served.base_url}/api/v1") as http:

        async def given(key: str, owner: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}", "If-Match": "*"}
            return await http.patch("/agents/poet", json={"owner": f"key:{owner}"}, headers=headers)

        await http.post("/agents", json={"name": "poet", **POEM}, headers={"Authorization": "Bearer owner"})
        project.edit(lambda document: document["gateway"]["auth"]["tokens"].pop(0))
        await served.reload()
        by_its_key = await given("owner", "creator")
        by_operator = await given("operator", "creator")
        seen = await http.get("/agents/poet", headers={"Authorization": "Bearer creator"})
    assert by_its_key.status_code == 401
    assert by_operator.status_code == 200
    assert (seen.status_code, seen.json()["owner"]) == (200, "creator")


async def status_of(url: str, key: str) -> int:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accepts = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    async with httpx.AsyncClient(trust_env=False) as http:
        return (await http.post(url, json=message, headers={**accepts, "Authorization": f"Bearer {key}"})).status_code


async def test_an_owner_with_an_otherwise_empty_token_runs_its_agent_in_each_api(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"openai_api": True, "console": True}
    project = project_of(tmp_path, **settings)
    async with running(project) as served, httpx.AsyncClient(base_url=served.base_url, trust_env=False) as http:

        async def seen_by(key: str) -> dict[str, Any]:
            http.headers["Authorization"] = f"Bearer {key}"
            chat = {"message": "hello"}
            completion = {"model": "poet", "messages": [{"role": "user", "content": "hello"}]}
            details = await http.get("/api/agents/poet")
            return {
                "completion": (await http.post("/v1/chat/completions", json=completion)).status_code,
                "chat": (await http.post("/api/v1/agents/poet/chat", json=chat)).status_code,
                "console": details.status_code,
                "instruction": details.json().get("instruction"),
                "mcp": await status_of(served.url("poet"), key),
                "all agents": await status_of(f"{served.base_url}/mcp", key),
            }

        http.headers["Authorization"] = "Bearer owner"
        made = await http.post("/api/v1/agents?wait=true", json={"name": "poet", **POEM})
        assert made.status_code == 201
        await eventually(lambda: served.gateway.agents["poet"].runtime is not None, 30, what="the agent")
        found = {key: await seen_by(key) for key in ("owner", "editor", "creator")}
        answer = await ask(served.url("poet"), "hello", bearer="owner")
    everything: dict[str, Any] = dict.fromkeys(("completion", "chat", "console", "mcp", "all agents"), 200)
    everything |= {"instruction": INSTRUCTION}
    assert found["owner"] == found["editor"] == everything
    assert [found["creator"][api] for api in ("completion", "chat", "console", "mcp")] == [404] * 4
    assert not answer.is_error


async def test_the_owner_of_an_agent_has_no_rights_on_a_files_agent_that_claims_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    project = project_of(tmp_path)
    async with running(project) as served, httpx.AsyncClient(base_url=f"{served.base_url}/api/v1") as http:
        http.headers["Authorization"] = "Bearer owner"
        await http.post("/agents?wait=true", json={"name": "poet", **POEM})
        before = await status_of(served.url("poet"), "owner")
        claimed = {"instruction": "You are of the file.", "model": "passthrough"}
        project.edit(lambda document: document["agents"].update(poet=claimed))
        await served.reload()
        mcp = [await status_of(served.url("poet"), key) for key in ("owner", "editor", "editor-of-all", "runner")]
        listed = (await http.get("/agents")).json()["agents"]
        read = await http.get("/agents/poet")
        changes = [
            (
                await http.request(
                    method, "/agents/poet", json={}, headers={"If-Match": "*", "Authorization": f"Bearer {key}"}
                )
            )
            for key in ("owner", "editor", "everything")
            for method in ("PATCH", "DELETE")
        ]
        stranger = await http.get("/agents/poet", headers={"Authorization": "Bearer creator"})
        project.edit(lambda document: document["agents"]["poet"].update(title="Changed"))
        await served.reload()
        both = (await http.get("/agents", headers={"Authorization": "Bearer viewer"})).json()["agents"]
        project.edit(lambda document: document["agents"].pop("poet"))
        await served.reload()
        after = await http.get("/agents/poet")
    assert (before, mcp) == (200, [404, 404, 404, 200])
    assert [(one["name"], one["source"], one["state"]) for one in listed] == [("poet", "database", "failed")]
    assert "agents.yaml" in listed[0]["reason"]
    assert read.status_code == 404
    why = "The agent 'poet' of the database cannot be read or changed while the name belongs to agent"
    assert all(why in one.json()["error_description"] for one in (read, *changes))
    assert why not in stranger.text
    assert len([one for one in caplog.records if one.message == CLAIMED]) == 1
    assert [one.status_code for one in changes] == [404] * 4 + [409] * 2
    assert [one["source"] for one in both if one["name"] == "poet"] == ["file", "database"]
    assert (after.status_code, after.json()["owner"], after.json()["instruction"]) == (200, "owner", INSTRUCTION)


# --- Everything that lists agents shows a caller the same ones: those that it may view, or may run where it calls them


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
