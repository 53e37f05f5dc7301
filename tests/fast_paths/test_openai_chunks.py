"""Chunks that are validated are those that the OpenAI library makes."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fast_agent.llm.provider.openai import llm_openai
from fast_agent.llm.provider_types import Provider
from openai import AsyncOpenAI
from openai._base_client import BaseClient
from openai._models import construct_type
from openai.types.chat import ChatCompletionChunk

from pallas_gateway.calls.current import AgentCall, LlmTurn, calling
from tests.support.loaded_providers import load

CHUNK: dict[str, Any] = {
    "id": "chunk-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hello"}, "finish_reason": None}],
}
CHANGES = [
    pytest.param({}, id="as in the specification"),
    pytest.param({"usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "cost": 0.5}}, id="more"),
    pytest.param({"choices": [], "provider": {"name": "p"}}, id="no choices"),
    pytest.param({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a"}]}}]}, id="a tool call"),
    pytest.param({"choices": [{"index": 0, "delta": {"content": 5}}]}, id="wrong type"),
    pytest.param({"choices": [{"index": 0, "delta": {}, "finish_reason": "tired"}]}, id="unknown word"),
    pytest.param({"created": None, "id": None}, id="nothing where something should be"),
    pytest.param({"created": 1.0, "choices": [{"index": 0.0, "delta": {"content": "é\u2028"}}]}, id="whole floats"),
    pytest.param({"choices": [{"index": 0, "delta": {}, "usage": {"prompt_tokens": 1}}]}, id="usage in the choice"),
    pytest.param({"choices": ["one"]}, id="choices that are none"),
]


@pytest.fixture
def client() -> Iterator[AsyncOpenAI]:
    load(Provider.OPENAI)
    with calling(AgentCall(turn=LlmTurn())):
        yield AsyncOpenAI(api_key="not-a-key")


@pytest.mark.parametrize("changed", CHANGES)
def test_a_chunk_is_what_the_library_makes_of_it(client: AsyncOpenAI, changed: dict[str, Any]) -> None:
    data: Any = {**CHUNK, **changed}

    ours = client._process_response_data(data=data, cast_to=ChatCompletionChunk, response=httpx2.Response(200))

    theirs: Any = construct_type(type_=ChatCompletionChunk, value=data)
    assert type(ours) is ChatCompletionChunk
    assert ours.model_dump(warnings=False) == theirs.model_dump(warnings=False)


def test_a_chunk_is_not_made_field_by_field(client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(ChatCompletionChunk, "construct", lambda **values: made.append(values))

    client._process_response_data(data=dict(CHUNK), cast_to=ChatCompletionChunk, response=httpx2.Response(200))

    assert made == []


def test_anything_else_is_left_to_the_library(client: AsyncOpenAI) -> None:
    given: Any = {"data": {"a": 1}, "cast_to": dict[str, int], "response": httpx2.Response(200)}

    assert client._process_response_data(**given) == BaseClient._process_response_data(client, **given) == {"a": 1}


def test_usage_is_found_in_chunks_and_in_other_objects() -> None:
    load(Provider.OPENAI)
    holders: Any = llm_openai._OpenAIUsageHolder
    assert holders[0] is ChatCompletionChunk
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    chunk = ChatCompletionChunk.model_validate({**CHUNK, "usage": usage})
    for holder in (chunk, SimpleNamespace(usage=chunk.usage), SimpleNamespace(choices=[])):
        found = llm_openai._openai_usage(holder)
        assert (found.total_tokens if found else None) == (3 if hasattr(holder, "usage") else None)
    assert llm_openai._openai_usage(object()) is None
