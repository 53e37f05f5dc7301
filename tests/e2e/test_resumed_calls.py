"""Calls of 2026-07-28 that have asked, and that another process resumes from the state that their client holds."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path

import pytest

from pallas_gateway.process.workers import forwarding
from tests.support.askable_callers import (
    CAN_BE_ASKED,
    INVALID_PARAMS,
    asked_at,
    asked_in,
    called_at,
)
from tests.support.asking import asking_downstream
from tests.support.asking_gateways import (
    HUMAN,
    calls_the_tool_it_is_told,
    gateway_of,
    neighbours,
    questions,
    tool_named,
)
from tests.support.calling import answer_of, ask
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.gateway import Agent, with_code
from tests.support.guarded import static_key
from tests.support.resumed_calls import resumed
from tests.support.scripted_llm import LlmRequest, Turn, Usage, call_tools, hang, say
from tests.support.waiting import Gate, eventually


async def test_a_state_whose_request_was_refused_is_good_once_more(tmp_path: Path) -> None:
    gate, agent = Gate(), Agent(["asking"], settings={"max_in_flight": 1})

    def script(request: LlmRequest) -> Turn:
        return hang(gate, say("done")) if request.last_user_text == "hang" else calls_the_tool_it_is_told(request)

    async with (
        asking_downstream("modern") as downstream,
        resumed(tmp_path, downstream.url, "name", agent, script=script, queue_seconds=0) as call,
    ):
        first = asyncio.create_task(ask(call.served.url("user"), "hang"))
        await gate.wait_for_entered()
        refused = answer_of(await call.asked.repeat())
        assert refused.meta["stop_reason"] == "busy"
        gate.open()
        await first
        assert '"Ada"' in await call.answered()
        assert (await call.asked.repeat()).error["code"] == INVALID_PARAMS


async def test_a_state_whose_client_has_left_before_its_call_began_is_good_once_more(tmp_path: Path) -> None:
    gate, agent = Gate(), Agent(["asking"], settings={"max_in_flight": 1})

    def script(request: LlmRequest) -> Turn:
        return hang(gate, say("done")) if request.last_user_text == "hang" else calls_the_tool_it_is_told(request)

    async with (
        asking_downstream("modern") as downstream,
        resumed(tmp_path, downstream.url, "name", agent, script=script, queue_seconds=60) as call,
    ):
        first = asyncio.create_task(ask(call.served.url("user"), "hang"))
        await gate.wait_for_entered()
        leaving, running = asyncio.create_task(call.asked.repeat()), call.served.gateway.calls.running
        await eventually(lambda: len(running()) == 2, what="the resumed call in the queue")
        leaving.cancel()
        await eventually(lambda: len(running()) == 1, what="its end")
        gate.open()
        await first
        assert '"Ada"' in await call.answered()
        assert (await call.asked.repeat()).error["code"] == INVALID_PARAMS


TURN = Usage(prompt=80, completion=20)


def one_tool_per_turn(request: LlmRequest) -> Turn:
    """Call the tools that the message names one after the other, then repeat what they brought."""
    made, words = len(request.tool_results), request.last_user_text.split()
    if made == len(words):
        return say(" | ".join(request.tool_results.values()), usage=TURN)
    name, arguments = tool_named(words[made])
    return call_tools([(name, arguments)], text=f"Turn {made}.", usage=TURN)


async def test_a_call_is_resumed_by_another_process_from_its_state(tmp_path: Path) -> None:
    async with asking_downstream("modern") as downstream:
        async with resumed(tmp_path, downstream.url, "wipe name", script=one_tool_per_turn) as call:
            assert await call.answered() == 'wiped / | answer: {"action": "accept", "content": {"name": "Ada"}}'
            assert (await call.asked.repeat()).error["code"] == INVALID_PARAMS
            assert questions(call.served, "form", "accepted") == len(call.llm.requests) == 1
        first, again = (str(one) for one in downstream.recorder.calls("name"))
        assert "inputResponses" not in first
        assert "inputResponses" in again
        assert len(downstream.recorder.calls("wipe")) == 1


async def test_a_tool_of_the_initialize_era_that_had_asked_is_not_run_again(tmp_path: Path) -> None:
    async with asking_downstream("initialize") as downstream:
        async with resumed(tmp_path, downstream.url, "wipe name", script=one_tool_per_turn) as call:
            answer = await call.answered()
            assert "its question could not be completed" in answer
            assert "wiped /" in answer
        assert len(downstream.recorder.calls("name")) == len(downstream.recorder.calls("wipe")) == 1


async def test_a_tool_that_required_pages_by_an_error_is_called_again_after_a_restart(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        results = list(request.tool_results.values())
        return say(results[0]) if results else call_tools([("asking__consent", {"after": 2})])

    async with asking_downstream("initialize") as downstream:
        async with resumed(tmp_path, downstream.url, "go", script=script) as call:
            assert await call.answered({"action": "accept"}, {"action": "accept"}) == "consented"
            assert questions(call.served, "url", "accepted") == 2
        assert len(downstream.recorder.calls("consent")) == 3


async def test_questions_that_are_still_open_are_asked_again_after_a_restart(tmp_path: Path) -> None:
    agent, misfit = Agent(decorator="human_input=True"), {"action": "accept", "content": {"name": 7}}
    async with resumed(tmp_path, "http://127.0.0.1:9/mcp", "human human", agent) as call:
        assert await call.answered(misfit, {"action": "decline"}, {"action": "accept", "content": {"name": "Ada"}}) in {
            'The caller declined to answer. | {"name": "Ada"}',
            '{"name": "Ada"} | The caller declined to answer.',
        }


HANGING = """
import asyncio


def ends() -> str:
    return "has ended"


async def hangs() -> None:
    await asyncio.Event().wait()
"""


async def test_a_tool_that_ran_at_the_restart_is_not_run_again_and_the_model_reads_it(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        results = sorted(request.tool_results.values())
        return say(" | ".join(results)) if results else call_tools([("ends", {}), ("hangs", {}), tool_named("name")])

    agent = with_code(HANGING, Agent(["asking"], decorator="function_tools=[ends, hangs]"))
    async with (
        asking_downstream("modern") as downstream,
        resumed(tmp_path, downstream.url, "go", agent, script=script) as call,
    ):
        answer = await call.answered()
        assert "its result is not known" in answer
        assert '"Ada"' in answer
        assert "has ended" in answer


async def test_a_nested_question_and_a_long_call_ask_the_client_to_call_again_after_a_restart(tmp_path: Path) -> None:
    keys = {"state_keys": ["k" * 32]}

    def script(request: LlmRequest) -> Turn:
        if request.last_user_text == "long":
            name, long = tool_named("name"), ("asking__wipe", {"path": secrets.token_hex(40_000)})
            return call_tools([name if request.tool_results else long])
        return calls_the_tool_it_is_told(request)

    agents = {"top": Agent(["user"], settings={"depends_on": ["user"]}), "user": Agent(["asking"])}
    async with asking_downstream("modern") as downstream:
        server = {"url": downstream.url}
        async with gateway_of(tmp_path / "one", server, agents=agents, gateway=keys, script=script) as first:
            asked = [await asked_at(first.url("top"), "user: name"), await asked_at(first.url("user"), "long")]
            first.stop.set()
        assert max(len(one.state) for one in asked) < 1000
        async with gateway_of(tmp_path / "two", server, agents=agents, gateway=keys, script=script) as second:
            for one, agent in zip(asked, agents, strict=True):
                result = answer_of(await one.repeat(url=second.url(agent)))
                assert result.is_error
                assert "Call the tool again" in result.text
                assert second.metric("pallas_calls_refused_total", agent=agent, reason="call_again") == 1


async def test_the_state_of_a_call_with_ten_turns_is_below_64_kb(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        made = len(request.tool_results)
        return call_tools(
            [("asking__wipe", {"path": "/".join(map(str, range(made, made + 700)))})] if made < 9 else [HUMAN]
        )

    agent = Agent(["asking"], decorator="human_input=True")
    async with asking_downstream("modern") as downstream:
        async with gateway_of(tmp_path, {"url": downstream.url}, agent, script=script) as served:
            asked = await asked_at(served.url("user"))
            served.stop.set()
        assert 4096 < len(asked.state) < 64 * 1024


# --- a drain ---------------------------------------------------------------------------------------------------------


IS_STOPPING = "The gateway is stopping and could not wait for this call any longer. Send it again in a moment."


@pytest.mark.parametrize("called", ["user", "top"])
async def test_a_call_that_asks_during_a_drain_is_resumed_or_ends_with_a_sentence(called: str, tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if request.last_user_text == "name" and not request.tool_results:
            return hang(gate, call_tools([tool_named("name")]))
        return calls_the_tool_it_is_told(request)

    keys, message = {"state_keys": ["k" * 32]}, {"user": "name", "top": "user: name"}[called]
    agents = {"top": Agent(["user"], settings={"depends_on": ["user"]}), "user": Agent(["asking"])}
    async with asking_downstream("modern") as downstream:
        server = {"url": downstream.url}
        async with gateway_of(tmp_path / "one", server, agents=agents, gateway=keys, script=script) as first:
            calling = asyncio.create_task(called_at(first.url(called), message))
            await gate.wait_for_entered()
            first.stop.set()
            await eventually(lambda: first.gateway.calls.draining, what="the drain")
            gate.open()
            reply = await calling
        if called == "top":
            assert answer_of(reply).text == IS_STOPPING
            return
        asked = asked_in(reply.result, first.url(called), message)
        async with gateway_of(tmp_path / "two", server, agents=agents, gateway=keys) as second:
            assert '"Ada"' in answer_of(await asked.repeat(url=second.url(called))).text


# --- two processes of one gateway ------------------------------------------------------------------------------------


async def test_a_call_in_another_process_sends_its_notifications_and_asks_again_there(tmp_path: Path) -> None:
    meta = {**CAN_BE_ASKED, "io.modelcontextprotocol/logLevel": "info"}
    async with (
        asking_downstream("modern") as downstream,
        neighbours(tmp_path, downstream.url, one_tool_per_turn) as (one, two),
    ):
        asked = await asked_at(one.url("user"), "name name")
        async with (
            raw_client(two.url("user"), protocol_version=MODERN_VERSION, bearer="mine") as client,
            client.in_flight("tools/call", asked.params(), meta=meta) as call,
        ):
            again = asked_in((await call.reply()).result, one.url("user"), "name name")
        assert '"kind": "answer"' in json.dumps(call.notifications)
        assert '"Ada"' in answer_of(await again.repeat()).text


async def test_a_process_that_drains_leaves_its_waiting_calls_to_the_others(tmp_path: Path) -> None:
    async with (
        asking_downstream("modern") as downstream,
        neighbours(tmp_path, downstream.url, calls_the_tool_it_is_told) as (one, two),
    ):
        asked = await asked_at(one.url("user"))
        one.gateway.calls.drain()
        refused = await asked.repeat()  # with the state, which stays good
        assert (refused.status, int(refused.headers["retry-after"]) > 0) == (503, True)
        assert '"Ada"' in answer_of(await asked.repeat(url=two.url("user"))).text
        assert len(downstream.answers) == 1


async def test_a_process_that_is_busy_has_answers_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        asking_downstream("modern") as downstream,
        neighbours(tmp_path, downstream.url, calls_the_tool_it_is_told) as (one, two),
    ):
        asked = await asked_at(one.url("user"))
        with monkeypatch.context() as busy:
            busy.setattr(forwarding, "MOST_WAITING", 0)
            refused = await asked.repeat(url=two.url("user"))
        assert (refused.status, int(refused.headers["retry-after"]) > 0) == (503, True)
        assert "Send the same request again" in refused.error["message"]
        assert '"Ada"' in answer_of(await asked.repeat(url=two.url("user"))).text
        assert len(downstream.answers) == 1


async def test_the_process_of_a_call_decides_on_the_access_to_a_forwarded_request_itself(tmp_path: Path) -> None:
    auth = {"tokens": [static_key("run:agents", key="mine"), static_key("view:agents", key="reads", name="reader")]}
    async with (
        asking_downstream("modern") as downstream,
        neighbours(tmp_path, downstream.url, calls_the_tool_it_is_told, auth=auth) as (one, two),
    ):
        asked = await asked_at(one.url("user"))
        refused = [await asked.repeat(url=two.url("user"), bearer=bearer) for bearer in (None, "reads", "unknown")]
        assert [one.status for one in refused] == [401, 403, 401]
        assert not downstream.answers
        assert '"Ada"' in answer_of(await asked.repeat(url=two.url("user"))).text


# --- limits and budgets -----------------------------------------------------------------------------------------------


REFUSED = (
    "The tool 'asking/wipe' was not run: the limit of one call for tools of 'asking/wipe' is 2, and it is reached."
)


async def test_finished_tools_of_the_earlier_process_count(tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"tool_limits": {"asking/wipe": 2}, "loop_repeat_threshold": 0})
    async with (
        asking_downstream("modern") as downstream,
        resumed(tmp_path, downstream.url, "wipe name wipe wipe", agent, script=one_tool_per_turn) as call,
    ):
        answer = await call.answered()
        assert len(downstream.recorder.calls("wipe")) == 2
    assert answer.endswith(REFUSED + " Do not call it again in this call; answer without it.")


@pytest.mark.parametrize(("most", "requests"), [(300, 1), (200, 0), (1_000, 3)])
async def test_a_resumed_call_has_what_is_left_of_its_budget(most: int, requests: int, tmp_path: Path) -> None:
    agent = Agent(["asking"], settings={"max_tokens_per_call": most})
    async with (
        asking_downstream("modern") as downstream,
        resumed(tmp_path, downstream.url, "wipe name wipe wipe", agent, script=one_tool_per_turn) as call,
    ):
        answer = await call.answered()
        assert len(call.llm.requests) == requests
    if requests < 3:
        assert f"a call of the agent 'user' has used {200 + 100 * requests} tokens" in answer
        assert f"Turn {1 + requests}." in answer
