"""Requests and chunks handled faster come out as the OpenAI library makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from math import inf
from types import ModuleType
from typing import Annotated, Any

import pytest
from fast_agent.llm.provider.openai import llm_openai
from fast_agent.llm.provider.openai.llm_openai import OpenAILLM
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai._utils import PropertyInfo, async_maybe_transform
from openai.resources.chat.completions import completions
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from typing_extensions import TypedDict

from pallas_gateway.runtime.fast_paths import openai_messages
from pallas_gateway.runtime.fast_paths.openai_messages import (
    PlainMessages,
    has_no_annotations,
    is_plain,
    transforming_plainly,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"])}, optional={"content": JSON}
    ),
    max_size=4,
)
REQUESTS = st.fixed_dictionaries({"messages": MESSAGES}, optional={"tools": st.lists(JSON, max_size=2), "stop": JSON})


class Renamed(TypedDict, total=False):
    max_tokens: Annotated[int, PropertyInfo(alias="maxTokens")]


@settings(max_examples=60)
@given(REQUESTS)
def test_a_request_of_plain_values_is_what_the_library_makes_of_it(request: dict[str, Any]) -> None:
    quick = transforming_plainly(refuse)

    theirs = asyncio.run(async_maybe_transform(request, CompletionCreateParamsStreaming))

    assert asyncio.run(awaited(quick(request, CompletionCreateParamsStreaming))) == theirs


async def test_what_is_not_given_is_left_out_as_the_library_does() -> None:
    request = {"messages": [], "temperature": omit, "stop": None}
    quick = transforming_plainly(refuse)

    assert await quick(request, CompletionCreateParamsStreaming) == {"messages": [], "stop": None}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(ChatCompletionMessage(role="assistant", content="Hi"), id="a model"),
        pytest.param(({"role": "user", "content": "Hi"},), id="a tuple"),
    ],
)
async def test_values_that_are_not_plain_go_to_the_library(value: Any) -> None:
    quick = transforming_plainly(async_maybe_transform)
    request = {"messages": [value] if isinstance(value, ChatCompletionMessage) else value}

    assert not is_plain(request)
    theirs = await async_maybe_transform(request, CompletionCreateParamsStreaming)
    assert await quick(request, CompletionCreateParamsStreaming) == theirs


async def test_a_type_that_renames_goes_to_the_library() -> None:
    quick = transforming_plainly(async_maybe_transform)

    assert not has_no_annotations(Renamed)
    assert await quick({"max_tokens": 5}, Renamed) == {"maxTokens": 5}


@pytest.mark.parametrize("expected", [CompletionCreateParamsStreaming, ResponseCreateParamsStreaming])
def test_no_request_that_agents_make_renames_anything(expected: Any) -> None:
    assert has_no_annotations(expected)


def test_replacing_twice_is_replacing_once() -> None:
    openai_messages.install(llm_openai)
    once = completions.async_maybe_transform, OpenAILLM._normalize_chat_completion_files  # type: ignore[attr-defined]
    openai_messages.install(llm_openai)
    again = completions.async_maybe_transform, OpenAILLM._normalize_chat_completion_files  # type: ignore[attr-defined]

    assert again == once


async def test_fast_agent_prints_no_messages_and_the_library_gets_them() -> None:
    class Llm:
        async def _normalize_chat_completion_files(self, messages: list[Any]) -> list[Any]:
            return messages

    provider = ModuleType("provider")
    provider.Llm = Llm  # type: ignore[attr-defined]
    openai_messages.install(provider)
    sent = [{"role": "user", "content": [{"type": "text", "text": "Hi" * 1000}]}]

    messages = await Llm()._normalize_chat_completion_files(sent)

    assert f"{messages}" == "[1 messages]"
    assert messages == sent
    request = {"model": "m", "messages": messages, "temperature": 0.5}
    ready = await transforming_plainly(refuse)(request, CompletionCreateParamsStreaming)
    assert ready == request
    assert type(ready["messages"]) is PlainMessages


async def test_a_number_that_is_not_json_is_left_to_the_library() -> None:
    request = {"model": "m", "messages": [], "temperature": inf}

    with pytest.raises(AssertionError, match="the library was asked"):
        await transforming_plainly(refuse)(request, CompletionCreateParamsStreaming)


async def refuse(data: Any, expected_type: Any) -> Any:
    raise AssertionError(f"the library was asked about {data}")


async def awaited(value: Awaitable[Any]) -> Any:
    return await value
