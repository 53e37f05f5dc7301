"""Questions to a caller of the threads API: as events, as JSON, after a reload of the page, and who may answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.identity.static_keys import hash_of
from tests.support.asking import FORM, SCHEMA, URL, URL_MESSAGE, asking_downstream
from tests.support.asking_gateways import chain_of_agents, questions
from tests.support.gateway import Agent, until_idle
from tests.support.threads_api import ACCEPT, Api, http_of, serving

if TYPE_CHECKING:
    from pathlib import Path


BAD_ANSWERS: tuple[dict[str, Any], ...] = (
    {},
    {"answers": []},
    {"answers": {"f00": {"action": "yes"}}},
    {"answers": {"f00": 1}},
    {"answers": {"f00": {"action": {}}}},
    {"answers": {"f00": {"action": "accept", "content": [1]}}},
    {"answers": {str(number): {"action": "decline"} for number in range(33)}},
    {"answers": {"f00": {"action": "accept", "content": {"name": "E" * 70_000}}}},
)


async def test_a_stream_has_the_question_and_goes_on_when_another_request_answers(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, queue_seconds=0) as api,
        api.stream("/agents/user/chat", {"message": "name"}) as stream,
    ):
        asked = await stream.event("question")
        thread_id = (await stream.event("thread"))["threadId"]
        shown = await api.last(thread_id)
        busy = await api.http.post("/agents/user/chat", json={"message": "two", "threadId": thread_id})
        answered = (await api.answer(thread_id, {asked["id"]: ACCEPT})).raise_for_status().json()
        final = await stream.event("final")
        ended = await api.last(thread_id)
        assert questions(api.served, "form", "accepted") == 1
    origin = {"agent": "user", "server": "asking", "callPath": []}
    question = {**origin, "kind": "form", "mode": "form", "message": f"asking: {FORM}"}
    assert asked == {"type": "question", "id": asked["id"], **question, "schema": SCHEMA}
    assert (shown["status"], shown["content"]) == ("asking", None)
    assert [{"type": "question", **one} for one in shown["questions"]] == [asked]
    assert busy.status_code == 409
    assert api.downstream.answers == [{"action": "accept", "content": {"name": "Ada"}}]
    assert '"Ada"' in answered["content"]
    assert {"type": "final", **answered} == final
    assert (answered["stopReason"], "questions" in answered) == ("endTurn", False)
    assert [one for one in stream.types if one != "text"] == [
        *("thread", "tool_call", "question", "answer", "tool_result", "final")
    ]
    assert stream.events[stream.types.index("answer")] == {"type": "answer", "id": asked["id"], "action": "accept"}
    assert (ended["status"], ended["content"], "questions" in ended) == ("complete", answered["content"], False)


async def test_json_ends_with_the_questions_and_an_answer_that_does_not_fit_may_be_given_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        asked = await api.chat("name pay")
        thread_id, by_mode = asked["threadId"], {one["mode"]: one for one in asked["questions"]}
        while len(by_mode) < 2:  # both tools run at once, and one of them asks first
            again = (await api.answer(thread_id, {})).json()
            by_mode = {one["mode"]: one for one in again["questions"]}
        form, page = by_mode["form"]["id"], by_mode["url"]["id"]
        misfits = [
            await api.answer(thread_id, {form: {"action": "accept", "content": content}, page: {"action": "accept"}})
            for content in ({"name": 7}, {"age": 7}, {"name": "Ada", "more": 1})
        ]
        malformed = [await api.http.post(f"/threads/{thread_id}/answers", json=body) for body in BAD_ANSWERS]
        unknown = await api.answer(thread_id, {"f00": {"action": "decline"}})
        left = (await api.answer(thread_id, {page: {"action": "accept", "content": {"dropped": 1}}})).json()
        twice = await api.answer(thread_id, {page: {"action": "accept"}})
        final = (await api.answer(thread_id, {form: ACCEPT})).json()
        over = await api.answer(thread_id, {form: ACCEPT})
        reread = (await api.answer(thread_id, {})).json()
        empty = (await api.http.post("/agents/user/threads")).json()["id"]
        nothing_asked = await api.answer(empty, {})
    assert (asked["stopReason"], asked["content"], by_mode["url"]["url"]) == ("input_needed", "", URL)
    assert by_mode["url"]["message"] == f"asking: {URL_MESSAGE}"
    assert [(one.status_code, one.json()["error"]) for one in misfits] == [(422, "bad_answer")] * 3
    assert [one.json()["error_description"].split(": ")[1] for one in misfits] == [
        "'name' must be of type string. Send another one.",
        "'name' is missing. Send another one.",
        "'more' is not asked for. Send another one.",
    ]
    assert [(one.status_code, one.json()["error"]) for one in malformed] == [(400, "bad_input")] * 8
    assert [(one.status_code, one.json()["error"]) for one in (unknown, twice, over)] == [
        (404, "question_not_open")
    ] * 3
    assert [one["id"] for one in left["questions"]] == [form]
    assert sorted(one["action"] for one in api.downstream.answers) == ["accept", "accept"]
    assert {"action": "accept", "content": {"name": "Ada"}} in api.downstream.answers
    assert {"action": "accept", "content": None} in api.downstream.answers
    assert (final["stopReason"], reread["content"]) == ("endTurn", final["content"])
    assert nothing_asked.status_code == 404


async def test_a_page_that_is_reloaded_answers_and_reads_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        async with api.stream("/agents/user/chat", {"message": "name"}) as first:
            await first.event("question")
            thread_id = first.events[0]["threadId"]
        left = await api.last(thread_id)
        path = f"/threads/{thread_id}/answers"
        async with api.stream(path, {"answers": {}}) as reloaded:
            asked = await reloaded.event("question")
            async with api.stream(path, {"answers": {asked["id"]: ACCEPT}}) as answering:
                final = await answering.event("final")
            await reloaded.event("final")
        await until_idle(api.served)
    assert left["status"] == "asking"
    assert asked["id"] == left["questions"][0]["id"]
    assert reloaded.events[0] == {"type": "thread", "threadId": thread_id, "turnIndex": 1}
    assert answering.types[0] == "thread"
    assert "text" in answering.types
    assert reloaded.events[-1] == answering.events[-1] == final
    assert '"Ada"' in final["content"]


async def test_a_question_of_a_nested_agent_names_the_agent_and_the_tool_calls_that_lead_to_it(tmp_path: Path) -> None:
    async with (
        asking_downstream("modern") as downstream,
        chain_of_agents(tmp_path, downstream.url, gateway={"database": "sqlite:///threads.db"}) as served,
        http_of(served) as http,
    ):
        api = Api(served, downstream, http)
        async with api.stream("/agents/top/chat", {"message": "boss: user: name"}) as stream:
            asked = await stream.event("question")
            called = await stream.event("tool_call")
            await api.answer(stream.events[0]["threadId"], {asked["id"]: {"action": "decline"}})
            final = await stream.event("final")
    assert (asked["agent"], asked["message"]) == ("user", f"asking, for user: {FORM}")
    assert (len(asked["callPath"]), asked["callPath"][-1]) == (2, called["id"])
    assert "decline" in final["content"]


async def test_an_approval_is_asked_for_and_only_the_threads_owner_who_may_run_the_agent_answers(
    tmp_path: Path,
) -> None:
    grants = {"ann": ["run:agents"], "bob": ["run:agents"], "ann-reading": ["view:agents"]}
    tokens = [{"name": name, "sha256": hash_of(name), "grants": given} for name, given in grants.items()]
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"]})
    async with serving(tmp_path, agent, auth={"tokens": tokens}) as api:
        ann = {"Authorization": "Bearer ann"}
        response = await api.http.post("/agents/user/chat", json={"message": "wipe"}, headers=ann)
        asked = response.raise_for_status().json()
        thread_id, [question] = asked["threadId"], asked["questions"]
        approve = {question["id"]: {"action": "accept", "content": {"decision": "once"}}}
        refused = [await api.answer(thread_id, approve, Authorization=f"Bearer {key}") for key in ("bob", "eve")]
        refused += [await api.answer(thread_id, approve)]
        final = (await api.answer(thread_id, approve, **ann)).raise_for_status().json()
    assert (question["kind"], question["mode"]) == ("approval", "form")
    assert [one.status_code for one in refused] == [404, 401, 401]
    assert "wiped /" in final["content"]


async def test_a_caller_who_may_only_view_the_agent_by_now_answers_nothing(tmp_path: Path) -> None:
    def keys(grant: str) -> dict[str, Any]:
        return {"tokens": [{"name": "ann", "sha256": hash_of("ann"), "grants": [grant]}]}

    async def present(api: Api, grant: str) -> None:
        api.served.project.edit(lambda document: document["gateway"].update(auth=keys(grant)))
        await api.served.reload()

    async with serving(tmp_path, auth=keys("run:agents")) as api:
        api.http.headers["Authorization"] = "Bearer ann"
        asked = await api.chat("name")
        answer = asked["threadId"], {asked["questions"][0]["id"]: ACCEPT}
        await present(api, "view:agents")
        refused = await api.answer(*answer)
        await present(api, "run:agents")
        shown, taken = await api.last(asked["threadId"]), await api.answer(*answer)
    assert (refused.status_code, refused.json()["error"]) == (403, "insufficient_scope")
    assert (shown["status"], taken.status_code) == ("asking", 200)
