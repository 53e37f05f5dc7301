"""A chat completion that is accumulated in runs is the one that OpenAI's library accumulates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fast_agent.llm.provider.openai import llm_openai
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._models import construct_type
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from pydantic import ValidationError

from pallas_gateway.runtime.fast_paths.openai_runs import RunsState, install
from tests.support.model_values import taken_apart

CHUNK = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
CALL = {"index": 0, "id": "a", "type": "function", "function": {"name": "search", "arguments": "{"}}
TEXTS = st.sampled_from(["a", "b", " ", "", "é"])
DELTAS = st.one_of(
    *[TEXTS.map(lambda text: {"content": text})] * 4,
    TEXTS.map(lambda text: {"content": text, "role": None}),
    TEXTS.map(lambda text: {"reasoning_content": text}),
    TEXTS.map(lambda text: {"reasoning": text, "content": None}),
    TEXTS.map(lambda text: {"refusal": text}),
    st.sampled_from(
        [
            {},
            {"role": "assistant"},
            {"role": "assistant", "content": "c"},
            {"content": None},
            {"content": 5},
            {"content": "c", "number": 1},
            {"type": "x"},
            {"index": "1"},
            {"tool_calls": [CALL]},
            {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
            {"tool_calls": [{**CALL, "index": 1}]},
            {"extra": {"a": "b"}},
        ]
    ),
)
CHOICES = st.one_of(
    *[DELTAS.map(lambda delta: [{"index": 0, "delta": delta, "finish_reason": None}])] * 6,
    DELTAS.map(lambda delta: [{"index": 0, "delta": delta}]),
    DELTAS.map(lambda delta: [{"index": 0, "delta": delta, "finish_reason": None, "more": 1}]),
    DELTAS.map(lambda delta: [{"index": 1, "delta": delta}]),
    DELTAS.map(lambda delta: [{"index": 0, "delta": delta}, {"index": 1, "delta": delta}]),
    st.sampled_from(
        [
            [],
            [{"index": 0, "delta": {}, "finish_reason": "stop"}],
            [{"index": 0, "delta": {"content": "z"}, "finish_reason": "length"}],
            [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}],
            [{"index": 0, "delta": {"content": "l"}, "logprobs": {"content": [], "refusal": None}}],
        ]
    ),
)
CHUNKS = st.builds(
    lambda choices, more: {**CHUNK, **more, "choices": choices},
    CHOICES,
    st.sampled_from([{}, {}, {}, {"usage": None}, {"usage": USAGE}, {"system_fingerprint": "f"}, {"more": 1}]),
)


def read(chunk: dict[str, Any]) -> Any:
    try:
        return ChatCompletionChunk.model_validate(chunk)
    except ValidationError:
        return construct_type(type_=ChatCompletionChunk, value=chunk)


def outcome(state: Any, chunks: list[dict[str, Any]]) -> Any:
    """The number of chunks until an error, and both results that fast-agent asks for."""
    found: list[Any] = []
    try:
        for chunk in chunks:
            state.handle_chunk(read(chunk))
        found.append(taken_apart(state.current_completion_snapshot))
        found.append(taken_apart(state.get_final_completion()))
    except Exception as error:  # noqa: BLE001  whatever the library raises
        found.append(type(error))
    return found


@settings(max_examples=100)
@given(st.lists(CHUNKS, max_size=8))
def test_a_completion_is_what_the_library_accumulates(chunks: list[dict[str, Any]]) -> None:
    assert outcome(RunsState(), chunks) == outcome(ChatCompletionStreamState(), chunks)


@pytest.mark.parametrize("name", ["content", "reasoning_content"])
def test_a_long_text_is_accumulated_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulated: list[Any] = []
    original = ChatCompletionStreamState.handle_chunk

    def counted(self: Any, chunk: Any) -> Any:
        accumulated.append(chunk)
        return original(self, chunk)

    monkeypatch.setattr(ChatCompletionStreamState, "handle_chunk", counted)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({name: "x"} for _ in range(800))]
    state = RunsState()
    for delta in deltas:
        state.handle_chunk(read({**CHUNK, "choices": [{"index": 0, "delta": delta}]}))

    message = state.get_final_completion().choices[0].message
    assert getattr(message, name) == "x" * 800
    assert len(accumulated) == 2


def test_only_the_librarys_own_state_is_replaced() -> None:
    other = object()
    modules: list[Any] = [
        SimpleNamespace(ChatCompletionStreamState=ChatCompletionStreamState),
        SimpleNamespace(ChatCompletionStreamState=other),
        SimpleNamespace(),
    ]

    for module in (*modules, *modules):
        install(module)

    assert modules[0].ChatCompletionStreamState is RunsState
    assert modules[1].ChatCompletionStreamState is other
    assert vars(modules[2]) == {}


def test_a_chunk_is_known_by_its_class_and_others_by_their_attributes() -> None:
    install(llm_openai)
    install(llm_openai)
    chunk = ChatCompletionChunk.model_validate({**CHUNK, "choices": [], "usage": USAGE})

    holders: Any = llm_openai._OpenAIUsageHolder
    assert holders[0] is ChatCompletionChunk
    for holder in (chunk, SimpleNamespace(usage=USAGE), SimpleNamespace(choices=[])):
        found = llm_openai._openai_usage(holder)
        assert (found.total_tokens if found else None) == (3 if hasattr(holder, "usage") else None)
    assert llm_openai._openai_usage(object()) is None
