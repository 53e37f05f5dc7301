"""Answers to a resumed call count, whatever the settings of the process that resumes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.askable_callers import CAN_BE_ASKED
from tests.support.asking import FORM, URL_MESSAGE, asking_downstream
from tests.support.asking_gateways import calls_the_tool_it_is_told, project_of
from tests.support.calling import answer_of
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.gateway import Agent, running
from tests.support.resumed_calls import resumed
from tests.support.scripted_llm import call_tools, say, scripted_llm
from tests.support.threads_api import Api, http_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripted_llm import LlmRequest, Turn

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


async def test_an_approval_without_an_answer_is_asked_for_again_under_a_policy_without_the_tool(
    tmp_path: Path,
) -> None:
    async with asking_downstream("modern") as downstream:
        async with resumed(tmp_path, downstream.url, "wipe", ASKS, then=Agent(["asking"])) as call:
            misfit = decide("perhaps")
            assert "the caller did not give it" in await call.answered(misfit, decide("deny"))
        assert not downstream.recorder.calls("wipe")


async def test_an_unanswered_approval_does_not_run_the_tool_where_callers_are_not_asked_any_more(
    tmp_path: Path,
) -> None:
    then = Agent(["asking"], settings=ASKS_NO_MORE["callers that are not asked"])
    async with asking_downstream("modern") as downstream:
        async with resumed(tmp_path, downstream.url, "wipe", ASKS, then=then) as call:
            assert "cannot be asked" in await call.answered(decide("perhaps"))
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
