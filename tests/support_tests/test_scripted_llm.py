"""The scripted model, asked by the real `openai` client, streamed and not."""

import asyncio
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
    Script,
    ScriptedLlm,
    Turn,
    echo,
    fail,
    hang,
    say,
    scripted_llm,
    stream,
)
from tests.support.waiting import Gate


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


async def test_a_failure_is_not_retried_by_the_openai_client() -> None:
    async with scripted_llm([fail(503)]) as llm, openai_client(llm) as client:
        with pytest.raises(openai.InternalServerError):
            await ask(client.with_options(max_retries=3))

    assert len(llm.requests) == 1


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
