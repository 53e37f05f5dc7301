"""Events joined before they are parsed: fast-agent makes of them what it makes of each by itself."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, override
from uuid import UUID

import httpx2
import pytest
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider.openai.llm_openai import OpenAILLM
from fast_agent.llm.provider_types import Provider
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import APIError, AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk

from pallas_gateway.changes.registry import registry
from pallas_gateway.fast_paths._joined_events import JoinedEvents
from pallas_gateway.fast_paths.openai_texts import LONG_BYTES, Texts
from pallas_gateway.repairs.openai import tool_calls
from pallas_gateway.runtime import preparation
from tests.support.loaded_providers import http_of, make_client
from tests.support.model_values import taken_apart

CLIENT = AsyncOpenAI(api_key="not-a-key")
CALL = {"index": 0, "id": "a", "type": "function", "function": {"name": "search", "arguments": "{"}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def event(delta: Any, *, is_ascii: bool = False, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **more.pop("choice", {})}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}
    return b"data: " + json.dumps(chunk, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass") + b"\n\n"


def text(content: str, **more: Any) -> bytes:
    return event({"content": content}, **more)


TEXTS = st.one_of(
    st.integers(1, 6).map(lambda count: "a" * count),
    st.sampled_from([" ", "", "\n", '"', "\\", '"content": "', "é", "😀", "\ud83d", "\ude00"]),
    st.text("ab", min_size=1, max_size=5),
    st.text(max_size=3),
)
OTHERS = st.sampled_from(
    [
        event({"role": "assistant", "content": ""}),
        event({}),
        event({"content": None}),
        event({"reasoning_content": "hm"}),
        event({"reasoning": "hm", "content": "x"}),
        event({"content": "x", "refusal": "no"}),
        event({"content": "x", "role": "user"}),
        event({"tool_calls": [CALL]}),
        event({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}),
        event({"content": "x"}, choice={"index": 1}),
        event({"content": "x"}, choice={"logprobs": {"content": [], "refusal": None}}),
        event({"content": "x"}, choice={"finish_reason": "length"}),
        event({}, choice={"finish_reason": "stop"}),
        event({}, choice={"finish_reason": "tool_calls"}),
        event({}, choices=[], usage=USAGE),
        text("x", usage=USAGE),
        text("x", id='quoted " \\ and "content"'),
        text("x", choices=[{"index": 0, "delta": {"content": "y"}}, {"index": 1, "delta": {"content": "z"}}]),
        text("x").replace(b'"content": "x"', b'"content": "x", "content": "y"'),
        text("x").replace(b'"content": "x"', b'"content": "x", "c\\u006fntent": "y"'),
        b"data: {\xff\n\n",
        b": a comment\n\n",
    ]
)
EVENTS = st.one_of(
    *[TEXTS.map(text)] * 4,
    *[TEXTS.map(lambda content: text(content, is_ascii=True))] * 2,
    st.builds(lambda content, letters: text(content, obfuscation=letters), TEXTS, st.sampled_from(["", "aB", "c3x9"])),
    TEXTS.map(lambda content: event({"role": "assistant", "content": content, "refusal": None})),
    TEXTS.map(lambda content: event({"content": content, "reasoning": None, "details": []})),
    TEXTS.map(lambda content: text(content, created=2)),
    OTHERS,
)


@pytest.fixture(autouse=True, scope="module")
def _repaired() -> Iterator[None]:
    """fast-agent's reader of streams, which keeps texts that are repeated; what it calls a call without an id."""
    preparation.prepare()
    ModelFactory._load_provider_class(Provider.GENERIC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool_calls, "uuid4", lambda: UUID(int=0))
        yield


class Heard(OpenAILLM):
    """fast-agent's model of one provider; keeps what it tells its listeners."""

    def __init__(self, provider: Provider) -> None:
        super().__init__(provider=provider, model="m")
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.add_stream_listener(lambda chunk: (self.thoughts if chunk.is_reasoning else self.texts).append(chunk.text))


class Pieces(httpx2.AsyncByteStream):
    """A response's body, as it comes in."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def a_stream(pieces: Sequence[bytes], *, joined: bool) -> AsyncStream[ChatCompletionChunk]:
    body: httpx2.AsyncByteStream = Pieces(pieces)
    response = httpx2.Response(
        200,
        stream=JoinedEvents(body, Texts()) if joined else body,
        request=httpx2.Request("POST", "http://llm.invalid/v1"),
    )
    return AsyncStream(cast_to=ChatCompletionChunk, response=response, client=CLIENT)


async def read(pieces: Sequence[bytes], *, joined: bool) -> list[ChatCompletionChunk]:
    return [chunk async for chunk in a_stream(pieces, joined=joined)]


async def outcome(provider: Provider, pieces: Sequence[bytes], *, joined: bool) -> Any:
    """The completion that fast-agent makes of a stream, or its error; and what its listeners heard."""
    llm = Heard(provider)
    stream = a_stream(pieces, joined=joined)
    found: Any
    try:
        completion, reasoning = await llm._process_stream(stream, "m")
    except (
        APIError,
        ValueError,
        RuntimeError,
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
        AssertionError,
    ) as error:
        found = type(error)
    else:
        for one in completion.choices:  # fast-agent does so later: the library joins roles, too
            one.message.role = llm._normalize_role(one.message.role)
        choices = [(taken_apart(one.message), one.finish_reason) for one in completion.choices]
        found = (choices, taken_apart(completion.usage), reasoning)
    return found, "".join(llm.texts), "".join(llm.thoughts)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(EVENTS, st.integers(1, 3)), max_size=8),
    st.lists(st.integers(0, 2000), max_size=2),
    st.sampled_from([Provider.GENERIC, Provider.OPENAI]),
)
def test_fast_agent_makes_the_same_of_joined_events(
    repeated: list[tuple[bytes, int]], cuts: list[int], provider: Provider
) -> None:
    events = [one * count for one, count in repeated]
    whole = b"".join([*events, text("end"), event({}, choice={"finish_reason": "stop"}), b"data: [DONE]\n\n"])
    at = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[begin:end] for begin, end in itertools.pairwise(at)]

    async def both() -> None:
        theirs = await outcome(provider, pieces, joined=False)
        assert await outcome(provider, pieces, joined=True) == theirs

    asyncio.run(both())


def texts_of(chunks: Sequence[ChatCompletionChunk]) -> list[str | None]:
    return [chunk.choices[0].delta.content if chunk.choices else None for chunk in chunks]


FORMS = [
    pytest.param({}, id="as in the specification"),
    pytest.param({"is_ascii": True}, id="with escapes"),
    pytest.param({"obfuscation": "aB3"}, id="with random letters"),
    pytest.param({"usage": None, "choice": {"logprobs": None, "native_finish_reason": None}}, id="with empty fields"),
]


@pytest.mark.parametrize("form", FORMS)
async def test_texts_that_were_read_together_are_one_chunk(form: dict[str, Any]) -> None:
    words = ["Once ", "upon ", "\na ", '"time" ', "é ", "漢字 ", "😀 "]
    read_first = [text("It begins. It goes on for a while, so that others are shorter. ", **form), text("x", **form)]
    together = b"".join(text(word, **form) for word in words)

    assert texts_of(await read([*read_first, together], joined=True))[2:] == ["".join(words)]


@pytest.mark.parametrize("content", ["", None])
async def test_a_word_again_and_again_is_joined(content: str | None) -> None:
    events = [event({"role": "assistant", "content": content}), *[text("w ")] * 800]

    texts = texts_of(await read([b"".join(events)], joined=True))

    assert "".join(one or "" for one in texts) == "w " * 800
    assert len(texts) < 20


@pytest.mark.parametrize("first", ["a", "\\", "\n"])
async def test_a_text_that_begins_as_the_first_may_repeat_it(first: str) -> None:
    words = [first, first + "b", first + "bc"]

    assert texts_of(await read([b"".join(map(text, words))], joined=True)) == words


OTHER = [
    pytest.param(event({"tool_calls": [CALL]}), id="a tool call"),
    pytest.param(event({"reasoning_content": "hm"}), id="reasoning"),
    pytest.param(event({"content": "x"}, choice={"logprobs": {"content": [], "refusal": None}}), id="probabilities"),
    pytest.param(event({}, choices=[], usage=USAGE), id="usage"),
]


@pytest.mark.parametrize("other", OTHER)
async def test_what_is_more_than_text_stays_where_it_was(other: bytes) -> None:
    pieces = [text("Once upon a time "), b"".join([text("a"), text("b"), other, text("c"), text("d")])]

    chunks = await read(pieces, joined=True)

    assert [chunk.model_dump() for chunk in await read([other], joined=False)] == [chunks[2].model_dump()]
    assert [texts_of(chunks)[at] for at in (0, 1, 3)] == ["Once upon a time ", "ab", "cd"]


STORY = ["Once upon a time ", "there ", "was ", "one."]
WHOLE = b"".join(map(text, STORY))
ROLES = b"".join(event({"role": "assistant", "content": word}) for word in STORY)
READS = [
    pytest.param([ROLES], ["Once upon a time ", "there was one."], id="a role in each"),
    pytest.param([b"".join(map(text, ["Bees", " can", " cou", "nt t"]))], ["Bees", " can count t"], id="of one length"),
    pytest.param([WHOLE[:-10], WHOLE[-10:]], ["Once upon a time ", "there was ", "one."], id="an event in two reads"),
    pytest.param([text(word) for word in STORY], STORY, id="each read alone"),
]


@pytest.mark.parametrize(("reads", "texts"), READS)
async def test_texts_that_are_read_together_are_joined(reads: list[bytes], texts: list[str]) -> None:
    assert texts_of(await read(reads, joined=True)) == texts


@pytest.mark.parametrize("data", [b"data: {}\r\n\r\n", b"data: " + b"x" * LONG_BYTES])
def test_an_answer_in_another_form_is_passed_on_as_it_is(data: bytes) -> None:
    texts, events = Texts(), [text("Once upon a time ") + b"data: {", data, text("a") + text("b")]

    assert b"".join(map(texts.joined, events)) + texts.left() == b"".join(events)


async def test_each_client_joins_the_texts_that_it_receives() -> None:
    client = make_client(Provider.GENERIC)
    body = httpx2.ByteStream(b"".join(map(text, ["Once upon a time ", "a", "b"])))
    headers, request = {"Content-Type": "text/event-stream"}, httpx2.Request("POST", "http://llm.invalid/v1")
    response = httpx2.Response(200, headers=headers, stream=body, request=request)

    for hook in http_of(client).event_hooks["response"]:
        await hook(response)

    assert await response.aread() == text("Once upon a time ") + text("ab")
    await registry().close()
