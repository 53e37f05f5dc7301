"""What each provider is sent of a thread's earlier turns: tool calls, results, signatures, in its own wire format.

That a request fits the API (each call has its result, signatures are in place) is checked of every request that the
scripted providers get: see `provider_requests` and `tool_rounds`.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fast_agent.llm.fastagent_llm import FastAgentLLM
from fast_agent.types import PromptMessageExtended
from sqlalchemy import update

from pallas_gateway.shared.database.tables import threads
from tests.support.provider_gateways import Served
from tests.support.provider_matrix import BEDROCK, CHAT, DEEPSEEK, in_shared_gateways
from tests.support.providers.tool_rounds import conversation_of, signature_of
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say
from tests.support.stored_threads import threads_of
from tests.support.threads_api import chat, http_of, messages

pytestmark = pytest.mark.asyncio(loop_scope="module")
THOUGHT = "I have to add."
UNSIGNED = (*CHAT, DEEPSEEK, BEDROCK)
"""Providers that sign nothing, and Bedrock, whose thinking fast-agent does not keep."""
CONTINUES = "previous_response_id"
"""In a request by WebSocket, which sends only what is new in its call."""


@pytest.fixture(autouse=True)
def _unchanged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that no provider changes messages before the last: it is passed those of the history, not copies."""
    generate, compared = FastAgentLLM.generate, []

    async def noted(self: Any, messages: list[PromptMessageExtended], *more: Any, **options: Any) -> Any:
        before = as_json(messages)
        try:
            return await generate(self, messages, *more, **options)
        finally:
            compared.append((as_json(messages), before))

    def as_json(messages: Sequence[PromptMessageExtended]) -> Sequence[str]:
        return [one.model_dump_json() for one in messages[:-1]]

    monkeypatch.setattr(FastAgentLLM, "generate", noted)
    yield
    assert any(before for _, before in compared)
    assert all(after == before for after, before in compared)


@in_shared_gateways("later turns")
async def test_a_later_turn_begins_with_all_that_the_call_before_has_sent(shared: Served) -> None:
    def script(request: LlmRequest) -> Turn:
        if request.number == 1:
            return call_tools([("tools__add", {"a": 1, "b": 2})], thinking=THOUGHT)
        return say("It is 3." if request.number == 2 else "Because.")

    async with shared.playing(script) as served, http_of(served.gateway) as http:
        thread_id = (await chat(http, "add"))["threadId"]
        await chat(http, "why", threadId=thread_id)
        await chat(http, "sure", threadId=thread_id)

    _, followed, second, third = served.llm.requests
    assert_continues(followed, second, "It is 3.", "why")
    assert_continues(second, third, "Because.", "sure")
    assert second.called == ["tools__add"]
    assert ["3" in text for text in second.tool_results.values()] == [True]
    signature = signature_of(THOUGHT)
    forms = signature, urlsafe_b64encode(signature.encode()).decode()  # Google's library encodes bytes once more
    counts = [sum(json.dumps(one.body).count(form) for form in forms) for one in (followed, second, third)]
    assert counts == ([0] * 3 if served.provider in UNSIGNED else [CONTINUES not in followed.body, 1, 1])


@in_shared_gateways("later turns")
async def test_parallel_tools_of_which_one_failed_keep_their_results(shared: Served) -> None:
    calls = [("tools__echo", {"text": "Ann"}), ("tools__fail", {"message": "no"}), ("tools__echo", {"text": "Bob"})]

    def script(request: LlmRequest) -> Turn:
        return call_tools(calls, text="All.") if request.number == 1 else say("Done.")

    async with shared.playing(script) as served, http_of(served.gateway) as http:
        thread_id = (await chat(http, "all"))["threadId"]
        await chat(http, "and", threadId=thread_id)
        told = await messages(http, thread_id, tools="true")

    _, followed, second = served.llm.requests
    assert_continues(followed, second, "Done.", "and")
    assert second.called == ["tools__echo", "tools__fail", "tools__echo"]
    assert [one["ok"] for one in told if one["role"] == "tool"] == [True, False, True]
    results = "".join(second.tool_results.values())
    assert ("Ann" in results, "Bob" in results) == (True, True)


@in_shared_gateways("later turns")
async def test_a_turn_that_reached_its_limit_is_continued_with_its_results(shared: Served) -> None:
    def script(request: LlmRequest) -> Turn:
        return call_tools([("tools__add", {"a": 1, "b": 2})], thinking=THOUGHT) if request.number == 1 else say("Hm.")

    async with shared.playing(script) as served, http_of(served.gateway) as http:
        first = await chat(http, "add", agent="brief")
        await chat(http, "go on", agent="brief", threadId=first["threadId"])

    second = served.llm.requests[1]
    assert first["stopped"] == "max_iterations"
    assert (second.last_user_text, second.called) == ("go on", ["tools__add"])
    assert ["3" in text for text in second.tool_results.values()] == [True]


@in_shared_gateways("later turns")
async def test_a_result_that_was_cut_is_read_as_far_as_it_is_stored(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threads_of(shared.gateway.gateway)
    monkeypatch.setattr(threads._limits, "step_bytes", 2_000)

    def script(request: LlmRequest) -> Turn:
        return call_tools([("tools__echo", {"text": "é" * 3_000})]) if request.number == 1 else say("Long.")

    async with shared.playing(script) as served, http_of(served.gateway) as http:
        thread_id = (await chat(http, "echo"))["threadId"]
        await chat(http, "and", threadId=thread_id)
        told = await messages(http, thread_id, tools="true")

    [result] = [one for one in told if one["role"] == "tool"]
    [text] = served.llm.requests[2].tool_results.values()
    assert len(result["content"].encode()) <= 2_000
    assert "[cut: " in result["content"]
    assert "[cut: " in text or "[cut: " in json.loads(text)["result"]
    assert "é" * 3_000 not in json.dumps(served.llm.requests[2].body, ensure_ascii=False)


@in_shared_gateways("later turns")
async def test_without_tools_a_thread_with_tools_is_read_as_text(shared: Served) -> None:
    """A provider refuses tool calls in a request that offers no tools."""

    def script(request: LlmRequest) -> Turn:
        return call_tools([("tools__add", {"a": 1, "b": 2})], thinking=THOUGHT) if request.number == 1 else say("3.")

    async with shared.playing(script) as served, http_of(served.gateway) as http:
        thread_id = (await chat(http, "add"))["threadId"]
        await rename_agent(served, thread_id, "bare")
        await chat(http, "why", agent="bare", threadId=thread_id)

    last = served.llm.requests[-1]
    assert (last.called, last.tool_results, last.last_user_text) == ([], {}, "why")
    said = json.dumps(conversation_of(last.body))
    assert ("tools/add" in said, "1" in said, "returned" in said, signature_of(THOUGHT) in said) == (True,) * 3 + (
        False,
    )


async def rename_agent(served: Served, thread_id: str, agent: str) -> None:
    """Give a thread to another agent, as if its own had lost its tools."""
    stored = threads_of(served.gateway.gateway)
    changed = update(threads).where(threads.c.id == thread_id).values(agent=agent)
    await stored.store.database.write(lambda sql: sql.execute(changed))


def assert_continues(before: LlmRequest, after: LlmRequest, answer: str, message: str) -> None:
    """Check that a request begins with the conversation of an earlier one: then a provider's cache of it is used."""
    sent, more = conversation_of(before.body), conversation_of(after.body)
    if CONTINUES not in before.body:
        assert more[: len(sent)] == sent
        more = more[len(sent) :]
    text = json.dumps(more)
    assert (answer in text, message in text) == (True, True)
    assert after.last_user_text == message
