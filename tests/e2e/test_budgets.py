"""Budgets of a call end it between two LLM turns, with a partial answer, and nested calls count for those above."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from pallas_gateway.calls.permit import Excess
from pallas_gateway.core.offers import CallEntry
from pallas_gateway.features.limits.caller_limits import CallerLimits
from tests.e2e.fleet import WorkerManager, fleet
from tests.support.calling import answer_of, ask
from tests.support.gateway import Agent, module_of, until_idle
from tests.support.guarded import static_key
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import ANTHROPIC
from tests.support.scripted_llm import LlmRequest, Turn, Usage, call_tools, cut, fail, hang, say, stream
from tests.support.waiting import Gate, eventually
from tests.support.watching import Stage, calling, speaker, stage, turns_so_far

TURN = Usage(prompt=80, completion=20)
"""A hundred tokens."""


def solo(**settings: Any) -> dict[str, Agent]:
    return {"solo": Agent(servers=["tools"], settings=settings)}


def busy(request: LlmRequest) -> Turn:
    """A model that calls another tool in each turn, for ever."""
    number = turns_so_far(request)
    return call_tools([("tools__echo", {"text": f"{number}"})], text=f"Try {number}.", usage=TURN)


def aborted(staged: Stage, agent: str, reason: str) -> float:
    return staged.served.metric("pallas_agent_loop_aborted_total", agent=agent, reason=reason)


async def test_a_call_ends_before_the_turn_that_follows_its_budget(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(tmp_path, busy, solo(max_tokens_per_call=250)) as staged:
        with caplog.at_level(logging.INFO, "pallas"):
            answer = await ask(staged.url("solo"))
        await until_idle(staged.served)

        assert len(staged.llm.requests) == 3
        assert (aborted(staged, "solo", "budget"), aborted(staged, "solo", "limited")) == (1, 0)
        assert staged.served.metric("pallas_send_message_total", agent="solo", outcome="ok") == 1
    assert not answer.is_error
    assert answer.text.startswith("Try 2.")
    assert "a call of the agent 'solo' has used 300 tokens, nested calls included, and its budget is 250" in answer.text
    assert answer.text.endswith("This answer is partial.]")
    assert (answer.meta["stop_reason"], answer.meta["stopped"], answer.meta["iterations"]) == ("budget", "budget", 3)
    assert answer.meta["usage"] == {"input": 240, "output": 60, "cache_read": 0, "cache_write": 0, "reasoning": 0}
    assert "cost" not in answer.meta
    [line] = [record.__dict__ for record in caplog.records if record.getMessage() == "call ended"]
    assert (line["outcome"], line["stop_reason"], line["halted"]) == ("ok", "budget", ["budget"])
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_call_within_its_budget_is_whole(tmp_path: Path) -> None:
    async with stage(tmp_path, lambda _: say("Done.", usage=TURN), solo(max_tokens_per_call=100)) as staged:
        answer = await ask(staged.url("solo"))
    assert (answer.text, answer.meta["stop_reason"]) == ("Done.", "endTurn")


async def test_a_call_ends_at_the_cost_of_its_models(tmp_path: Path) -> None:
    prices = {"generic.test-model": {"input": 100, "output": 1000, "cached_input": 10, "cache_write": 200}}
    usage = Usage(prompt=100, completion=10, cached=50, written=20)  # 0.003 + 0.0005 + 0.004 + 0.01
    agents = solo(max_cost_per_call=0.03)
    script = [call_tools([("tools__echo", {"text": "a"})], usage=usage)] * 2 + [say("never")]
    async with stage(tmp_path, script, agents, gateway={"prices": prices}) as staged:
        before = staged.served.metric("pallas_cost_total", agent="solo", model="test-model")
        answer = await ask(staged.url("solo"))
        after = staged.served.metric("pallas_cost_total", agent="solo", model="test-model")
        assert len(staged.llm.requests) == 2
    assert before == 0
    assert after == pytest.approx(0.035)
    assert (answer.meta["stop_reason"], answer.meta["cost"]) == ("budget", 0.035)
    assert "has used 0.035 of cost, nested calls included, and its budget is 0.03." in answer.text
    assert answer.text.endswith("There is no answer yet.]")


async def test_a_model_without_a_price_costs_nothing_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agents = solo(max_cost_per_call=0.001)
    prices = {"openai.gpt-5": {"input": 100, "output": 1000}}
    async with stage(tmp_path, lambda _: say("Hi.", usage=TURN), agents, gateway={"prices": prices}) as staged:
        answers = [await ask(staged.url("solo")) for _ in range(2)]
    assert [(answer.text, "cost" in answer.meta) for answer in answers] == [("Hi.", False)] * 2
    unpriced = [record.__dict__ for record in caplog.records if record.getMessage() == "model has no price"]
    assert [record["model"] for record in unpriced] == ["generic.test-model"]
    unknown = "name in the configuration is not known"
    unused = [record.__dict__ for record in caplog.records if record.getMessage() == unknown]
    assert [record["setting"] for record in unused] == ["gateway.prices.openai.gpt-5"]


async def test_a_client_of_openais_api_reads_that_the_answer_is_cut(tmp_path: Path) -> None:
    async with (
        stage(tmp_path, busy, solo(max_tokens_per_call=150), gateway={"openai_api": True}) as staged,
        AsyncOpenAI(base_url=f"{staged.served.base_url}/v1", api_key="any", max_retries=0) as client,
    ):
        messages: Any = [{"role": "user", "content": "go"}]
        whole = await client.chat.completions.create(model="solo", messages=messages)
        streamed = await client.chat.completions.create(model="solo", messages=messages, stream=True)
        chunks = [chunk.choices[0] async for chunk in streamed if chunk.choices]
    text = "".join(choice.delta.content or "" for choice in chunks)
    assert (whole.choices[0].finish_reason, chunks[-1].finish_reason) == ("length", "length")
    assert (whole.model_extra or {})["pallas"]["stopped"] == "budget"
    for said in (whole.choices[0].message.content or "", text):
        assert said.count("Try 1.") == 1
        assert said.endswith("This answer is partial.]")


async def test_other_prices_and_budgets_hold_from_the_reload_on(tmp_path: Path) -> None:
    async with stage(tmp_path, busy, solo(max_tokens_per_call=150)) as staged:
        first = await ask(staged.url("solo"))

        def change(document: dict[str, Any]) -> None:
            document["gateway"]["prices"] = {"test-model": {"input": 1_000, "output": 0}}
            document["agents"]["solo"].update(max_tokens_per_call=250, tool_limits={"tools/echo": 1})

        staged.served.project.edit(change)
        await staged.served.reload()
        second = await ask(staged.url("solo"))
        assert len(staged.tools.recorder.calls("echo")) == 2 + 1
    assert ("cost" in first.meta, second.meta["cost"]) == (False, 0.24)
    assert "its budget is 250" in second.text


async def test_usage_that_a_provider_does_not_send_is_estimated(tmp_path: Path) -> None:
    def silent(request: LlmRequest) -> Turn:
        number = turns_so_far(request)
        return call_tools([("tools__echo", {"text": f"{number}" * 400})], text="x" * 400, usage=None)

    async with stage(tmp_path, silent, solo(max_tokens_per_call=700)) as staged:
        answer = await ask(staged.url("solo"), "y" * 400)
        assert len(staged.llm.requests) == 2
        tokens = staged.served.metric("pallas_llm_tokens_total", agent="solo", model="test-model", kind="output")
    usage = answer.meta["usage"]
    assert answer.meta["stop_reason"] == "budget"
    assert usage["estimated"] is True
    assert 400 <= usage["output"] == tokens <= 440  # two turns of a text and a tool call with 400 characters each
    assert usage["input"] >= 400 / 4 + (3 * 400 + 400) / 4


@pytest.mark.parametrize(
    ("turn", "reason", "output"),
    [
        pytest.param(lambda gate: stream(["x" * 400, "more"], gate), "cancelled", 100, id="left"),
        pytest.param(hang, "cancelled", 0, id="left before it sends"),
        pytest.param(lambda _: cut(["x" * 400]), "llm_error", 100, id="broken"),
        pytest.param(lambda _: fail(401), "llm_error", 0, id="refused"),
    ],
)
async def test_an_unfinished_turn_counts_what_it_has_begun_to_send_and_nothing_else(
    turn: Callable[[Gate], Turn], reason: str, output: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    caplog.set_level(logging.INFO, "pallas.calls")
    async with stage(tmp_path, lambda _: turn(gate), solo()) as staged:
        async with calling(staged.url("solo"), "y" * 4_000) as (_, call):
            await (gate.wait_for_entered(1) if reason == "cancelled" else call.reply())
        await until_idle(staged.served)
        gate.open()
    [line] = [record.__dict__ for record in caplog.records if record.getMessage() == "call ended"]
    tokens = line["tokens"]
    assert (line["reason"], tokens["output"], "estimated" in tokens) == (reason, output, output > 0)
    assert tokens["input"] >= 1_000 if output else tokens["input"] == 0


async def test_usage_that_comes_in_two_events_is_one_turn(tmp_path: Path) -> None:
    """Anthropic sends the tokens of the prompt first, and those of the answer last."""
    async with serving(tmp_path, ANTHROPIC, busy, max_tokens_per_call=250) as served:
        answer = await ask(served.url)
        assert len(served.llm.requests) == 3
    assert (answer.meta["stop_reason"], answer.meta["usage"]["input"], answer.meta["usage"]["output"]) == (
        "budget",
        240,
        60,
    )
    assert "estimated" not in answer.meta["usage"]


MEMBERS = (
    'agent(name="scout", instruction="You are scout.", servers=["tools"])',
    'agent(name="guide", instruction="You are guide.", servers=["tools"])',
    'agent(name="editor", instruction="You are editor.")',
)
WORKFLOWS = {
    "chain": 'chain(name="flow", sequence=["scout", "guide"], default=True)',
    "parallel": 'parallel(name="flow", fan_out=["scout", "guide"], fan_in="editor", default=True)',
    "router": 'router(name="flow", agents=["scout", "guide"], default=True)',
    "agents as tools": 'agent(name="flow", instruction="You are flow.", agents=["scout", "guide"], default=True)',
    "evaluator": (
        'evaluator_optimizer(name="flow", generator="scout", evaluator="editor", max_refinements=5, default=True)'
    ),
    "planner": 'iterative_planner(name="flow", agents=["scout", "guide"], plan_iterations=4, default=True)',
}


def flow(name: str, **settings: Any) -> dict[str, Agent]:
    return {"flow": Agent(["tools"], source=module_of(*MEMBERS, WORKFLOWS[name]), settings=settings)}


def workflow_script(request: LlmRequest) -> Turn:
    """Each turn is 100 tokens; `scout` and `guide` take two turns."""
    if "tools__echo" in request.tools:
        if request.tool_results:
            return say(f"{speaker(request)} is done.", usage=TURN)
        return call_tools([("tools__echo", {"text": "a"})], text=f"{speaker(request)} began.", usage=TURN)
    if others := [tool for tool in request.tools if tool.startswith("agent__")]:
        if request.tool_results:
            return say("all done", usage=TURN)
        return call_tools([(tool, {"message": "go"}) for tool in others], text="flow began.", usage=TURN)
    return say(json.dumps(choice_of(json.dumps(request.body))), usage=TURN)


def choice_of(asked: str) -> Any:
    if "confidence" in asked:
        return {"agent": "scout", "confidence": "high", "reasoning": "it knows"}
    if "is_complete" in asked:
        return {"description": "go on", "tasks": [{"description": "look", "agent": "scout"}], "is_complete": False}
    return "said"


@pytest.mark.parametrize(("name", "most"), [*zip(WORKFLOWS, (3, 1, 2, 3, 2, 1), strict=True)])
async def test_no_agent_of_a_workflow_has_a_turn_after_the_budget(name: str, most: int, tmp_path: Path) -> None:
    async with stage(tmp_path, workflow_script, flow(name, max_tokens_per_call=100 * most)) as staged:
        whole = 2 if name == "parallel" else 1  # agents that work at the same time
        answer = await ask(staged.url("flow"))
        await until_idle(staged.served)
        requests = len(staged.llm.requests)
        assert most <= requests < most + 2 * whole
        assert staged.served.metric("pallas_llm_turns_total", agent="flow", model="test-model") == requests
        assert aborted(staged, "flow", "budget") == 1
    assert (answer.is_error, answer.meta["stop_reason"], answer.meta["stopped"]) == (False, "budget", "budget")
    assert answer.meta["usage"]["input"] == 80 * requests
    assert f"has used {100 * requests} tokens" in answer.text


def three_deep(request: LlmRequest) -> Turn:
    """`top` calls `middle`, which calls `low` twice; `low` works for ever. Each turn is 100 tokens."""
    name = speaker(request)
    if name == "top":
        results = request.tool_results
        return (
            say("top is done.", usage=TURN)
            if results
            else call_tools([("middle__send_message", {"message": "go"})], text="top began.", usage=TURN)
        )
    if name == "middle":
        return call_tools([("low__send_message", {"message": f"{turns_so_far(request)}"})], text="middle.", usage=TURN)
    return busy(request)


def chain_of(top: dict[str, Any], middle: dict[str, Any], low: dict[str, Any]) -> dict[str, Agent]:
    return {
        "top": Agent(["middle"], settings={"depends_on": ["middle"], **top}),
        "middle": Agent(["low"], settings={"depends_on": ["low"], **middle}),
        "low": Agent(["tools"], settings=low),
    }


def tokens_of(staged: Stage, agent: str) -> float:
    return sum(
        staged.served.metric("pallas_llm_tokens_total", agent=agent, model="test-model", kind=kind)
        for kind in ("input", "output")
    )


async def test_the_budget_of_a_call_includes_nested_calls_three_deep(tmp_path: Path) -> None:
    async with stage(tmp_path, three_deep, chain_of({"max_tokens_per_call": 500}, {}, {})) as staged:
        answer = await ask(staged.url("top"))
        await until_idle(staged.served)
        assert [tokens_of(staged, agent) for agent in ("top", "middle", "low")] == [100, 100, 300]
        assert [aborted(staged, agent, "budget") for agent in ("top", "middle", "low")] == [1, 1, 1]
        outcomes = [
            staged.served.metric("pallas_send_message_total", agent="low", outcome=one) for one in ("ok", "error")
        ]
        assert outcomes == [1, 0]
    assert (answer.is_error, answer.meta["stop_reason"]) == (False, "budget")
    assert answer.text.startswith("top began.")
    assert "a call of the agent 'top' has used 500 tokens" in answer.text
    assert answer.meta["usage"]["input"] == 80  # its own


def several(request: LlmRequest) -> Turn:
    """`top` asks three agents at once, without a word; each finds something and works on."""
    if speaker(request) == "top":
        return call_tools([("low__send_message", {"message": f"part {number}"}) for number in range(3)], usage=TURN)
    if turns_so_far(request):
        return busy(request)
    return call_tools([("tools__echo", {"text": "x"})], text=f"Found {request.last_user_text}.", usage=TURN)


async def test_a_call_has_what_parallel_agents_had_when_a_common_budget_ended_them(tmp_path: Path) -> None:
    agents = {
        "top": Agent(["low"], settings={"depends_on": ["low"], "max_tokens_per_call": 400}),
        "low": Agent(["tools"]),
    }
    async with stage(tmp_path, several, agents) as staged:
        answer = await ask(staged.url("top"))
        await until_idle(staged.served)
    assert (answer.is_error, answer.meta["stop_reason"]) == (False, "budget")
    found, stopped, sentence = answer.text.partition("[Stopped: ")
    assert found == "low: Found part 0.low: Found part 1.low: Found part 2."
    assert stopped
    assert sentence.startswith("a call of the agent 'top' has used 400 tokens")
    assert sentence.endswith("This answer is partial.]")


async def test_a_nested_call_has_the_budget_of_its_own_agent_as_well(tmp_path: Path) -> None:
    agents = chain_of({"max_tokens_per_call": 700}, {}, {"max_tokens_per_call": 200})
    async with stage(tmp_path, three_deep, agents) as staged:
        answer = await ask(staged.url("top"))
        await until_idle(staged.served)
        # `low` is called again and again, with 200 tokens each time, until the budget of `top` is used up.
        assert [tokens_of(staged, agent) for agent in ("top", "middle", "low")] == [100, 200, 400]
        read = [result for request in staged.llm.requests for result in request.tool_results.values()]
    assert any("a call of the agent 'low' has used 200 tokens" in result for result in read)
    assert "a call of the agent 'top' has used 700 tokens" in answer.text


def a_day(tokens: int, **rule: str) -> dict[str, Any]:
    return {"limits": {"rules": [{"name": "daily", "tokens_per_day": tokens, **rule}]}}


KEYS = {"ann": "a" * 32, "bob": "b" * 32}
AUTH = {
    "auth": {
        "tokens": [static_key("view:agents", "run:agents", key=key, name=name) for name, key in KEYS.items()],
    }
}


async def test_the_answer_to_a_charge_is_awaited_before_the_next_turn_and_not_before_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, charge = Gate(), CallerLimits.charge

    async def held(limits: CallerLimits, entry: CallEntry, tokens: int) -> Excess | None:
        await gate.enter()
        return await charge(limits, entry, tokens)

    monkeypatch.setattr(CallerLimits, "charge", held)
    async with stage(tmp_path, busy, solo(), gateway=a_day(150)) as staged:
        async with calling(staged.url("solo")) as (_, call):
            await gate.wait_for_entered(1)
            await eventually(lambda: "tools/echo: completed" in str(call.notifications), what="the end of the tool")
            for _ in range(500):  # in which the next turn would begin
                await asyncio.sleep(0)
            assert len(staged.llm.requests) == 1
            gate.open()
            answer = answer_of(await call.reply())
        assert len(staged.llm.requests) == 2
    assert answer.meta["stop_reason"] == "limited"


async def test_parallel_agents_of_a_workflow_are_charged_each(tmp_path: Path) -> None:
    async with stage(tmp_path, workflow_script, flow("parallel"), gateway=a_day(200)) as staged:
        answer = await ask(staged.url("flow"))
        await until_idle(staged.served)
        await staged.served.gateway.metrics.update()
        assert len(staged.llm.requests) in {2, 3}  # one turn of each agent, at most one more of the faster
        used = staged.served.metric("pallas_limit_used_ratio", rule="daily")
        assert used == pytest.approx(100 * len(staged.llm.requests) / 200)
    assert answer.meta["stop_reason"] == "limited"


async def test_parallel_tool_calls_above_their_limit_do_not_run(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if len(request.tool_results) < 6:
            return call_tools([("tools__echo", {"text": f"{request.number} {n}"}) for n in range(3)])
        return say(" | ".join(request.tool_results.values()))

    agents = solo(tool_limits={"tools/ec*": 4, "*/add": 1})
    async with stage(tmp_path, script, agents) as staged:
        answer = await ask(staged.url("solo"))
        assert len(staged.tools.recorder.calls("echo")) == 4
        again = await ask(staged.url("solo"))  # a limit is for one call
        assert len(staged.tools.recorder.calls("echo")) == 8
    refused = (
        "The tool 'tools/echo' was not run: the limit of one call for tools of 'tools/ec*' is 4, and it is reached."
    )
    for one in (answer, again):
        assert one.text.count(refused) == 2
        assert "Do not call it again in this call" in one.text


async def test_all_agents_of_a_workflow_share_a_limit(tmp_path: Path) -> None:
    async with stage(tmp_path, workflow_script, flow("parallel", tool_limits={"tools/echo": 1})) as staged:
        await ask(staged.url("flow"))
        assert len(staged.tools.recorder.calls("echo")) == 1


async def test_a_limit_names_other_agents_as_servers(tmp_path: Path) -> None:
    agents = chain_of({"tool_limits": {"middle/send_message": 0}}, {}, {})
    async with stage(tmp_path, three_deep, agents) as staged:
        answer = await ask(staged.url("top"))
        assert {speaker(request) for request in staged.llm.requests} == {"top"}
        assert "tools of 'middle/send_message' is 0" in staged.llm.requests[-1].body["messages"][-1]["content"]
    assert answer.text == "top is done."


async def test_the_tokens_of_a_day_end_the_calls_of_one_caller_and_not_of_another(tmp_path: Path) -> None:
    gateway = {**AUTH, **a_day(750, caller="key:ann", per="caller")}
    agents = chain_of({}, {}, {"max_tokens_per_call": 300})
    async with stage(tmp_path, three_deep_and_done, agents, gateway=gateway) as staged:
        ann, bob = KEYS.values()
        # A call of `top` is 200 tokens, of `middle` 200 and of `low` 300.
        whole = await ask(staged.url("top"), bearer=ann)
        assert (whole.text, whole.meta["stop_reason"]) == ("top is done.", "endTurn")
        ended = await ask(staged.url("top"), bearer=ann)
        await until_idle(staged.served)
        assert [tokens_of(staged, agent) for agent in ("top", "middle", "low")] == [300, 200, 300]
        refused = await ask(staged.url("top"), bearer=ann)
        other = await ask(staged.url("top"), bearer=bob)
    assert (ended.is_error, ended.meta["stop_reason"]) == (False, "limited")
    assert (refused.is_error, refused.meta["stop_reason"]) == (True, "limited")
    assert other.text == "top is done."


def three_deep_and_done(request: LlmRequest) -> Turn:
    """As `three_deep`, but `middle` answers after its first nested call."""
    is_done = speaker(request) == "middle" and request.tool_results
    return say("middle is done.", usage=TURN) if is_done else three_deep(request)


# --- Several workers: each turn is charged in the parent before the next one begins


async def answer_at(served: WorkerManager, pid: int) -> Any:
    """The answer of a call of three turns with 15 tokens each, the second of its peer, at this worker."""
    with served.only(pid):
        return await ask(served.url("root"), "delegate hello")


async def test_a_call_ends_by_what_calls_at_another_worker_have_used(tmp_path: Path) -> None:
    async with fleet(tmp_path, **a_day(70)) as served:
        one, other = sorted(served.pids)
        whole = await answer_at(served, one)
        ended = await answer_at(served, other)
        refused = await answer_at(served, one)
        assert len(served.llm.requests) == 3 + 2
        halted = await served.metric("pallas_agent_loop_aborted_total", agent="root", reason="limited")
    assert (whole.is_error, whole.meta["stop_reason"]) == (False, "endTurn")
    assert (ended.is_error, ended.meta["stop_reason"], ended.meta["stopped"]) == (False, "limited", "limited")
    assert (refused.is_error, refused.meta["stop_reason"]) == (True, "limited")
    assert halted == 1
