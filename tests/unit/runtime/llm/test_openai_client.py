"""Requests made and answers read in short are those of the OpenAI library."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import APIConnectionError, APIError, APITimeoutError, AsyncOpenAI, AsyncStream
from openai._models import construct_type
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pallas_gateway.runtime.fast_paths import openai_chunks
from pallas_gateway.runtime.fast_paths.openai_chunks import ChunkStream, accelerate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

URL = "http://llm.invalid/v1"
CLIENT = accelerate(AsyncOpenAI)(api_key="not-a-key")
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
EVENTS = st.one_of(
    st.sampled_from(
        [
            b"data: [DONE]",
            b"data:[DONE] and more",
            b"data: " + json.dumps({"error": {"message": "no"}}).encode(),
            b"data: " + json.dumps({**CHUNK, "error": {"message": "too late"}}).encode(),
            b"data: " + json.dumps({**CHUNK, "error": None}).encode(),
            b"data: " + json.dumps({**CHUNK, "created": "now"}).encode(),
            b"data: not JSON",
            b"data: \xff",
            b"data:",
            b'data: {"id": "split",\ndata: "choices": []}',
            b": a comment",
            b"event: thread.created\ndata: {}",
            b"event: error\ndata: {}",
            b"id: 7",
            b"retry: 5\n: x\nunknown",
            b"",
        ]
    ),
    st.text(max_size=4).map(
        lambda text: b"data: " + json.dumps({**CHUNK, "id": text}, ensure_ascii=False).encode("utf-8", "replace")
    ),
    st.text(max_size=4).map(lambda text: b"data:" + json.dumps({**CHUNK, "model": text}).encode()),
)
ENDS = st.sampled_from([b"\n\n"] * 5 + [b"\r\n\r\n", b"\r\r", b"\n", b"\n\n\n"])


class Pieces(httpx2.AsyncByteStream):
    """A response's body, as it comes in; then `failure`, if any."""

    def __init__(self, pieces: Sequence[bytes], failure: Exception | None = None) -> None:
        self.pieces = pieces
        self.failure = failure
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.failure is not None:
            raise self.failure

    async def aclose(self) -> None:
        self.is_closed = True


def a_response(body: Pieces) -> httpx2.Response:
    return httpx2.Response(200, stream=body, request=httpx2.Request("POST", URL))


async def read(stream_class: Any, body: Pieces) -> tuple[list[Any], str | None]:
    """The chunks that a stream yields, and what it ends with."""
    response = a_response(body)
    chunks: list[Any] = []
    failure = None
    stream = stream_class(cast_to=ChatCompletionChunk, response=response, client=CLIENT)
    try:
        async for chunk in stream:
            chunks.append(chunk)  # noqa: PERF401  those before a failure count
    except (APIError, ValueError) as error:
        failure = type(error).__name__
    assert body.is_closed
    return [(type(chunk), chunk.model_dump(warnings=False), chunk.model_fields_set) for chunk in chunks], failure


@settings(max_examples=100)
@given(st.lists(st.tuples(EVENTS, ENDS), max_size=6), st.lists(st.integers(0, 400), max_size=6))
def test_a_streamed_answer_is_what_the_library_reads(events: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    whole = b"".join(event + end for event, end in events)
    at = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[begin:end] for begin, end in itertools.pairwise(at)]

    async def both() -> None:
        theirs = await read(AsyncStream, Pieces(pieces))
        assert await read(ChunkStream, Pieces(pieces)) == theirs

    asyncio.run(both())


async def test_a_piece_that_does_not_end_is_left_to_the_library() -> None:
    event = b"data: " + json.dumps(CHUNK).encode() + b" " * openai_chunks.LONG_BYTES + b"\n\n"

    chunks, failure = await read(ChunkStream, Pieces([event[:8], event[8:-2], event[-2:], event]))

    assert (len(chunks), failure) == (2, None)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (httpx2.ReadTimeout("slow"), APITimeoutError),
        (httpx2.ReadError("gone"), APIConnectionError),
        (httpx2.RemoteProtocolError("cut"), APIConnectionError),
    ],
)
async def test_a_stream_that_breaks_says_so_as_the_library_does(failure: Exception, said: type[Exception]) -> None:
    event = b"data: " + json.dumps(CHUNK).encode() + b"\n\n"

    ours = await read(ChunkStream, Pieces([event], failure))

    assert ours == await read(AsyncStream, Pieces([event], failure))
    assert len(ours[0]) == 1
    assert ours[1] == said.__name__


@pytest.mark.parametrize("changed", CHANGES)
async def test_a_chunk_is_what_the_library_makes_of_it(changed: dict[str, Any]) -> None:
    event = b"data: " + json.dumps({**CHUNK, **changed}).encode() + b"\n\n"

    ours, _ = await read(ChunkStream, Pieces([event, b"data: [DONE]\n\n"]))

    theirs: Any = construct_type(type_=ChatCompletionChunk, value={**CHUNK, **changed})
    assert ours[0][:2] == (ChatCompletionChunk, theirs.model_dump(warnings=False))


def a_client(client_class: Any = AsyncOpenAI, **more: Any) -> Any:
    settings = {"api_key": "key-1", "base_url": URL, "default_headers": {"X-Team": "a"}, **more}
    return accelerate(client_class)(**settings)


async def test_streams_of_chunks_are_read_from_their_bytes_and_all_else_by_the_library() -> None:
    body = b"data: " + json.dumps(CHUNK).encode() + b"\n\ndata: [DONE]\n\n"
    whole = {**CHUNK, "object": "chat.completion", "choices": []}

    def answer(request: httpx2.Request) -> httpx2.Response:
        is_stream = json.loads(request.content).get("stream", False)
        return httpx2.Response(200, content=body) if is_stream else httpx2.Response(200, json=whole)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        client = a_client(http_client=http)
        create = client.chat.completions.create

        stream = await create(model="m", messages=[], stream=True)
        raw = await client.chat.completions.with_raw_response.create(model="m", messages=[], stream=True)
        complete = await create(model="m", messages=[])

        assert isinstance(stream, ChunkStream)
        assert [chunk.id async for chunk in stream] == ["chunk-1"]
        assert raw.http_response.status_code == 200
        assert type(complete) is ChatCompletion
