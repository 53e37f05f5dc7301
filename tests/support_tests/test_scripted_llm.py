"""The scripted model, asked by the real `openai` client, streamed and not."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion

from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.scripted_llm import (
    LlmRequest,
    Script,
    ScriptedLlm,
    Turn,
    Usage,
    broken_stream,
    call_tools,
    cut,
    echo,
    fail,
    garbage,
    hang,
    say,
    scripted_llm,
    stream,
)
from tests.support.waiting import Gate

TOOLS: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@asynccontextmanager
async def llm_and_client(
    script: Script | list[Turn] = echo,
) -> AsyncGenerator[tuple[ScriptedLlm, AsyncOpenAI]]:
    async with scripted_llm(script) as llm, openai_client(llm) as client:
        yield llm, client


def openai_client(llm: ScriptedLlm) -> AsyncOpenAI:
    http = httpx2.AsyncClient(trust_env=False)
    return AsyncOpenAI(api_key="key-of-tests", base_url=llm.base_url, max_retries=0, http_client=http)


async def ask(client: AsyncOpenAI, text: str = "hi", **options: Any) -> ChatCompletion:
    messages: list[Any] = [{"role": "user", "content": text}]
    answer: ChatCompletion = await client.chat.completions.create(model="test-model", messages=messages, **options)
    return answer


async def ask_streamed(client: AsyncOpenAI, text: str = "hi", **options: Any) -> ChatCompletion:
    """The answer put together by the client's own accumulator."""
    state = ChatCompletionStreamState()
    chunks = await client.chat.completions.create(
        model="test-model",
        messages=[{"role": "user", "content": text}],
        stream=True,
        stream_options={"include_usage": True},
        **options,
    )
    async for chunk in chunks:
        state.handle_chunk(chunk)
    return state.get_final_completion()


both_ways = pytest.mark.parametrize("asked", [ask, ask_streamed])


@both_ways
async def test_says_its_text_and_its_usage(asked: Any) -> None:
    async with llm_and_client([say("hello", usage=Usage(11, 7, cached=3, reasoning=2))]) as (_, client):
        answer = await asked(client)

    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == 18
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert answer.usage.completion_tokens_details.reasoning_tokens == 2


@both_ways
async def test_reports_no_usage_when_told_so(asked: Any) -> None:
    async with llm_and_client([say("hello", usage=None)]) as (_, client):
        assert (await asked(client)).usage is None


async def test_finish_reason_is_the_scripts() -> None:
    async with llm_and_client(lambda _: say("hel", finish_reason="length")) as (_, client):
        assert (await ask(client)).choices[0].finish_reason == "length"
        with pytest.raises(openai.LengthFinishReasonError):
            await ask_streamed(client)


@both_ways
async def test_calls_several_tools_at_once(asked: Any) -> None:
    turn = call_tools([("add", {"a": 1, "b": 2}), ("add", {}), ("echo", "{broken")], text="let me see")
    async with llm_and_client([turn]) as (_, client):
        message = (await asked(client)).choices[0].message

    assert message.content == "let me see"
    assert [call.function.name for call in message.tool_calls] == ["add", "add", "echo"]
    assert [call.function.arguments for call in message.tool_calls] == ['{"a": 1, "b": 2}', "{}", "{broken"]
    assert [call.id for call in message.tool_calls] == ["call_1_1", "call_1_2", "call_1_3"]


async def test_turns_are_played_in_order_and_requests_recorded() -> None:
    async with llm_and_client([call_tools([("add", {"a": 1})]), say("done")]) as (llm, client):
        first = (await ask(client, "add", tools=TOOLS)).choices[0].message
        assert first.tool_calls is not None
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "3"}
        history: list[Any] = [{"role": "user", "content": "add"}, first.model_dump(exclude_none=True), result]
        await client.chat.completions.create(model="test-model", messages=history)

    assert [request.number for request in llm.requests] == [1, 2]
    assert llm.requests[0].tools == ["add"]
    assert llm.requests[0].model == "test-model"
    assert llm.requests[0].bearer == "key-of-tests"
    assert not llm.requests[0].is_streamed
    assert llm.requests[1].tool_results == {"call_1_1": "3"}


async def test_script_function_sees_the_request() -> None:
    def script(request: LlmRequest) -> Turn:
        return say(f"{request.number}: {request.last_user_text}")

    async with llm_and_client(script) as (_, client):
        assert (await ask(client, "a")).choices[0].message.content == "1: a"
        assert (await ask_streamed(client, "b")).choices[0].message.content == "2: b"


async def test_echo_tells_every_user_text_of_the_conversation() -> None:
    async with llm_and_client() as (_, client):
        answer = await client.chat.completions.create(
            model="test-model",
            messages=[
                {"role": "system", "content": "unheard"},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "unheard"},
                {"role": "user", "content": [{"type": "text", "text": "two"}]},
            ],
        )

    assert answer.choices[0].message.content == "heard: one | two"


async def test_lists_its_models_and_knows_no_other() -> None:
    async with scripted_llm(models=["a", "b"]) as llm, openai_client(llm) as client:
        assert [model.id for model in (await client.models.list()).data] == ["a", "b"]
        assert (await client.models.retrieve("b")).id == "b"
        with pytest.raises(openai.NotFoundError, match="'c' does not exist"):
            await client.models.retrieve("c")

    assert len(llm.model_list_headers) == 3


@both_ways
async def test_fails_with_the_status_and_body_it_is_told(asked: Any) -> None:
    async with llm_and_client([fail(429), fail(500, {"error": {"message": "ouch"}})]) as (_, client):
        with pytest.raises(openai.RateLimitError, match="scripted failure 429"):
            await asked(client)
        with pytest.raises(openai.InternalServerError, match="ouch"):
            await asked(client)


async def test_a_failure_is_not_retried_by_the_openai_client() -> None:
    async with scripted_llm([fail(503)]) as llm, openai_client(llm) as client:
        with pytest.raises(openai.InternalServerError):
            await ask(client.with_options(max_retries=3))

    assert len(llm.requests) == 1


async def test_garbage_is_no_completion() -> None:
    async with llm_and_client([garbage(), broken_stream()]) as (_, client):
        assert not isinstance(await ask(client), ChatCompletion)
        with pytest.raises(json.JSONDecodeError):
            await ask_streamed(client)


async def test_a_cut_stream_breaks_off_after_its_pieces() -> None:
    async with llm_and_client([cut(["once ", "upon"])]) as (_, client):
        chunks = aiter(await client.chat.completions.create(model="m", messages=[], stream=True))
        pieces = [(await anext(chunks)).choices[0].delta.content for _ in range(2)]
        with pytest.raises(openai.APIConnectionError):
            await anext(chunks)

    assert pieces == ["once ", "upon"]


async def test_stream_waits_at_its_gate_between_pieces() -> None:
    gate, pieces = Gate(), list[str]()
    async with llm_and_client([stream(["a", "b", "c"], gate)]) as (_, client):
        async for chunk in await client.chat.completions.create(model="m", messages=[], stream=True):
            if text := chunk.choices[0].delta.content:
                pieces.append(text)
                await gate.wait_for_entered(min(len(pieces), 2))
                assert gate.passed == [f"piece {n}" for n in range(2, len(pieces) + 1)]
                gate.let_through(1)

    assert pieces == ["a", "b", "c"]


async def test_two_hanging_requests_are_in_flight_at_once() -> None:
    gate = Gate()
    async with llm_and_client(lambda _: hang(gate, say("at last"))) as (llm, client):
        calls = [asyncio.create_task(ask(client, name)) for name in ("a", "b")]
        await gate.wait_for_entered(2)
        assert llm.in_flight == 2

        gate.open()
        answers = await asyncio.gather(*calls)
        await llm.wait_until_idle()

    assert [answer.choices[0].message.content for answer in answers] == ["at last", "at last"]
    assert llm.most_in_flight == 2
    assert llm.aborted == []


async def test_a_client_that_leaves_a_hanging_request_is_noticed() -> None:
    gate = Gate()
    async with llm_and_client([hang(gate)]) as (llm, client):
        call = asyncio.create_task(ask(client, "leaving"))
        await gate.wait_for_entered()
        call.cancel()
        await llm.wait_for_aborted()
        await llm.wait_until_idle()

    assert [request.last_user_text for request in llm.aborted] == ["leaving"]
    assert gate.cancelled == ["leaving"]


async def test_a_client_that_leaves_mid_stream_is_noticed() -> None:
    gate = Gate()
    async with llm_and_client([stream(["a", "b"], gate)]) as (llm, client):
        chunks = await client.chat.completions.create(model="m", messages=[], stream=True)
        await anext(aiter(chunks))
        await chunks.close()
        await llm.wait_for_aborted()

    assert gate.cancelled == ["piece 2"]


async def test_one_request_too_many_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="request 2 is one more than the 1 scripted"):  # noqa: PT012
        async with llm_and_client([say("only")]) as (_, client):
            await ask(client)
            with pytest.raises(openai.InternalServerError):
                await ask(client)


async def test_an_unknown_path_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="POST /v1/responses"):  # noqa: PT012
        async with llm_and_client() as (_, client):
            with pytest.raises(openai.NotFoundError):
                await client.responses.create(model="m", input="hi")


async def test_waiting_for_requests_is_bounded() -> None:
    async with llm_and_client() as (llm, _):
        with pytest.raises(AssertionError, match="1 LLM requests"):
            await llm.wait_for_requests(1, 0.01)


async def test_model_leaves_nothing_behind() -> None:
    before = snapshot()
    async with llm_and_client() as (_, client):
        await ask(client)
        await ask_streamed(client)

    await assert_nothing_left(before)
