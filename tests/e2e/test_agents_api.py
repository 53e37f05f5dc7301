"""`/api/v1/agents`: agents of the database are made, read, changed, restored, copied and deleted by HTTP clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.calls.trail import MOST_OF_CLIENT
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.features.definitions.service import Editor
from tests.support.agents_api import DECLARED, INSTRUCTION, POEM, agents_api, agents_api_of, project_of
from tests.support.gateway import running
from tests.support.listener import reserved_port
from tests.support.stored_threads import agents_feature_of


def problems_of(response: httpx.Response) -> dict[str, str]:
    assert response.status_code == 422, response.text
    body = response.json()
    assert body["error"] == "invalid_definition"
    return {one["path"]: one["message"] for one in body["problems"]}


def error_of(response: httpx.Response) -> tuple[int, str]:
    body = response.json()
    assert body["error_description"]
    return response.status_code, body["error"]


async def test_an_agent_is_made_read_changed_and_deleted(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        made = await api.ask("POST", json={"name": "poet", **POEM, "title": "The Poet", "maxIterations": 4})
        read = await api.get("/poet")
        all_of_them = (await api.get()).json()
        replaced = await api.ask("PUT", "/poet", match=read.headers["etag"], json={**POEM, "description": "Writes."})
        patched = await api.ask("PATCH", "/poet", match='"2"', json={"maxIterations": 5, "description": None})
        deleted = await api.ask("DELETE", "/poet", match=patched.headers["etag"])
        gone = await api.get("/poet")
        again = await api.make()

    assert (made.status_code, made.headers["etag"], made.headers["cache-control"]) == (201, '"1"', "no-store")
    assert made.headers["location"] == f"{api.served.gateway.addresses.absolute('api/v1/agents/poet')}"
    document = made.json()
    stable = {key: document[key] for key in document.keys() - {"state", "runningVersion", "reason"}}
    assert {key: read.json()[key] for key in stable} == stable
    assert (read.status_code, read.headers["etag"]) == (200, '"1"')
    assert stable == {
        "name": "poet", "title": "The Poet", "description": "The Poet", "instruction": INSTRUCTION,
        "model": "passthrough", "maxIterations": 4, "source": "database", "owner": "owner", "version": 1,
        "createdAt": document["createdAt"], "updatedAt": document["createdAt"],
    }  # fmt: skip
    assert document["createdAt"].endswith("Z")
    [listed] = all_of_them["agents"]
    assert (listed["name"], listed["source"], listed["version"]) == ("poet", "database", 1)
    assert "incomplete" not in all_of_them
    assert "instruction" not in listed
    assert (replaced.status_code, replaced.headers["etag"]) == (200, '"2"')
    assert (replaced.json()["title"], "maxIterations" in replaced.json()) == ("Poet", False)
    assert (patched.status_code, patched.headers["etag"]) == (200, '"3"')
    assert (patched.json()["maxIterations"], patched.json()["description"]) == (5, "Poet")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert error_of(gone) == (404, "not_found")
    assert again["version"] == 4  # numbers of a name are not used again


async def test_what_is_read_can_be_sent_back_and_changes_nothing(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        document = await api.make(params={"maxTokens": 100}, examples=["A poem, please."])
        same = await api.ask("PUT", "/poet", match="*", json=document)
        unknown = problems_of(await api.ask("PUT", "/poet", match="*", json={**document, "x": None, "title": {}}))
        named = await api.ask("PUT", "/poet", match="*", json={**document, "title": "The Poet"})
        other = await api.ask("POST", json={**named.json(), "name": "bard"})
    assert (document["title"], document["description"]) == ("Poet", "Poet")  # by default, so they are not stored
    assert (same.status_code, same.json()["version"]) == (200, 1)
    assert unknown.keys() == {"x", "title"}
    assert (named.json()["version"], named.json()["description"]) == (2, "The Poet")
    assert (other.status_code, other.json()["instruction"]) == (201, INSTRUCTION)


async def test_a_change_requires_the_version_that_it_is_about(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make()
        await api.ask("PATCH", "/poet", match='"1"', json={"title": "Second"})

        async def each(match: str | None) -> list[tuple[int, str]]:
            changes: dict[str, Any] = {"PUT": POEM, "PATCH": {"title": "X"}, "DELETE": None}
            answers = [await api.ask(method, "/poet", match=match, json=body) for method, body in changes.items()]
            answers.append(await api.ask("POST", "/poet/versions/1/restore", match=match))
            return [error_of(one) for one in answers]

        refused = {match: await each(match) for match in (None, '"1"', '"7", "1"', 'W/"2"', '"02"', "2")}
        accepted = [
            (await api.ask("PATCH", "/poet", match=match, json={"title": match})).status_code
            for match in ('"1", "2"', "*", '"4"')
        ]
        present = await api.document()
    assert refused == {
        None: [(428, "precondition_required")] * 4,
        '"1"': [(412, "version_conflict")] * 4,
        '"7", "1"': [(412, "version_conflict")] * 4,
        'W/"2"': [(412, "version_conflict")] * 4,
        '"02"': [(412, "version_conflict")] * 4,
        "2": [(400, "bad_input")] * 4,
    }
    assert accepted == [200, 200, 200]
    assert (present["version"], present["title"]) == (5, '"4"')


async def test_an_agent_is_sent_whole_also_to_a_client_that_has_its_version(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make()
        answers = {}
        for name in ("poet", "declared", "echo"):
            tag = (await api.get(f"/{name}", key="everything")).headers["etag"]
            answers[name] = await api.get(f"/{name}", key="everything", headers={"If-None-Match": tag})
    # Its state may be another one since, without another version.
    assert {name: (one.status_code, "state" in one.json()) for name, one in answers.items()} == dict.fromkeys(
        answers, (200, True)
    )


SHOWN = {"source": "file", "version": 9, "updatedAt": "2020-01-01T00:00:00Z", "state": "ready"}
UNKNOWN = {"id": "x", "owner_name": "editor", "created_at": "2020", "editor": "x", "grants": ["run:agents"]}
"""No parts of a definition: those that are read with it may be sent back."""


async def test_all_problems_are_told_at_once_with_the_paths_that_the_client_has_written(tmp_path: Path) -> None:
    wrong = {
        "instruction": "Read {{file:/etc/passwd}}",
        "model": "expensive",
        "servers": ["mail"],
        "agents": ["nobody"],
        "maxIterations": 21,
        "call_timeout_seconds": -1,
        "toolLimits": {"x": 1},
        "params": {"maxTokens": -1, "top_k": "many"},
        "module": "os",
        "humanInput": "yes",
    }
    paths = {
        "instruction", "model", "servers.0", "agents.0", "maxIterations", "call_timeout_seconds", "toolLimits.x",
        "params.maxTokens", "params.top_k", "module", "humanInput",
    }  # fmt: skip
    async with agents_api(tmp_path) as api:
        made = problems_of(await api.ask("POST", json={"name": "..", **wrong}))
        await api.make()
        put = problems_of(await api.ask("PUT", "/poet", match="*", json=wrong))
        patched = problems_of(await api.ask("PATCH", "/poet", match="*", json=wrong))
        only_shown = problems_of(await api.ask("PATCH", "/poet", match="*", json={**SHOWN, **UNKNOWN}))
        put_shown = problems_of(await api.ask("PUT", "/poet", match="*", json={**POEM, **SHOWN, **UNKNOWN}))
        renamed = problems_of(await api.ask("PATCH", "/poet", match="*", json={"name": "bard"}))
        present = await api.document()
    assert made.keys() == paths | {"name"}
    assert put.keys() == patched.keys() == paths
    assert only_shown.keys() == SHOWN.keys() | UNKNOWN.keys()
    assert put_shown.keys() == UNKNOWN.keys()
    assert renamed.keys() == {"name"}
    assert (present["version"], present["source"], present["owner"]) == (1, "database", "owner")


async def test_problems_repeat_no_token(tmp_path: Path) -> None:
    token = f"pgw_{'aB3' * 14}x"
    wrong = {"name": "poet", "instruction": "-", "model": token, "servers": [token], "tools": [token], token: 1}
    async with agents_api(tmp_path) as api:
        refused = await api.ask("POST", json=wrong)
    assert len(problems_of(refused)) == 4
    assert token not in refused.text


async def test_a_body_that_is_no_definition_is_refused(tmp_path: Path) -> None:
    requests: list[tuple[bytes, dict[str, str], tuple[int, str]]] = [
        (b"{", {}, (400, "bad_input")),
        (b"[]", {}, (400, "bad_input")),
        (b'{"name": NaN}', {}, (400, "bad_input")),
        (b"{}", {"content-type": "text/plain"}, (415, "not_json")),
        (b"{}", {"content-type": "application/merge-patch+json"}, (415, "not_json")),
        (b'"' + b"x" * (2 * 1024 * 1024) + b'"', {}, (413, "body_too_large")),
        (b"[" + b"1," * 600_000 + b"1]", {}, (413, "body_too_large")),
        (b'{"name": "poet", "instruction": "' + b"x" * 300_000 + b'"}', {}, (422, "invalid_definition")),
        (b"", {}, (422, "invalid_definition")),
    ]
    async with agents_api(tmp_path) as api:
        for body, headers, answer in requests:
            sent = {"Authorization": "Bearer owner", "content-type": "application/json", **headers}
            assert error_of(await api.http.post("/agents", content=body, headers=sent)) == answer, body[:40]


async def test_a_body_may_be_nested_to_any_depth(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer owner", "content-type": "application/json", "If-Match": "*"}
    answers = {40: (422, "invalid_definition"), 2_000: (422, "invalid_definition"), 50_000: (400, "bad_input")}
    async with agents_api(tmp_path) as api:
        await api.make()
        for method, path, name in (("POST", "", "bard"), ("PUT", "/poet", "poet"), ("PATCH", "/poet", "poet")):
            for depth, answer in answers.items():
                body = f'{{"name": "{name}", "params": {'{"a":' * depth}1{"}" * depth}}}'
                sent = await api.http.request(method, f"/agents{path}", content=body, headers=headers)
                assert (method, depth, error_of(sent)) == (method, depth, answer)


async def test_a_patch_may_be_sent_by_its_own_media_type(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make(params={"temperature": 0.5, "max_tokens": 10})
        headers = {"Authorization": "Bearer owner", "Content-Type": "application/merge-patch+json", "If-Match": "*"}
        patch = {"params": {"maxTokens": 20, "temperature": None}, "title": "Sea"}
        patched = await api.http.patch("/agents/poet", content=json.dumps(patch), headers=headers)
        put = await api.http.put("/agents/poet", content=json.dumps(POEM), headers=headers)
    assert (patched.status_code, patched.json()["params"], patched.json()["title"]) == (200, {"max_tokens": 20}, "Sea")
    assert error_of(put) == (415, "not_json")


async def test_an_unknown_or_repeated_parameter_is_refused(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer owner", "If-Match": "*"}
    requests = [
        ("GET", "", "limit=1"),
        ("GET", "/poet", "dry_run=true"),
        ("GET", "/poet/versions", "x="),
        ("GET", "/poet/versions/1", "x="),
        ("POST", "", "dry_run=1"),
        ("POST", "", "dry_run=true&dry_run=false"),
        ("POST", "", "threads=delete"),
        ("PUT", "/poet", "wait=yes"),
        ("PATCH", "/poet", "If-Match=1"),
        ("DELETE", "/poet", "threads=all"),
        ("POST", "/poet/versions/1/restore", "force=true"),
    ]
    async with agents_api(tmp_path) as api:
        await api.make()
        for method, path, query in requests:
            answer = await api.http.request(method, f"/agents{path}?{query}", headers=headers, json={})
            assert (query, error_of(answer)) == (query, (400, "bad_input"))
        assert (await api.document())["version"] == 1


async def test_another_method_is_answered_with_those_that_are_allowed(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        paths = ("", "/poet", "/poet/versions", "/poet/versions/1", "/poet/versions/1/restore")
        answers = {path: await api.ask("TRACE", path) for path in paths}
        allowed = {path: (answer.status_code, answer.headers["allow"]) for path, answer in answers.items()}
        nothing = [error_of(await api.get(path)) for path in ("/poet/version", "/poet/versions/1/restored", "/")]
    assert allowed == {
        "": (405, "GET, HEAD, POST"),
        "/poet": (405, "GET, HEAD, PUT, PATCH, DELETE"),
        "/poet/versions": (405, "GET, HEAD"),
        "/poet/versions/1": (405, "GET, HEAD"),
        "/poet/versions/1/restore": (405, "POST"),
    }
    assert nothing == [(404, "not_found")] * 3


async def test_a_dry_run_checks_everything_and_stores_nothing(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        made = await api.ask("POST", json={"name": "poet", **POEM}, dry_run="true")
        wrong = problems_of(await api.ask("POST", json={"name": "poet", "instruction": ""}, dry_run="true"))
        absent = await api.get("/poet")
        await api.make()
        taken = await api.ask("POST", json={"name": "Poet", **POEM}, dry_run="true")
        changes = [
            await api.ask("PATCH", "/poet", match='"1"', json={"title": "X"}, dry_run="true"),
            await api.ask("PUT", "/poet", match='"1"', json=POEM, dry_run="true"),
            await api.ask("POST", "/poet/versions/1/restore", match='"1"', dry_run="true"),
            await api.ask("DELETE", "/poet", match='"1"', dry_run="true"),
        ]
        late = await api.ask("PATCH", "/poet", match='"2"', json={}, dry_run="true")
        present = await api.document()
    assert (made.status_code, "etag" in made.headers, made.json()["name"]) == (200, False, "poet")
    assert wrong.keys() == {"instruction"}
    assert absent.status_code == 404
    assert error_of(taken) == (409, "name_taken")
    assert [one.status_code for one in changes] == [200, 200, 200, 204]
    assert changes[0].json()["title"] == "X"
    assert error_of(late) == (412, "version_conflict")
    assert (present["version"], present["title"]) == (1, "Poet")


async def test_each_version_is_kept_with_its_editor_and_can_be_restored(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make(title="First")
        changes = {"title": "Second", "instruction": "Rhyme."}
        await api.ask("PATCH", "/poet", key="editor", match='"1"', json=changes, why=" Poems should rhyme. ")
        listed = (await api.get("/poet/versions")).json()["versions"]
        first, latest = [await api.get(f"/poet/versions/{number}") for number in (1, 2)]
        missing = [error_of(await api.get(f"/poet/versions/{one}")) for one in ("3", "0", "01", "x", "9" * 30)]
        content = await api.ask("POST", "/poet/versions/1/restore", match='"2"', json={"title": "X"})
        restored = await api.ask("POST", "/poet/versions/1/restore", match='"2"')
        unknown = await api.ask("POST", "/poet/versions/9/restore", match="*")
    told = [(one["version"], one["editor"], one.get("why")) for one in listed]
    assert told == [(2, "editor", "Poems should rhyme."), (1, "owner", None)]
    assert first.json() == {**POEM, "title": "First", **listed[1]}
    assert latest.json()["instruction"] == "Rhyme."
    assert missing == [(404, "not_found")] * 5
    assert error_of(content) == (400, "bad_input")
    assert (restored.status_code, restored.headers["etag"], restored.json()["title"]) == (200, '"3"', "First")
    assert error_of(unknown) == (404, "not_found")


async def test_a_declared_agent_is_copied_with_changes_and_others_are_not(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        copy = await api.ask("POST", key="everything", json={"copyOf": "declared", "name": "mine", "title": "Mine"})
        of_copy = await api.ask("POST", key="everything", json={"copyOf": "mine", "name": "second"})
        of_module = problems_of(await api.ask("POST", key="everything", json={"copyOf": "echo", "name": "third"}))
        of_none = problems_of(await api.ask("POST", key="everything", json={"copyOf": "nobody", "name": "third"}))
        of_number = problems_of(await api.ask("POST", key="everything", json={"copyOf": 7, "name": "third"}))
        unreadable = await api.ask("POST", key="creator", json={"copyOf": "echo", "name": "third"})
    assert copy.status_code == of_copy.status_code == 201
    expected = {"instruction": DECLARED["instruction"], "maxIterations": 7, "title": "Mine", "owner": "everything"}
    assert copy.json().items() >= expected.items()
    assert of_copy.json()["title"] == "Mine"
    assert [found.keys() for found in (of_module, of_none, of_number)] == [{"copyOf"}] * 3
    assert of_none["copyOf"] == "no agent 'nobody'"
    assert error_of(unreadable) == (403, "insufficient_scope")
    assert unreadable.json()["error_description"].endswith("view:instructions:echo, or the owner of the agent")


async def test_a_copy_of_a_files_agent_shows_no_secret_of_its_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIKI_PASSWORD", "tulip-4711-harbour")
    project = project_of(tmp_path)
    secret = {**DECLARED, "instruction": "Use the password ${WIKI_PASSWORD}."}
    project.edit(lambda document: document["agents"].update(declared=secret))
    async with agents_api_of(project) as api:
        shown = await api.document("declared", key="everything")
        copy = problems_of(await api.ask("POST", key="everything", json={"copyOf": "declared", "name": "mine"}))
        with_another = await api.ask(
            "POST", key="everything", json={"copyOf": "declared", "name": "mine", "instruction": "You are mine."}
        )
    assert shown["instruction"] == "Use the password ****."
    assert list(copy) == ["copyOf"]
    assert "tulip" not in str(copy)
    assert with_another.status_code == 201


async def test_the_etag_of_a_files_agent_tells_nothing_about_an_instruction_that_is_hidden(tmp_path: Path) -> None:
    tags = []
    for number, text in enumerate(("The code is 1234.", "The code is 5678.")):
        project = project_of(tmp_path / str(number))
        project.edit(lambda document: document["agents"]["declared"].update(instruction=text))  # noqa: B023  called here
        async with agents_api_of(project) as api:
            tags.append([(await api.get("/declared", key=key)).headers["etag"] for key in ("runner", "everything")])
    (hidden, whole), (other_hidden, other_whole) = tags
    assert hidden == other_hidden
    assert whole != other_whole


async def test_agents_of_files_are_shown_with_their_definitions_and_changed_in_the_file(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        listed = {one["name"]: one["source"] for one in (await api.get(key="everything")).json()["agents"]}
        declared, module = [await api.document(name, key="everything") for name in ("declared", "echo")]
        unread = await api.document("declared", key="runner")
        changes = [
            await api.ask("PUT", "/declared", key="everything", match="*", json=POEM),
            await api.ask("PATCH", "/echo", key="everything", match="*", json={}),
            await api.ask("DELETE", "/echo", key="everything", match="*"),
            await api.ask("POST", "/declared/versions/1/restore", key="everything", match="*"),
        ]
        taken = [await api.ask("POST", json={"name": name, **POEM}) for name in ("echo", "ECHO", "declared")]
        versions = [await api.get(f"/echo/versions{below}", key="everything") for below in ("", "/1")]
    assert listed == {"echo": "file", "secret": "file", "declared": "file"}
    assert (declared["instruction"], declared["maxIterations"], declared["source"]) == ("You are declared.", 7, "file")
    assert {"version", "owner", "createdAt"}.isdisjoint(declared)
    assert "instruction" not in module
    assert "instruction" not in unread
    assert [error_of(one) for one in changes] == [(409, "agent_of_file")] * 4
    assert [error_of(one) for one in taken] == [(409, "name_taken")] * 3
    assert [error_of(one) for one in versions] == [(404, "not_found")] * 2
    assert not any("retry-after" in one.headers for one in (*changes, *taken))


async def test_an_agent_that_others_name_is_not_deleted(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make()
        await api.make("mine", agents=["poet"])
        await api.make("hidden", key="everything", agents=["poet"])
        refused = await api.ask("DELETE", "/poet", match="*")
        seen_by_all = await api.ask("DELETE", "/poet", key="everything", match="*")
        await api.ask("PATCH", "/mine", match="*", json={"agents": []})
        await api.ask("DELETE", "/hidden", key="everything", match="*")
        deleted = await api.ask("DELETE", "/poet", match="*")
    assert error_of(refused) == (409, "agent_in_use")
    assert refused.json()["users"] == ["mine"]
    assert "1 more that you may not see" in refused.json()["error_description"]
    assert sorted(seen_by_all.json()["users"]) == ["hidden", "mine"]
    assert deleted.status_code == 204


async def test_an_agent_is_handed_over_to_another_owner(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make()
        wrong = [
            problems_of(await api.ask("PATCH", "/poet", match="*", json={"owner": owner}))
            for owner in (None, 1, "creator", "key:", "token:x", {"issuer": "x"}, {"issuer": "a b", "subject": "c"}, {})
        ]
        of_another = problems_of(await api.ask("POST", json={"name": "bard", **POEM, "owner": "creator"}))
        missing = await api.ask("PATCH", "/poet", match="*", json={"owner": "key:bne"})
        untold = await api.ask("PATCH", "/poet", key="editor", match="*", json={"owner": "key:bne"})
        same = await api.ask("PATCH", "/poet", match="*", json={"owner": "key:owner"})
        given = await api.ask("PATCH", "/poet", match="*", json={"owner": "key:creator", "title": "Given"})
        before, after = await api.get("/poet"), await api.document(key="creator")
        login = await api.ask(
            "PUT", "/poet", key="creator", match="*",
            json={**POEM, "owner": {"issuer": "https://login.example.com", "subject": "ann"}},
        )  # fmt: skip
    assert [one.keys() for one in (*wrong, of_another)] == [{"owner"}] * 9
    assert (missing.status_code, problems_of(missing)) == (422, {"owner": "no key 'bne' in gateway.auth.tokens"})
    assert error_of(untold) == (403, "not_owner")
    assert same.json()["version"] == 1
    assert (given.status_code, given.json()["owner"], given.json()["version"]) == (200, "creator", 2)
    assert "instruction" not in given.json()
    assert before.status_code == 404
    assert (after["owner"], after["title"]) == ("creator", "Given")
    assert (login.status_code, login.json()["owner"]) == (200, "ann")


async def test_an_agent_is_handed_over_to_a_caller_that_has_opened_the_console(tmp_path: Path) -> None:
    async with agents_api(tmp_path, console=True) as api:
        await api.make()
        rights = f"{api.served.base_url}/api/rights"
        for _ in range(2):
            await api.http.get(rights, headers={"Authorization": "Bearer creator"})
        await api.http.get(rights)
        seen = await api.get("/poet/possible-owners")
        hidden = await api.get("/poet/possible-owners", key="editor")
        person = {"owner": "token:https://login.example.com sub ann"}
        given = await api.ask("PATCH", "/poet", match="*", json=person)
    assert seen.json() == {"callers": [{"id": "key:creator", "name": "creator", "kind": "key"}]}
    assert error_of(hidden) == (403, "not_owner")
    assert (given.status_code, given.json()["owner"]) == (200, "ann")


async def test_the_owner_reads_ratings_without_names_and_the_notes_that_are_for_it(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make(wait=True)
        for rating, note, is_shared in (("good", "Private.", False), ("bad", "Too long.", True)):
            sent = {"Authorization": "Bearer everything"}
            chat = await api.http.post("/agents/poet/chat", json={"message": f"a {rating} poem"}, headers=sent)
            thread = chat.raise_for_status().json()["threadId"]
            rated = {"rating": rating, "note": note, "forOwner": is_shared}
            await api.http.put(f"/threads/{thread}/turns/1/feedback", json=rated, headers=sent)
        found = (await api.get("/poet/ratings")).json()
        hidden = [error_of(await api.get("/poet/ratings", key=key)) for key in ("viewer", "nobody")]
        of_file = error_of(await api.get("/echo/ratings", key="editor-of-all"))
    [note] = found.pop("notes")
    assert found == {"good": 1, "bad": 1}
    assert (note["rating"], note["note"], note["question"]) == ("bad", "Too long.", "a bad poem")
    assert note["answer"]
    assert note.keys() == {"rating", "note", "ratedAt", "question", "answer"}
    assert hidden == [(403, "insufficient_scope"), (404, "not_found")]
    assert of_file == (404, "not_found")


async def test_without_authentication_there_is_one_owner_who_may_do_everything(tmp_path: Path) -> None:
    async with agents_api(tmp_path, auth=False) as api:
        made = await api.ask("POST", key=None, json={"name": "poet", **POEM})
        seen = await api.document(key="any-token")
        changed = await api.ask("PATCH", "/poet", key=None, match='"1"', json={"title": "X"})
        deleted = await api.ask("DELETE", "/poet", key=None, match="*")
    assert (made.status_code, made.json()["owner"]) == (201, "anonymous")
    assert seen["instruction"] == INSTRUCTION
    assert (changed.status_code, deleted.status_code) == (200, 204)


async def test_pages_of_allowed_origins_may_change_agents_and_others_not(tmp_path: Path) -> None:
    origin = "https://chat.example.com"
    async with agents_api(tmp_path, allowed_origins=[origin]) as api:
        asked = {
            "Origin": origin,
            "Access-Control-Request-Headers": "authorization,if-match,if-none-match,content-type",
        }
        preflights = [
            await api.http.options("/agents/poet", headers={**asked, "Access-Control-Request-Method": method})
            for method in ("PUT", "PATCH", "DELETE", "POST")
        ]
        made = await api.ask("POST", json={"name": "poet", **POEM}, headers={"Origin": origin})
        foreign = await api.ask("POST", json={"name": "bard", **POEM}, headers={"Origin": "https://evil.example.com"})
        rebound = await api.get(headers={"Host": "evil.example.com"})
    assert [one.status_code for one in preflights] == [200] * 4
    assert made.status_code == 201
    assert {"ETag", "Location"} <= {one.strip() for one in made.headers["access-control-expose-headers"].split(",")}
    assert error_of(foreign) == (403, "wrong_origin")
    assert error_of(rebound) == (421, "wrong_host")


async def test_locations_have_the_path_prefix_of_the_public_url(tmp_path: Path) -> None:
    async with agents_api(tmp_path, public_url="https://agents.example.com/pallas") as api:
        made = await api.ask("POST", json={"name": "poet.v2", **POEM})
    assert made.headers["location"] == "https://agents.example.com/pallas/api/v1/agents/poet.v2"


async def test_where_no_agents_of_the_database_are_served_the_answer_says_why(tmp_path: Path) -> None:
    async def tried(served_at: str) -> tuple[list[tuple[int, str]], list[str], list[str]]:
        headers = {"If-Match": "*"}
        async with httpx.AsyncClient(base_url=f"{served_at}/api/v1", headers=headers, trust_env=False) as http:
            answers = [
                await http.post("/agents", json={"name": "poet", **POEM}),
                await http.put("/agents/echo", json=POEM),
                await http.delete("/agents/echo"),
                await http.get("/agents/echo/versions"),
                await http.post("/agents/echo/versions/1/restore"),
                await http.get("/agents_may_use"),
            ]
            names = [one["name"] for one in (await http.get("/agents")).json()["agents"]]
            assert (await http.get("/agents/poet")).status_code == 404
        return [error_of(one) for one in answers], [one.json()["error_description"] for one in answers], names

    with reserved_port() as registry, reserved_port() as one, reserved_port() as two, reserved_port() as three:
        project = project_of(tmp_path / "ports", auth=False, host="127.0.0.1", console=True)
        names = ["echo", "secret", "declared"]
        ports = dict(zip(names, (one, two, three), strict=True))
        project.edit(lambda document: [document["agents"][name].update(port=port) for name, port in ports.items()])
        project.edit(lambda document: document.update(registry_port=registry))
        async with running(project, overrides=Overrides(per_port=True)):
            per_port = await tried(f"http://127.0.0.1:{registry}")
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{registry}/api", trust_env=False) as http:
                rights, shown = (await http.get("/rights")).json(), (await http.get("/agents/echo")).json()
        async with running(project, overrides=Overrides(agent="echo")):
            alone = await tried(f"http://127.0.0.1:{one}")
    assert per_port[0] == alone[0] == [(404, "not_found")] * 6
    you = {"name": "anonymous", "id": "anonymous", "kind": "anonymous"}
    assert rights == {"create_agents": False, "list_calls": True, "run": names, "view": names, "you": you}
    details = {key: value for key, value in shown.items() if key == "source" or key.startswith("may_")}
    assert details == {"may_run": True, "may_run_tools": True}
    assert {"gateway.per_port" in one for one in per_port[1]} == {"--agent" in one for one in alone[1]} == {True}
    assert (per_port[2], alone[2]) == (names, ["echo"])


async def test_changes_and_refusals_are_in_the_audit_log(tmp_path: Path) -> None:
    async with agents_api(tmp_path, audit_log="audit.jsonl") as api:
        await api.make()
        await api.ask("POST", json={"name": "poet", **POEM})
        await api.ask("PATCH", "/poet", key="editor", match='"1"', json={"title": "X"}, dry_run="true")
        await api.ask("PATCH", "/poet", key="editor", match='"1"', json={"title": "X"})
        await api.ask("PUT", "/poet", key="editor-of-all", match='"2"', json={"instruction": ""})
        await api.ask("DELETE", "/poet", key="editor", match="*")
        await api.ask("POST", "/poet/versions/1/restore", match="*")
        await api.ask("PATCH", "/poet", match="*", json={"owner": "key:creator", "title": "Y"})
        login = {"issuer": "https://login.example.com", "subject": "ann"}
        await api.ask("PATCH", "/poet", key="operator", match="*", json={"owner": login})
        await api.ask("DELETE", "/poet", key="deleter-of-all", match="*", threads="delete")
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    told = [
        tuple(
            line.get(key)
            for key in ("action", "outcome", "caller", "grant", "version", "reason", "new_owner", "threads")
        )
        for line in lines
        if line.get("agent") == "poet"
    ]
    assert told == [
        ("create_agent", "accepted", "key:owner", "create:agents", 1, None, None, None),
        ("create_agent", "refused", "key:owner", None, None, "name_taken", None, None),
        ("change_agent", "accepted", "key:editor", "edit:agents:poet", 2, None, None, None),
        ("change_agent", "refused", "key:editor-of-all", None, None, "invalid_definition", None, None),
        ("request", "refused", "key:editor", "delete:agents:poet", None, "insufficient_scope", None, None),
        ("restore_agent", "accepted", "key:owner", "owner", 3, None, None, None),
        ("change_agent", "accepted", "key:owner", "owner", 4, None, "key:creator", None),
        ("change_agent", "accepted", "key:operator", "edit:agents", 5, None, "token:ann", None),
        ("delete_agent", "accepted", "key:deleter-of-all", "delete:agents", 5, None, None, "delete"),
    ]
    assert INSTRUCTION not in (tmp_path / "audit.jsonl").read_text()


async def test_refused_changes_have_few_lines_in_the_audit_log_and_no_names_of_clients(tmp_path: Path) -> None:
    async with agents_api(tmp_path, audit_log="audit.jsonl") as api:
        for _ in range(MOST_OF_CLIENT + 2):
            assert (await api.ask("POST", json={"name": "name-of-client", "instruction": 5})).status_code == 422
        assert (await api.ask("POST", key="creator", json={"name": "ECHO", **POEM})).status_code == 409
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    refused = [
        (one.get("agent"), one["reason"], one.get("left_out")) for one in lines if one["action"] == "create_agent"
    ]
    assert refused == [(None, "invalid_definition", None)] * MOST_OF_CLIENT + [("echo", "name_taken", 2)]
    assert "name-of-client" not in (tmp_path / "audit.jsonl").read_text()


async def test_while_the_database_is_away_agents_are_listed_and_changes_are_refused(tmp_path: Path) -> None:
    async with agents_api(tmp_path, database="sqlite:////no/such/folder/pallas.db") as api:
        document = (await api.get(key="everything")).json()
        listed = document["agents"]
        of_file = await api.get("/declared", key="everything")
        refused = [
            await api.get("/poet"),
            await api.ask("POST", json={"name": "poet", **POEM}),
            await api.ask("PATCH", "/poet", match="*", json={}),
            await api.ask("DELETE", "/poet", match="*"),
        ]
    assert [one["name"] for one in listed] == ["echo", "secret", "declared"]
    assert document["incomplete"] is True
    assert of_file.status_code == 200
    assert [error_of(one) for one in refused] == [(503, "threads_unavailable")] * 4
    assert all(one.headers["retry-after"] for one in refused)


@pytest.mark.parametrize("auth", [True, False])
async def test_an_unknown_name_is_not_answered_as_deleted_while_the_agents_are_not_loaded(
    auth: bool, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"openai_api": True, "console": True, "auth": auth}
    async with agents_api(tmp_path, database="sqlite:////no/such/folder/pallas.db", **settings) as api:

        async def answers(name: str, key: str | None = "nobody") -> list[httpx.Response]:
            sent = {"Authorization": f"Bearer {key}"} if key else {}
            accepts = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
            base, listing = api.served.base_url, {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
            completion = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
            return [
                await api.ask("POST", f"/{name}/chat", key=key, json={"message": "hello"}),
                await api.get(f"/{name}/threads", key=key),
                await api.http.post(f"{base}/agents/{name}/mcp", json=listing, headers={**sent, **accepts}),
                await api.http.post(f"{base}/v1/chat/completions", json=completion, headers=sent),
                await api.http.get(f"{base}/api/agents/{name}", headers=sent),
            ]

        unknown, hidden, of_stranger = [await answers(*one) for one in (("poet",), ("secret",), ("poet", None))]
    assert [one.status_code for one in unknown] == [503] * 5
    assert all(one.headers["retry-after"] for one in unknown)
    assert error_of(unknown[0]) == error_of(unknown[2]) == (503, "threads_unavailable")
    if auth:
        assert [(one.status_code, one.text) for one in hidden] == [(one.status_code, one.text) for one in unknown]
        assert [one.status_code for one in of_stranger] == [401] * 5


async def test_threads_of_a_deleted_agent_stay_with_their_owners_or_go_with_it(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        threads, left = {}, {}
        for name in ("kept", "dropped"):
            await api.make(name, wait=True)
            chat = await api.ask("POST", f"/{name}/chat", key="everything", json={"message": "hello"})
            threads[name] = chat.raise_for_status().json()["threadId"]
        kept = await api.ask("DELETE", "/kept", match="*", wait="true")
        dropped = await api.ask("DELETE", "/dropped", key="everything", match="*", threads="delete")
        for name, thread in threads.items():
            headers = {"Authorization": "Bearer everything"}
            left[name] = (await api.http.get(f"/threads/{thread}/messages", headers=headers)).status_code
    assert (kept.status_code, dropped.status_code) == (204, 204)
    assert left == {"kept": 200, "dropped": 404}


async def test_threads_are_deleted_later_if_the_process_was_killed_before_it_could(tmp_path: Path) -> None:
    async with agents_api(tmp_path) as api:
        await api.make(wait=True)
        chat = await api.ask("POST", "/poet/chat", json={"message": "hello"})
        path = f"/threads/{chat.raise_for_status().json()['threadId']}/messages"
        stored = agents_feature_of(api.served.gateway)
        editor = Editor(owner="key:owner", name="owner", may_run=lambda _: True)
        await stored.definitions.remove("poet", editor, expected=1, drops_threads=True)  # and no more
        before = await api.http.get(path, headers={"Authorization": "Bearer owner"})
        await stored.remove_expired(0)
        after = await api.http.get(path, headers={"Authorization": "Bearer owner"})
    assert (before.status_code, after.status_code) == (200, 404)
