"""The tokens of a streamed answer are lost."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider.openai import llm_openai
from fast_agent.llm.provider_types import Provider
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pallas_gateway.runtime import preparation

USAGE = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
WITHOUT_TOTAL = {"prompt_tokens": 1000, "completion_tokens": 50}
TEXT = [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}]
END = [{"index": 0, "delta": {}, "finish_reason": "stop"}]


def chunk(choices: list[Any] | None, usage: dict[str, int] | None = None) -> Any:
    """As the OpenAI library makes one of what fits its types only in part."""
    return ChatCompletionChunk.construct(id="1", created=1, model="m", choices=choices, usage=usage)


async def streamed(chunks: list[Any]) -> AsyncIterator[Any]:
    for one in chunks:
        yield one


@pytest.mark.parametrize("provider", [Provider.GENERIC, Provider.OPENAI, Provider.GROQ])
@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([chunk(TEXT), chunk(END), chunk([], USAGE)], id="in a chunk of its own"),
        pytest.param([chunk(TEXT), chunk(END, USAGE), chunk([])], id="with the finish reason"),
        pytest.param([chunk(TEXT, USAGE), chunk(END)], id="in the first chunk"),
        pytest.param([chunk(TEXT), chunk(END), chunk([], WITHOUT_TOTAL)], id="without a total"),
        pytest.param([chunk(TEXT), chunk(END), chunk(None, USAGE)], id="without choices"),
        pytest.param([chunk(TEXT, {**USAGE, "prompt_tokens": 1}), chunk(END, USAGE), chunk(None)], id="the newest"),
    ],
)
async def test_the_usage_of_a_stream_is_counted(chunks: list[Any], provider: Provider) -> None:
    preparation.prepare()
    ModelFactory._load_provider_class(Provider.GENERIC)
    llm = llm_openai.OpenAILLM(provider=provider, model="m")
    completion, _ = await llm._process_stream(streamed(chunks), "m")
    assert completion.choices[0].message.content == "Hi"
    llm._track_openai_response_usage(completion, "m")
    [turn] = llm.usage_accumulator.turns
    assert (turn.prompt.total, turn.completion.total) == (1000, 50)


async def test_the_usage_of_a_whole_answer_needs_no_total() -> None:
    preparation.prepare()
    ModelFactory._load_provider_class(Provider.GENERIC)
    llm = llm_openai.OpenAILLM(provider=Provider.OPENAI, model="m")
    llm._track_openai_response_usage(ChatCompletion.construct(choices=[], usage=WITHOUT_TOTAL), "m")
    assert [turn.prompt.total for turn in llm.usage_accumulator.turns] == [1000]
