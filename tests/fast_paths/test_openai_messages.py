"""Requests and chunks handled faster come out as the OpenAI library makes them."""

import asyncio
from collections.abc import Awaitable
from importlib import import_module
from math import inf
from typing import Annotated, Any

import pytest
from fast_agent.llm.provider_types import Provider
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai._utils import PropertyInfo, async_maybe_transform
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from typing_extensions import TypedDict

from pallas_gateway.fast_paths._streamed_bodies import PlainMessages
from pallas_gateway.fast_paths.openai_messages import changed, has_no_annotations, is_plain, unprinted
from tests.support.loaded_providers import load

RESOURCES = ("chat.completions.completions", "responses.responses")
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


class Plain(TypedDict, total=False):
    model: str


class Renamed(TypedDict, total=False):
    max_tokens: Annotated[int, PropertyInfo(alias="maxTokens")]


@settings(max_examples=60)
@given(REQUESTS)
def test_a_request_of_plain_values_is_what_the_library_makes_of_it(request: dict[str, Any]) -> None:
    quick = changed(refuse, None)

    theirs = asyncio.run(async_maybe_transform(request, CompletionCreateParamsStreaming))

    assert asyncio.run(awaited(quick(request, CompletionCreateParamsStreaming))) == theirs


async def test_what_is_not_given_is_left_out_as_the_library_does() -> None:
    request = {"messages": [], "temperature": omit, "stop": None}
    quick = changed(refuse, None)

    assert await quick(request, CompletionCreateParamsStreaming) == {"messages": [], "stop": None}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(ChatCompletionMessage(role="assistant", content="Hi"), id="a model"),
        pytest.param(({"role": "user", "content": "Hi"},), id="a tuple"),
    ],
)
async def test_values_that_are_not_plain_go_to_the_library(value: Any) -> None:
    quick = changed(async_maybe_transform, None)
    request = {"messages": [value] if isinstance(value, ChatCompletionMessage) else value}

    assert not is_plain(request)
    theirs = await async_maybe_transform(request, CompletionCreateParamsStreaming)
    assert await quick(request, CompletionCreateParamsStreaming) == theirs


async def test_a_type_that_renames_goes_to_the_library() -> None:
    quick = changed(async_maybe_transform, None)

    assert not has_no_annotations(Renamed)
    assert await quick({"max_tokens": 5}, Renamed) == {"maxTokens": 5}


@pytest.mark.parametrize("expected", [CompletionCreateParamsStreaming, ResponseCreateParamsStreaming])
def test_no_request_that_agents_make_renames_anything(expected: Any) -> None:
    assert has_no_annotations(expected)


@pytest.mark.parametrize("provider", [Provider.OPENAI, Provider.RESPONSES])
async def test_a_plain_request_goes_to_the_api_as_it_is(provider: Provider) -> None:
    load(provider)
    resources: Any = [import_module(f"openai.resources.{name}") for name in RESOURCES]
    request = {"model": "m", "input" if provider is Provider.RESPONSES else "messages": [{"role": "user"}]}

    sent = await resources[provider is Provider.RESPONSES].async_maybe_transform(request, Plain)

    assert sent == request
    assert provider is Provider.RESPONSES or type(sent["messages"]) is PlainMessages
    assert resources[provider is Provider.RESPONSES].async_maybe_transform.__wrapped__ is async_maybe_transform


async def test_fast_agent_prints_no_messages_and_the_library_gets_them() -> None:
    class Llm:
        async def _normalize_chat_completion_files(self, messages: list[Any]) -> list[Any]:
            return messages

    normalize: Any = unprinted(Llm._normalize_chat_completion_files, None)
    sent = [{"role": "user", "content": [{"type": "text", "text": "Hi" * 1000}]}]

    messages = await normalize(Llm(), sent)

    assert f"{messages}" == "[1 messages]"
    assert messages == sent
    request = {"model": "m", "messages": messages, "temperature": 0.5}
    ready = await changed(refuse, None)(request, CompletionCreateParamsStreaming)
    assert ready == request
    assert type(ready["messages"]) is PlainMessages


@pytest.mark.parametrize(("count", "ran"), [(1, False), (1000, True)])
async def test_other_calls_run_after_fast_agent_has_made_many_messages(count: int, ran: bool) -> None:
    async def normalized(messages: list[Any]) -> list[Any]:
        return messages

    async def run() -> None:
        return

    other = asyncio.create_task(run())
    await unprinted(normalized, None)([{"role": "user"}] * count)

    assert other.done() is ran
    await other


async def test_a_number_that_is_not_json_is_left_to_the_library() -> None:
    request = {"model": "m", "messages": [], "temperature": inf}

    with pytest.raises(AssertionError, match="the library was asked"):
        await changed(refuse, None)(request, CompletionCreateParamsStreaming)


async def refuse(data: Any, expected_type: Any) -> Any:
    raise AssertionError(f"the library was asked about {data}")


async def awaited(value: Awaitable[Any]) -> Any:
    return await value
