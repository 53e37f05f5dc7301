"""Budgets of a call end it between two LLM turns, with a partial answer, and nested calls count for those above."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.calling import ask
from tests.support.gateway import Agent, until_idle
from tests.support.scripted_llm import Usage, call_tools, hang, say, stream
from tests.support.waiting import Gate
from tests.support.watching import calling, speaker, stage, turns_so_far

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripted_llm import LlmRequest, Turn
    from tests.support.watching import Stage

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


# --- one agent -------------------------------------------------------------------------------------------------------


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
    async with stage(tmp_path, script, agents, gateway={"prices": prices}) as staged:  # type: ignore[arg-type]
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


async def test_a_call_that_is_cancelled_between_two_turns_has_used_its_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    caplog.set_level(logging.INFO, "pallas.calls")
    async with stage(tmp_path, busy, solo(max_tokens_per_call=150)) as staged:

        @staged.tools.server.tool
        async def wait() -> str:
            await gate.enter("wait")
            return "late"

        staged.llm.script = lambda _: call_tools([("tools__wait", {})], usage=TURN)
        async with calling(staged.url("solo")):
            await gate.wait_for_entered(1)
        await until_idle(staged.served)
        gate.open()
        assert len(staged.llm.requests) == 1
        assert staged.served.metric("pallas_llm_tokens_total", agent="solo", model="test-model", kind="input") == 80
    [line] = [record.__dict__ for record in caplog.records if record.getMessage() == "call ended"]
    assert (line["reason"], line["tokens"]["input"], line["tokens"]["output"]) == ("cancelled", 80, 20)


# --- usage that is not sent ------------------------------------------------------------------------------------------


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


async def test_a_turn_that_is_cut_off_counts_what_it_has_begun_to_send(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    caplog.set_level(logging.INFO, "pallas.calls")
    async with stage(tmp_path, lambda _: stream(["x" * 400, "more"], gate), solo()) as staged:
        async with calling(staged.url("solo"), "y" * 4_000):
            await gate.wait_for_entered(1)
        await until_idle(staged.served)
        gate.open()
    [line] = [record.__dict__ for record in caplog.records if record.getMessage() == "call ended"]
    assert line["tokens"]["estimated"] is True
    assert line["tokens"]["output"] == 100
    assert line["tokens"]["input"] >= 1_000


async def test_a_turn_that_sends_nothing_uses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    caplog.set_level(logging.INFO, "pallas.calls")
    async with stage(tmp_path, lambda _: hang(gate), solo()) as staged:
        async with calling(staged.url("solo")):
            await gate.wait_for_entered(1)
        await until_idle(staged.served)
        gate.open()
    [line] = [record.__dict__ for record in caplog.records if record.getMessage() == "call ended"]
    assert line["tokens"] == {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0, "reasoning": 0}


# --- workflows -------------------------------------------------------------------------------------------------------

MODULE = """
from fast_agent import FastAgent

fast = FastAgent("flow", parse_cli_args=False)


@fast.agent(name="scout", instruction="You are scout.", servers=["tools"])
async def scout() -> None: ...


@fast.agent(name="guide", instruction="You are guide.", servers=["tools"])
async def guide() -> None: ...


@fast.agent(name="editor", instruction="You are editor.")
async def editor() -> None: ...


@fast.WORKFLOW
async def flow() -> None: ...
"""
WORKFLOWS = {
    "chain": 'chain(name="flow", sequence=["scout", "guide"], default=True)',
    "parallel": 'parallel(name="flow", fan_out=["scout", "guide"], fan_in="editor", default=True)',
    "router": 'router(name="flow", agents=["scout", "guide"], default=True)',
    "agents as tools": ('agent(name="flow", instruction="You are flow.", agents=["scout", "guide"], default=True)'),
    "evaluator": (
        'evaluator_optimizer(name="flow", generator="scout", evaluator="editor", max_refinements=5, default=True)'
    ),
    "planner": 'iterative_planner(name="flow", agents=["scout", "guide"], plan_iterations=4, default=True)',
}


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
    """The answer of an agent that chooses others."""
    if "confidence" in asked:
        return {"agent": "scout", "confidence": "high", "reasoning": "it knows"}
    if "is_complete" in asked:
        return {"description": "go on", "tasks": [{"description": "look", "agent": "scout"}], "is_complete": False}
    return "said"


@pytest.mark.parametrize(
    ("name", "most"), [(name, most) for name in WORKFLOWS for most in (1, 2, 3) if (name, most) != ("router", 3)]
)
async def test_no_agent_of_a_workflow_has_a_turn_after_the_budget(name: str, most: int, tmp_path: Path) -> None:
    source = MODULE.replace("WORKFLOW", WORKFLOWS[name])
    agents = {"flow": Agent(["tools"], source=source, settings={"max_tokens_per_call": 100 * most})}
    async with stage(tmp_path, workflow_script, agents) as staged:
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
