"""A text that is repeated at once is dropped."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider.openai.llm_openai import OpenAILLM
from fast_agent.llm.provider_types import Provider
from openai.types.chat import ChatCompletionChunk

from pallas_gateway.runtime import preparation


async def streamed(chunks: list[Any]) -> AsyncIterator[Any]:
    for one in chunks:
        yield one


def chunk(content: str | None, finish_reason: str | None = None, **delta: Any) -> Any:
    choice = {"index": 0, "delta": {"content": content, **delta}, "finish_reason": finish_reason}
    whole = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return ChatCompletionChunk.model_validate(whole)


CALL = {"index": 0, "id": "a", "type": "function", "function": {"name": "search", "arguments": "{}"}}
END = chunk(None, "stop")
ANSWERS = [
    pytest.param([*map(chunk, ["1", "1", "2"]), END], "112", id="digits"),
    pytest.param([*map(chunk, [" on"] * 4), END], " on on on on", id="a word again and again"),
    pytest.param([*map(chunk, ["a", "b", "ab", "c"]), END], "ababc", id="two pieces in one"),
    pytest.param([*map(chunk, ["It", "It is", "It is so"]), END], "It is so", id="the whole text each time"),
    pytest.param([chunk("Done"), chunk("Done", "stop")], "Done", id="the whole text at the end"),
    pytest.param([chunk("So"), chunk("So", tool_calls=[CALL]), chunk(None, "tool_calls")], "So", id="with a tool call"),
    pytest.param([chunk("So"), chunk("So").model_copy(update={"choices": []}), END], "So", id="without choices"),
]


@pytest.mark.parametrize("provider", [Provider.GENERIC, Provider.OPENAI])
@pytest.mark.parametrize(("chunks", "text"), ANSWERS)
async def test_a_text_that_equals_all_before_it_is_kept(chunks: list[Any], text: str, provider: Provider) -> None:
    preparation.prepare()
    ModelFactory._load_provider_class(Provider.GENERIC)
    heard: list[str] = []
    llm = OpenAILLM(provider=provider, model="m")
    llm.add_stream_listener(lambda one: heard.append(one.text))

    completion, _ = await llm._process_stream(streamed(chunks), "m")

    assert "".join(heard) == text
    if provider is Provider.GENERIC:  # of others, the library joins the texts as they are
        assert completion.choices[0].message.content == text
