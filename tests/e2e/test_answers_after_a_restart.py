"""Calls of 2026-07-28 that wait: answers count wherever and however they are resumed, and clients may end them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.askable_callers import CAN_BE_ASKED, INVALID_PARAMS, asked_at, ended
from tests.support.asking import FORM, URL_MESSAGE, asking_downstream
from tests.support.asking_gateways import calls_the_tool_it_is_told, neighbours, project_of, questions
from tests.support.calling import answer_of
from tests.support.clients import MODERN_VERSION, RawReply, raw_client
from tests.support.gateway import Agent, Running, running, until_idle
from tests.support.resumed_calls import resumed
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, say, scripted_llm
from tests.support.threads_api import Api, http_of

ASKS = Agent(["asking"], settings={"approve": ["asking/wipe"]})
ASKS_NO_MORE: dict[str, dict[str, Any]] = {
    "a policy without the tool": {},
    "callers that are not asked": {"approve": ["asking/wipe"], "ask_caller": False, "approve_unasked": "allow"},
    "another policy": {"approve": ["asking/*", "destructive"]},
}
EACH_CHANGE = pytest.mark.parametrize("settings", ASKS_NO_MORE.values(), ids=ASKS_NO_MORE)


def decide(decision: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"decision": decision}}


@pytest.mark.parametrize(("answer", "runs"), [(decide("deny"), 0), (decide("call"), 1)])
@EACH_CHANGE
async def test_a_tool_runs_after_a_restart_only_as_the_person_has_decided(
    settings: dict[str, Any], answer: dict[str, Any], runs: int, tmp_path: Path
) -> None:
    then = Agent(["asking"], settings=settings)
    async with asking_downstream("modern") as downstream:
        async with resumed(tmp_path, downstream.url, "wipe", ASKS, then=then) as call:
            assert ("wiped /" if runs else "the caller did not give it") in await call.answered(answer)
        assert len(downstream.recorder.calls("wipe")) == runs


@EACH_CHANGE
async def test_a_denied_tool_of_a_thread_does_not_run_after_a_restart(settings: dict[str, Any], tmp_path: Path) -> None:
    async with asking_downstream("modern") as downstream, scripted_llm(calls_the_tool_it_is_told) as llm:
        database = {"database": "sqlite:///threads.db"}
        project = project_of(tmp_path / "project", llm, {"url": downstream.url}, ASKS, gateway=database)
        async with running(project) as served, http_of(served) as http:
            asked = await Api(served, downstream, http).chat("wipe")
        project.edit(lambda document: document["agents"]["user"].pop("approve"))
        project.edit(lambda document: document["agents"]["user"].update(settings))
        async with running(project) as served, http_of(served) as http:
            answers = {asked["questions"][0]["id"]: decide("deny")}
            final = await Api(served, downstream, http).answer(asked["threadId"], answers)
        assert "the caller did not give it" in final.raise_for_status().json()["content"]
        assert not downstream.recorder.calls("wipe")


@pytest.mark.parametrize(
    ("settings", "answers", "said"),
    [
        pytest.param({}, ["perhaps", "deny"], "the caller did not give it", id="asked again"),
        pytest.param(ASKS_NO_MORE["callers that are not asked"], ["perhaps"], "cannot be asked", id="not asked"),
    ],
)
async def test_an_approval_without_an_answer_runs_no_tool_after_a_restart(
    settings: dict[str, Any], answers: list[str], said: str, tmp_path: Path
) -> None:
    then = Agent(["asking"], settings=settings)
    async with asking_downstream("modern") as downstream:
        async with resumed(tmp_path, downstream.url, "wipe", ASKS, then=then) as call:
            assert said in await call.answered(*map(decide, answers))
        assert not downstream.recorder.calls("wipe")


async def test_an_approval_for_the_whole_call_covers_no_tools_that_a_later_policy_adds(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        made = len(request.called)
        return (
            call_tools([(("asking__wipe", "asking__name")[made], {})])
            if made < 2
            else say([*request.tool_results.values()][-1])
        )

    then = Agent(["asking"], settings={"approve": ["*/*"]})
    async with asking_downstream("modern") as downstream:
        async with resumed(tmp_path, downstream.url, "wipe name", ASKS, script=script, then=then) as call:
            assert "'asking/name' was not run" in await call.answered(decide("call"), decide("deny"))
        assert (len(downstream.recorder.calls("wipe")), downstream.recorder.calls("name")) == (1, [])


async def test_the_denial_of_one_tool_holds_beside_an_approval_for_the_whole_call(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say("; ".join(request.tool_results.values()))
        return call_tools([("asking__wipe", {"path": path}) for path in "ab"])

    gateway = {"state_keys": ["k" * 32]}
    arguments = {"name": "send_message", "arguments": {"message": "wipe"}}
    async with asking_downstream("modern") as downstream, scripted_llm(script) as llm:
        server = {"url": downstream.url}
        async with (
            running(project_of(tmp_path / "one", llm, server, ASKS, gateway=gateway)) as served,
            raw_client(served.url("user"), protocol_version=MODERN_VERSION) as client,
        ):
            asked = (await client.request("tools/call", arguments, meta=CAN_BE_ASKED)).result
        decisions = {
            id_: decide("call" if '"a"' in one["params"]["message"] else "deny")
            for id_, one in asked["inputRequests"].items()
        }
        async with (
            running(project_of(tmp_path / "two", llm, server, ASKS, gateway=gateway)) as served,
            raw_client(served.url("user"), protocol_version=MODERN_VERSION) as client,
        ):
            repeated = {**arguments, "requestState": asked["requestState"], "inputResponses": decisions}
            reply = await client.request("tools/call", repeated, meta=CAN_BE_ASKED)
        assert answer_of(reply).text.startswith("wiped a; The tool 'asking/wipe' was not run")
        assert len(decisions) == 2
        assert len(downstream.recorder.calls("wipe")) == 1


@pytest.mark.parametrize("message", ["name", "human"])
async def test_an_answer_reaches_the_agent_after_a_restart_that_asks_callers_no_more(
    message: str, tmp_path: Path
) -> None:
    agent = Agent(["asking"], decorator="human_input=True")
    then = Agent(["asking"], decorator="human_input=True", settings={"ask_caller": False})
    async with (
        asking_downstream("modern") as downstream,
        resumed(tmp_path, downstream.url, message, agent, then=then) as call,
    ):
        assert '"name": "Ada"' in await call.answered()


async def test_the_model_reads_after_a_restart_which_questions_the_caller_could_not_be_asked(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        results = request.tool_results
        if len(results) == 2:
            return say(" | ".join(results.values()))
        return call_tools(
            [("asking__name", {}) if results else ("asking__pay", {})]
        )  # the first has ended at the restart

    forms_only: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    async with (
        asking_downstream("modern") as downstream,
        resumed(tmp_path, downstream.url, "go", script=script, meta=forms_only) as call,
    ):
        page, form = (await call.answered()).split(" | ")
        assert page.count("This caller cannot be asked") == 1
        assert URL_MESSAGE in page
        assert form == 'answer: {"action": "accept", "content": {"name": "Ada"}}'


async def test_a_question_that_was_open_at_the_restart_is_told_to_the_model_where_callers_are_asked_no_more(
    tmp_path: Path,
) -> None:
    then = Agent(["asking"], settings={"ask_caller": False})
    async with (
        asking_downstream("modern") as downstream,
        resumed(tmp_path, downstream.url, "name", then=then) as call,
    ):
        answer = await call.answered({"action": "accept", "content": {"name": 7}})
        assert "This caller cannot be asked" in answer
        assert FORM in answer


# --- Calls that their client ends without an answer


BOOKS = """
from pathlib import Path

from fast_agent import FastAgent

fast = FastAgent("user", parse_cli_args=False)


def wipe() -> str:
    return "wiped"


def book() -> str:
    Path(__file__).with_name("booked").touch()
    return "booked"


@fast.agent(name="user", function_tools=[wipe, book], default=True)
async def agent() -> None: ...
"""
ANSWER = {"action": "cancel"}


def wipes_then_books(request: LlmRequest) -> Turn:
    if (made := len(request.tool_results)) < 2:
        return call_tools([(("wipe", "book")[made], {})])
    return say("done")


@asynccontextmanager
async def booking(path: Path) -> AsyncIterator[tuple[Running, ScriptedLlm]]:
    """Serve an agent that books after an approval, whatever the answer to that is."""
    agent = Agent(source=BOOKS, settings={"approve": ["local/wipe"]})
    async with (
        scripted_llm(wipes_then_books) as llm,
        running(project_of(path, llm, {"url": "http://x"}, agent)) as served,
    ):
        yield served, llm


ENDED = "The call was cancelled."


def assert_cancelled(reply: RawReply, text: str = ENDED) -> None:
    result = answer_of(reply)
    assert result.is_error
    assert result.text == text
    assert result.meta["stop_reason"] == "cancelled"


async def test_a_call_that_is_ended_at_an_approval_calls_no_tool_and_no_model(tmp_path: Path) -> None:
    async with booking(tmp_path) as (served, llm):
        asked = await asked_at(served.url("user"), "go")
        first = await ended(asked)
        assert_cancelled(first)
        await until_idle(served)
        assert len(llm.requests) == 1
        assert not list(tmp_path.rglob("booked"))
        assert served.metric("pallas_send_message_total", agent="user", outcome="error") == 1
        assert len(served.gateway.sessions.waiting_calls) == 0

        again = await ended(asked)
        assert_cancelled(again)
        assert answer_of(again).meta["call_id"] == answer_of(first).meta["call_id"]
        assert (await asked.repeat(ANSWER)).error["code"] == INVALID_PARAMS
        assert served.metric("pallas_send_message_total", agent="user", outcome="error") == 1


async def test_only_the_caller_of_a_call_ends_it_with_its_arguments_and_without_an_answer(tmp_path: Path) -> None:
    async with booking(tmp_path) as (served, llm):
        asked = await asked_at(served.url("user"), "go")
        refused = [
            await ended(asked, bearer="other"),
            await ended(asked, arguments={"message": "other"}),
            await ended(asked, requestState=None),
            await ended(asked, inputResponses={asked.id: ANSWER}),
        ]
        assert [one.error["code"] for one in refused] == [INVALID_PARAMS] * 4
        assert len(served.gateway.sessions.waiting_calls) == len(llm.requests) == 1
        assert_cancelled(await ended(asked))


async def test_a_call_is_ended_whichever_process_gets_the_request(tmp_path: Path) -> None:
    async with (
        asking_downstream("modern") as downstream,
        neighbours(tmp_path, downstream.url, calls_the_tool_it_is_told) as (one, two),
    ):
        asked = await asked_at(one.url("user"))
        assert_cancelled(await ended(asked, url=two.url("user")))
        await until_idle(one)
        assert_cancelled(await ended(asked, url=two.url("user")))
        assert (await asked.repeat(ANSWER, url=two.url("user"))).error["code"] == INVALID_PARAMS
        assert not downstream.answers


MAY_WAIT = (
    f"{ENDED} If it waits at another replica of the gateway, it ends there when its state expires, "
    "without another turn of the model."
)


async def test_a_call_that_waits_at_another_replica_is_ended_only_here_and_the_result_tells_so(tmp_path: Path) -> None:
    keys = {"state_keys": ["k" * 32]}
    async with (
        asking_downstream("modern") as downstream,
        scripted_llm(calls_the_tool_it_is_told) as llm,
        running(project_of(tmp_path / "one", llm, {"url": downstream.url}, gateway=keys)) as one,
        running(project_of(tmp_path / "two", llm, {"url": downstream.url}, gateway=keys)) as two,
    ):
        asked = await asked_at(one.url("user"))
        assert_cancelled(await ended(asked, url=two.url("user")), MAY_WAIT)
        assert (await asked.repeat(url=two.url("user"))).error["code"] == INVALID_PARAMS
        assert (len(one.gateway.sessions.waiting_calls), len(llm.requests), downstream.answers) == (1, 1, [])
        assert_cancelled(await ended(asked))
        await until_idle(one)
        assert len(llm.requests) == 1


async def test_a_call_that_is_ended_after_a_restart_is_not_resumed(tmp_path: Path) -> None:
    async with asking_downstream("modern") as downstream, resumed(tmp_path, downstream.url, "name") as call:
        assert_cancelled(await ended(call.asked), MAY_WAIT)
        assert (await call.asked.repeat()).error["code"] == INVALID_PARAMS
        assert_cancelled(await ended(call.asked))
        assert not call.llm.requests
        assert questions(call.served, "form", "accepted") == 0
