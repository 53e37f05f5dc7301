"""Questions that arise in a call: who is asked, what the model reads, and that the gateway itself answers none."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, override

import httpx2
import pytest
from mcp_types import (
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    LoggingMessageNotificationParams,
)

from pallas_gateway.calls.questions import ORIGIN_META_KEY, ORIGINS_META_KEY
from pallas_gateway.limits import QuestionLimits
from tests.support.askable_callers import (
    CAN_BE_ASKED,
    DECLINE,
    EACH_ERA,
    EACH_MODE,
    INVALID_PARAMS,
    Person,
    accept,
    asked_at,
    asked_in,
    client_of,
    told,
)
from tests.support.asking import FORM, SCHEMA, URL, URL_MESSAGE, asking_downstream
from tests.support.asking_gateways import (
    asked_by,
    asking_gateway,
    calls_the_tool_it_is_told,
    chain_of_agents,
    gateway_of,
    project_of,
    questions,
)
from tests.support.calling import answer_of, ask, health
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.downstreams import Era
from tests.support.gateway import Agent, Limits, declare_project, running, until_idle, with_code
from tests.support.guarded import static_key
from tests.support.log_file import logged
from tests.support.pairs import pairs
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say, scripted_llm
from tests.support.terminal import CTRL_C, at_terminal
from tests.support.watching import DESK, speaker

# --- a caller that cannot be asked -----------------------------------------------------------------------------------


@EACH_ERA
async def test_a_question_to_a_caller_that_cannot_be_asked_is_declined_and_the_model_reads_it(
    era: Era, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with asking_gateway(tmp_path, era=era) as (served, downstream):
        form = await ask(served.url("user"), "name wipe")
        page = await ask(served.url("user"), "pay")
        assert downstream.answers == [{"action": "decline", "content": None}] * 2
        assert FORM in form.text
        assert "cannot be asked" in form.text
        assert "wiped /" in form.text.split(" | ")  # the note is in the result of the tool that asked
        assert URL_MESSAGE in page.text
        assert "pay.example" in page.text
        assert "url-secret" not in page.text
        assert questions(served, "form", "unaskable") == questions(served, "url", "unaskable") == 1
        assert not [one for one in downstream.recorder.requests if b'"elicitation":{' in one.body]
    assert not [one for one in caplog.records if FORM in str(vars(one)) or URL in str(vars(one))]


@pairs({"mode": ["forms", "auto-cancel", "none"], "era": ["initialize", "modern"]})
async def test_no_setting_of_fast_agents_makes_the_gateway_answer(era: Era, mode: str, tmp_path: Path) -> None:
    async with asking_downstream(era) as downstream:
        async with gateway_of(tmp_path, {"url": downstream.url, "elicitation": {"mode": mode}}) as served:
            await ask(served.url("user"), "name pay")
        assert "accept" not in {one["action"] for one in downstream.answers}


async def test_a_modules_handler_of_questions_is_not_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handler = "from fast_agent.mcp.elicitation_handlers import forms_elicitation_handler"
    agent = with_code(handler, Agent(["asking"], decorator="elicitation_handler=forms_elicitation_handler"))
    async with asking_gateway(tmp_path, agent) as (served, _):
        answer = await ask(served.url("user"), "pay")
        assert '"action": "decline"' in answer.text
    assert [one for one in caplog.records if one.getMessage() == "elicitation handler ignored"]


@EACH_MODE
async def test_a_declared_agent_with_human_input_asks_its_caller(mode: str, tmp_path: Path) -> None:
    agents = {name: {"instruction": "You ask.", "human_input": name == "asks"} for name in ("asks", "silent")}
    person = Person(accept(name="Ada"))
    async with (
        scripted_llm(calls_the_tool_it_is_told) as llm,
        running(declare_project(tmp_path, agents, llm_url=llm.base_url)) as served,
    ):
        async with client_of(served.url("asks"), person, mode) as client:
            assert await told(client, "human") == '{"name": "Ada"}'
        async with client_of(served.url("silent"), person, mode) as client:
            assert "not available" in await told(client, "human")
        await until_idle(served)
        metric = "pallas_questions_total"
        assert served.metric(metric, agent="asks", kind="human_input", outcome="accepted") == 1
    assert [one.message for one in person.asked] == [f"asks: {FORM}"]


async def test_a_gateway_at_a_terminal_prompts_nobody_there(tmp_path: Path) -> None:
    async with scripted_llm(calls_the_tool_it_is_told) as llm, asking_downstream("initialize") as downstream:
        agent = Agent(["asking"], decorator="human_input=True")
        project_of(tmp_path, llm, {"url": downstream.url, "sampling": {"model": "passthrough"}}, agent)
        environ = {"PALLAS_LOG_FILE": str(tmp_path / "log"), "PYTHONPATH": str(tmp_path)}
        async with at_terminal(["serve"], tmp_path, environ) as terminal:
            await terminal.shows("Registry:   ")
            url = (await terminal.shows("/.well-known")).strip()
            answer = await ask(f"{url}/agents/user/mcp", "name pay human sample")
            assert "accept" not in answer.text
            assert answer.text.count("cannot be asked") == 3
            assert "sampled" in answer.text
            await terminal.press(CTRL_C)
            shown = await terminal.shows("stopping")
    assert FORM not in shown
    assert URL_MESSAGE not in shown


# --- the initialize era ----------------------------------------------------------------------------------------------


@EACH_ERA
async def test_a_form_and_a_page_are_put_to_the_client_of_the_call(era: Era, tmp_path: Path) -> None:
    person = Person(accept(name="Ada", age=36), accept(), DECLINE)
    async with asked_by(tmp_path, person, era=era) as (client, served, downstream):
        assert "Ada" in await told(client, "name")
        await told(client, "pay")
        await told(client, "name")
        form, page, _ = person.asked
        assert isinstance(form, ElicitRequestFormParams)
        assert (form.message, form.requested_schema) == (f"asking: {FORM}", SCHEMA)
        assert dict(form.meta or {}) == {
            ORIGIN_META_KEY: {"kind": "form", "agent": "user", "server": "asking"}
        }  # not what it forged
        assert isinstance(page, ElicitRequestURLParams)
        assert (page.message, page.url) == (f"asking: {URL_MESSAGE}", URL)
        assert [one["action"] for one in downstream.answers] == ["accept", "accept", "decline"]
        assert questions(served, "form", "accepted") == questions(served, "form", "declined") == 1
        assert questions(served, "url", "accepted") == 1
        assert served.metric("pallas_questions_open", agent="user") == 0


@EACH_MODE
async def test_a_tool_that_requires_pages_is_called_again_once_the_caller_has_accepted_them(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    person = Person(accept(), accept())
    async with asked_by(tmp_path, person, era="initialize", mode=mode) as (client, served, downstream):
        assert await told(client, "consent") == "consented"
        assert [one.message for one in person.asked] == [f"asking: {URL_MESSAGE}", f"asking: {URL_MESSAGE}, again"]
        assert {one.url for one in person.asked if isinstance(one, ElicitRequestURLParams)} == {URL}
        assert len(downstream.recorder.calls("consent")) == 2
        assert questions(served, "url", "accepted") == 2
    assert not [one for one in caplog.records if URL in str(vars(one))]


@pytest.mark.parametrize(
    ("replies", "after", "calls", "text"),
    [
        ([DECLINE], 1, 1, "The caller declined to answer."),
        ([accept(), ElicitResult(action="cancel")], 1, 1, "The caller did not answer."),
        ([accept(), accept()], 2, 2, "it may not be completed yet"),
        ([], 1, 1, "This caller cannot be asked"),
    ],
)
async def test_the_model_reads_why_pages_that_a_tool_requires_were_not_opened(
    replies: list[ElicitResult], after: int, calls: int, text: str, tmp_path: Path
) -> None:
    def script(request: LlmRequest) -> Turn:
        results = list(request.tool_results.values())
        return say(results[0]) if results else call_tools([("asking__consent", {"after": after})])

    async with asking_gateway(tmp_path, script=script, era="initialize") as (served, downstream):
        if replies:
            async with client_of(served.url("user"), Person(*replies)) as client:
                answer = await told(client, "go")
        else:
            answer = (await ask(served.url("user"), "go")).text
        assert text in answer
        assert "url-secret" not in answer
        assert len(downstream.recorder.calls("consent")) == calls


async def test_an_answer_that_does_not_fit_the_form_is_asked_for_again(tmp_path: Path) -> None:
    person = Person(accept(name=["Ada"]), accept(age=3), accept(name="Ada"))
    async with asked_by(tmp_path, person) as (client, _, downstream):
        await told(client, "name")
        assert [one.message for one in person.asked] == [
            f"asking: {FORM}",
            f"asking: {FORM} (The answer did not fit: 'name' must be of type string.)",
            f"asking: {FORM} (The answer did not fit: 'name' is missing.)",
        ]
        assert downstream.answers == [{"action": "accept", "content": {"name": "Ada"}}]


async def test_parallel_tools_ask_at_once_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    class Both(Person):
        """Answers once both questions are there."""

        @override
        async def __call__(self, context: object, params: ElicitRequestParams) -> ElicitResult:
            self.asked.append(params)
            self.changes.announce()
            await self.wait_for(2)
            return accept(name="Ada") if isinstance(params, ElicitRequestFormParams) else DECLINE

    async with asked_by(tmp_path, Both()) as (client, _, _):
        form, page = (await told(client, "name pay")).split(" | ")
    assert '"Ada"' in form
    assert "decline" in page


async def test_health_and_log_show_a_question_while_it_is_open(tmp_path: Path) -> None:
    person, agent = Person(None), Agent(["asking"], settings={"approve": ["asking/wipe"]})
    with logged(tmp_path / "log") as log:
        async with asked_by(tmp_path / "project", person, agent) as (client, served, _):
            asking = asyncio.create_task(told(client, "wipe"))
            await person.wait_for(1)
            assert (await health(served.url("user")))["agent"]["open_questions"] == 1
            person.answer_now(accept(decision="deny"))
            await asking
            assert "open_questions" not in (await health(served.url("user")))["agent"]
        (asked, answered), (ended,) = log.records("pallas.questions"), log.records("pallas.calls")
    assert (asked["message"], answered["message"]) == ("question asked", "question answered")
    assert (answered["outcome"], answered["seconds"] > 0) == ("declined", True)
    facts = {"agent": "user", "server": None, "kind": "approval", "tool": "asking/wipe", "call_id": ended["call_id"]}
    for record in (asked, answered):
        assert {key: record[key] for key in facts} == facts
    assert asked["question"] == answered["question"]


CREW = DESK.replace('["tools"]', '["asking"]').replace('["scout"]', '["scout"], child_timeout_sec=1')


@pytest.mark.parametrize(
    ("agent", "server"),
    [
        (Agent(["asking"]), {"read_timeout_seconds": 1}),
        (Agent(["asking"]), {"http_read_timeout_seconds": 1}),
        (Agent(source=CREW), {}),
    ],
    ids=["of a server", "of its transport", "of an agent as a tool"],
)
async def test_timeouts_do_not_count_the_time_in_which_the_caller_is_asked(
    agent: Agent, server: dict[str, int], tmp_path: Path
) -> None:
    def script(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say(" | ".join(request.tool_results.values()))
        if speaker(request) == "desk":
            return call_tools([("agent__scout", {"message": request.last_user_text})])
        return call_tools([(f"asking__{request.last_user_text}", {})])

    person, era = Person(None), "initialize"
    async with asked_by(tmp_path, person, agent, script=script, era=era, server=server) as (client, served, _):
        asking = asyncio.create_task(told(client, "name"))
        await person.wait_for(1)
        # A tool call that begins later fails by the same time-out: by then that of the question would have failed, too.
        assert '"Ada"' not in (await ask(served.url("user"), "hang")).text
        person.answer_now(accept(name="Ada"))
        assert "Ada" in await asking


KEYS = {name: name * 16 for name in ("ada", "bob")}
WITH_KEYS = {"tokens": [static_key("run:agents", key=key, name=name) for name, key in KEYS.items()]}
TOO_MANY = "The caller was not asked, because too many calls wait for answers"


@pytest.mark.parametrize(
    ("gateway", "callers", "waits", "why"),
    [
        ({"max_open_questions": 0}, (None,), (False,), TOO_MANY),
        ({"max_open_questions": 2}, (None, None, None), (True, True, False), TOO_MANY),
        (
            {"max_open_questions": 2, "auth": {**WITH_KEYS, "anonymous": ["run:agents"]}},
            (None, None, "ada"),
            (True, False, True),
            "",
        ),
        (
            {"max_open_questions": 2, "auth": WITH_KEYS},
            ("ada", "ada", "bob"),
            (True, False, True),
            "too many calls of this caller wait for answers",
        ),
    ],
    ids=["none", "nobody has a key", "without a key", "with a key"],
)
async def test_a_caller_leaves_places_to_others_that_can_be_asked(
    gateway: dict[str, Any], callers: tuple[str | None, ...], waits: tuple[bool, ...], why: str, tmp_path: Path
) -> None:
    async with asking_gateway(tmp_path, gateway=gateway) as (served, _):
        results = []
        for name in callers:
            bearer = KEYS[name] if name else None
            async with raw_client(served.url("user"), protocol_version=MODERN_VERSION, bearer=bearer) as client:
                reply = await client.call_tool("send_message", {"message": "name"}, meta=CAN_BE_ASKED)
                results.append(reply.result)
        for work in served.gateway.sessions.waiting_calls.works():
            work.cancel()
    assert tuple(one["resultType"] == "input_required" for one in results) == waits
    assert why in str(results)


@EACH_MODE
async def test_the_model_reads_what_it_means_that_a_server_was_restarted_while_it_asked(
    mode: str, tmp_path: Path
) -> None:
    async with asked_by(tmp_path, Person(accept(name="Ada")), mode=mode) as (client, _, _):
        answer = await told(client, "forget")
    assert answer.startswith("The question of this tool could not be completed: its server does not know the call")


async def test_a_call_that_asks_too_often_is_declined_and_the_model_reads_why(limits: Limits, tmp_path: Path) -> None:
    limits.gateway.questions = QuestionLimits(of_one_call=1)
    person = Person(accept(name="Ada"))
    async with asked_by(tmp_path, person, era="initialize") as (client, served, downstream):
        answer = await told(client, "name pay")
        assert "this call has asked 1 questions already" in answer
        assert sorted(one["action"] for one in downstream.answers) == ["accept", "decline"]
        assert questions(served, "form", "accepted") + questions(served, "url", "accepted") == 1
        assert questions(served, "form", "declined") + questions(served, "url", "declined") == 1
    assert len(person.asked) == 1


async def test_an_answer_of_another_session_or_bearer_is_not_taken(tmp_path: Path) -> None:
    async with asking_gateway(tmp_path) as (served, downstream):
        headers = {"mcp-protocol-version": "2025-11-25", "accept": "application/json, text/event-stream"}
        url, session = served.url("user"), {"mcp-session-id": "made-up.f", "authorization": "Bearer mine"}
        call = {"name": "send_message", "arguments": {"message": "name"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=30) as http,
            http.stream("POST", url, json=body, headers=session) as stream,
        ):
            lines = stream.aiter_lines()
            asked = await message_with("elicitation/create", lines)
            for others in ({"mcp-session-id": "another.f"}, {"authorization": "Bearer other"}):
                refused = await answer_to(asked, {"name": "Eve"}, http, url, {**session, **others})
                assert refused.status_code == 400
                assert refused.json()["error"]["code"] == -32600
                assert "id" not in refused.json()
            for unknown in ("made-up", 7):
                assert (await answer_to({"id": unknown}, {}, http, url, session)).status_code == 400
            assert (await answer_to(asked, {"name": "E" * 70_000}, http, url, session)).status_code == 413
            assert (await answer_to(asked, {"name": "Ada"}, http, url, session)).status_code == 202
            assert "Ada" in str(await message_with('"id":1', lines))
        assert downstream.answers == [{"action": "accept", "content": {"name": "Ada"}}]


async def message_with(text: str, lines: AsyncIterator[str]) -> dict[str, Any]:
    async for line in lines:
        if text in line:
            return dict(json.loads(line.removeprefix("data: ")))
    raise AssertionError(text)


async def answer_to(
    asked: dict[str, Any], content: dict[str, Any], http: httpx2.AsyncClient, url: str, headers: dict[str, str]
) -> httpx2.Response:
    result = {"action": "accept", "content": content}
    return await http.post(url, json={"jsonrpc": "2.0", "id": asked["id"], "result": result}, headers=headers)


async def test_a_client_of_the_stream_hears_of_questions_and_answers(tmp_path: Path) -> None:
    heard: list[Any] = []

    async def on_log(params: LoggingMessageNotificationParams) -> None:
        heard.append(params.data)

    async with (
        asking_gateway(tmp_path) as (served, _),
        client_of(served.url("user"), Person(accept(name="Ada")), on_log=on_log) as client,
    ):
        await told(client, "name")
    question, answer = (one for one in heard if one["kind"] in {"question", "answer"})
    assert question == {"kind": "question", "schema_version": 2, "id": question["id"], "message": f"asking: {FORM}"}
    assert answer == {"kind": "answer", "schema_version": 2, "id": question["id"], "action": "accept"}


# --- agents that call agents -----------------------------------------------------------------------------------------


@EACH_MODE
async def test_all_agents_of_a_path_give_back_slots_and_suspend_deadlines(mode: str, tmp_path: Path) -> None:
    limits, person = {"max_in_flight": 1, "call_timeout_seconds": 5}, Person(None)
    async with (
        asking_downstream("modern") as downstream,
        chain_of_agents(tmp_path, downstream.url, top=limits, boss=limits, user=limits) as served,
        client_of(served.url("top"), person, mode) as client,
    ):
        asking = asyncio.create_task(told(client, "boss: user: name"))
        await person.wait_for(1)
        assert "decline" in (await ask(served.url("top"), "boss: user: name")).text
        assert served.gateway.calls.waiting.count == 1
        person.answer_now(accept(name="Ada"))
        assert "Ada" in await asking


@pytest.mark.parametrize("closed", ["user", "boss", "top"])
async def test_one_agent_of_a_path_that_asks_nothing_keeps_callers_from_questions(closed: str, tmp_path: Path) -> None:
    person = Person()
    async with (
        asking_downstream("modern") as downstream,
        chain_of_agents(tmp_path, downstream.url, **{closed: {"ask_caller": False}}) as served,
        client_of(served.url("top"), person) as client,
    ):
        assert "cannot be asked" in await told(client, "boss: user: name")
    assert not person.asked


# --- 2026-07-28 ------------------------------------------------------------------------------------------------------


async def test_the_duration_of_a_call_of_2026_counts_all_its_requests(tmp_path: Path) -> None:
    with logged(tmp_path / "log") as log:
        async with asking_gateway(tmp_path / "project") as (served, _):
            reply = await (await asked_at(served.url("user"))).repeat()
        [line] = [one for one in log.records("pallas.calls") if one["message"] == "call ended"]
    assert line["duration_seconds"] <= reply.result["_meta"]["pallas/call"]["duration_seconds"]


@EACH_ERA
async def test_a_result_that_asks_says_which_questions_are_approvals(era: Era, tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"]})
    async with (
        asking_gateway(tmp_path, agent, era=era) as (served, _),
        raw_client(served.url("user"), protocol_version=MODERN_VERSION) as client,
    ):
        for tool, origin in (
            ("name", {"kind": "form", "agent": "user", "server": "asking"}),  # not what the server forged
            ("wipe", {"kind": "approval", "agent": "user", "tool": "asking/wipe"}),
        ):
            result = (await client.call_tool("send_message", {"message": tool}, meta=CAN_BE_ASKED)).result
            assert result["_meta"][ORIGINS_META_KEY] == dict.fromkeys(result["inputRequests"], origin)
        for work in served.gateway.sessions.waiting_calls.works():
            work.cancel()


def altered(state: str, at: int) -> str:
    return state[:at] + ("A" if state[at] != "A" else "B") + state[at + 1 :]


async def test_a_state_is_good_for_its_own_call_once(tmp_path: Path) -> None:
    agents = {"user": Agent(["asking"]), "other": Agent(["asking"])}
    async with asking_gateway(tmp_path, agents=agents) as (served, downstream):
        asked = await asked_at(served.url("user"))
        # In the prefix, the key's fingerprint, the nonce, the sealed text and its tag.
        places = (0, 4, 12, len(asked.state) // 2, len(asked.state) - 8)
        refused = [
            *[await asked.repeat(state=altered(asked.state, at)) for at in places],
            await asked.repeat(state="x" * 1_000_000),
            await asked.repeat(state=""),
            await asked.repeat(bearer="other"),
            await asked.repeat(bearer=None),
            await asked.repeat(url=served.url("other")),
            await asked.repeat(message="name "),
        ]
        assert {one.error["code"] for one in refused} == {INVALID_PARAMS}
        assert "Ada" in answer_of(await asked.repeat()).text
        assert (await asked.repeat()).error["code"] == INVALID_PARAMS
        assert len(downstream.answers) == 1


async def test_an_answer_that_does_not_fit_is_refused_and_may_be_given_again(tmp_path: Path) -> None:
    async with asking_gateway(tmp_path) as (served, _):
        asked = await asked_at(served.url("user"))
        contents: list[Any] = [{"name": 7}, {}, {"name": "Ada", "more": 1}, {"name": {"first": "Ada"}}]
        contents += ["Ada", ["Ada"], None, {"name": "\ud800"}]
        answers: list[dict[str, Any]] = [{"action": "accept", "content": one} for one in contents]
        answers += [{"roots": []}, {"action": "agree"}]
        for answer in answers:
            refused = await asked.repeat(answer)
            assert refused.error["code"] == INVALID_PARAMS
        assert "Ada" in answer_of(await asked.repeat()).text


async def test_answers_that_are_too_large_or_too_many_are_refused_and_lose_nothing(tmp_path: Path) -> None:
    async with asking_gateway(tmp_path) as (served, _):
        asked = await asked_at(served.url("user"))
        large = {"action": "accept", "content": {"name": "E" * 70_000}}
        refused = await asked.repeat(large)
        assert (refused.error["code"], len(refused.error["message"]) < 500) == (INVALID_PARAMS, True)
        assert "has more than 65536 characters. Send a shorter answer with this state." in refused.error["message"]
        many = asked.params()
        many["inputResponses"] |= {f"made up {one}": large | {"content": {}} for one in range(32)}
        async with raw_client(asked.url, protocol_version=MODERN_VERSION, bearer="mine") as client:
            refused = await client.request("tools/call", many, meta=CAN_BE_ASKED)
        assert "a call has at most 32 open questions" in refused.error["message"]
        assert "Ada" in answer_of(await asked.repeat()).text


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("name", {"action": "decline", "content": {"name": "Eve"}}),
        ("name", {"action": "cancel", "content": {"name": 7}}),
        ("pay", {"action": "accept", "content": {"name": "Eve"}}),
    ],
)
async def test_content_that_no_form_was_accepted_with_is_dropped(
    message: str, answer: dict[str, Any], tmp_path: Path
) -> None:
    async with asking_gateway(tmp_path) as (served, downstream):
        asked = await asked_at(served.url("user"), message)
        await asked.repeat(answer, message=message)
        assert downstream.answers == [{"action": answer["action"], "content": None}]


async def test_a_question_that_is_too_old_when_the_client_returns_is_cancelled_and_the_agent_goes_on(
    tmp_path: Path,
) -> None:
    async with asking_gateway(tmp_path) as (served, _):
        calls = served.gateway.sessions.waiting_calls
        asked = await asked_at(served.url("user"), "name name")
        left = asked_in((await asked.repeat()).result, asked.url, asked.message)
        calls.sealing = replace(calls.sealing, seconds=0.0)  # its time has passed; the state itself is valid
        answer = answer_of(await left.repeat({"action": "accept", "content": {"name": "Eve"}})).text
        assert '"action": "cancel"' in answer
        assert '"Ada"' in answer
        assert "Eve" not in answer
        assert questions(served, "form", "expired") == 1
        assert (await left.repeat()).error["code"] == INVALID_PARAMS
        assert len(calls) == 0


# --- approval --------------------------------------------------------------------------------------------------------

FUNCTION = """
def deploy(where: str = "here") -> str:
    return f"deployed {where}"
"""


async def test_an_approval_for_the_call_of_a_declared_agent_ends_with_it(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        made = len(request.tool_results)
        return call_tools([("asking__wipe", {"path": f"/{made}"})]) if made < 3 else say("done")

    person = Person(accept(decision="call"), accept(decision="call"))
    declared = {"instruction": "You are user.", "servers": ["asking"], "approve": ["*/*"]}
    async with asking_downstream("modern") as downstream, scripted_llm(script) as llm:
        servers = {"asking": {"url": downstream.url}}
        project = declare_project(tmp_path, {"user": declared}, llm_url=llm.base_url, servers=servers)
        async with running(project) as served, client_of(served.url("user"), person) as client:
            for number in (1, 2):
                await told(client, "go")
                assert len(person.asked) == number
        assert len(downstream.recorder.calls("wipe")) == 6


@pytest.mark.parametrize(("unasked", "runs"), [("deny", False), ("allow", True)])
async def test_a_caller_that_cannot_be_asked_approves_nothing_unless_the_agent_says_so(
    unasked: str, runs: bool, tmp_path: Path
) -> None:
    agent = Agent(["asking"], settings={"approve": ["asking/*"], "approve_unasked": unasked})
    async with asking_gateway(tmp_path, agent) as (served, downstream):
        assert ("wiped" in (await ask(served.url("user"), "wipe")).text) == runs
        assert len(downstream.recorder.calls("wipe")) == runs


@pytest.mark.parametrize("servers", [["asking"], []], ids=["with servers", "without"])
@pytest.mark.parametrize(
    ("tool", "arguments", "decorator"),
    [
        ("deploy", {"where": "there"}, "function_tools=[deploy]"),
        ("bash", {"command": "echo deployed there"}, "shell=True"),  # which fast-agent runs by itself
    ],
    ids=["functions", "shell"],
)
async def test_local_tools_of_an_agent_need_approval_as_well(
    tool: str, arguments: dict[str, str], decorator: str, servers: list[str], tmp_path: Path
) -> None:
    def script(request: LlmRequest) -> Turn:
        results = list(request.tool_results.values())
        return say(results[0]) if results else call_tools([(tool, arguments)])

    agent = with_code(FUNCTION, Agent(servers, decorator=decorator, settings={"approve": ["local/*"]}))
    person = Person(accept(decision="deny"), accept(decision="once"))
    async with asked_by(tmp_path, person, agent, script=script) as (client, _, _):
        assert "was not run" in await told(client, "go")
        assert "deployed there" in await told(client, "go")
    assert f"May the tool local/{tool} run" in person.asked[0].message
    assert json.dumps(arguments)[1:-1] in person.asked[0].message


async def test_the_tool_that_asks_the_caller_needs_no_approval(tmp_path: Path) -> None:
    agent = Agent(["asking"], decorator="human_input=True", settings={"approve": ["*/*"]})
    async with asked_by(tmp_path, Person(accept(name="Ada")), agent) as (client, _, _):
        assert await told(client, "human") == '{"name": "Ada"}'


# --- limits of single tools -------------------------------------------------------------------------------------------

REFUSED = (
    "The tool 'asking/wipe' was not run: the limit of one call for tools of 'asking/wipe' is 2, and it is reached."
)


def wipes_at_once(request: LlmRequest) -> Turn:
    """Call `wipe` three times at once, then once more, then repeat what the calls brought."""
    results = request.tool_results
    if len(results) == 4:
        return say(" | ".join(results.values()))
    return call_tools([("asking__wipe", {"path": f"/{n}"}) for n in range(1 if results else 3)])


class Decides(Person):
    def __init__(self, **decisions: str) -> None:
        super().__init__()
        self.decisions = decisions

    @override
    async def __call__(self, context: object, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params)
        path = next(path for path in self.decisions if f'"/{path[1:]}"' in params.message)
        return accept(decision=self.decisions[path])


async def test_a_limited_tool_is_not_put_to_the_caller(tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"], "tool_limits": {"asking/wipe": 2}})
    person = Decides(p0="once", p1="once", p2="once")
    async with asked_by(tmp_path, person, agent, script=wipes_at_once) as (client, served, downstream):
        answer = await told(client, "go")
        assert len(downstream.recorder.calls("wipe")) == len(person.asked) == 2
        assert questions(served, "approval", "accepted") == 2
    assert answer.count(REFUSED) == 2


async def test_a_tool_that_the_caller_does_not_approve_is_not_counted(tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"], "tool_limits": {"asking/wipe": 3}})
    person = Decides(p0="once", p1="deny", p2="once")
    async with asked_by(tmp_path, person, agent, script=wipes_at_once) as (client, _, downstream):
        answer = await told(client, "go")
        assert len(downstream.recorder.calls("wipe")) == 3
    assert "requires approval" in answer
    assert "limit of one call" not in answer


SEND_MAIL = """
def send_mail(to: str) -> str:
    return f"sent to {to}"
"""


async def test_functions_of_an_agent_are_limited_as_local_tools(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        results = request.tool_results
        return (
            say(" | ".join(results.values())) if results else call_tools([("send_mail", {"to": one}) for one in "ab"])
        )

    limits = {"tool_limits": {"local/send_*": 1}}
    agent = with_code(SEND_MAIL, Agent(decorator="function_tools=[send_mail]", settings=limits))
    async with gateway_of(tmp_path, {"url": "http://127.0.0.1:9/mcp"}, agent, script=script) as served:
        first, second = (await ask(served.url("user"))).text.split(" | ")
    assert first == "sent to a"
    assert second.startswith("The tool 'local/send_mail' was not run")
