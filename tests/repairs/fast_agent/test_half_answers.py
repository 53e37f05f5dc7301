"""Half an answer is a whole one."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, override

import httpx2
import pytest
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk

from pallas_gateway.errors import CallFailedError
from pallas_gateway.repairs.fast_agent.half_answers import WholeStream
from pallas_gateway.runtime import preparation
from tests.support.calling import ask
from tests.support.provider_gateways import Provider as Scripted
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import GENERIC, OPENAI
from tests.support.scripted_llm import Reply, end_early

CHUNK = b'data: {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}\n\n'


class Stream:
    """A stream as fast-agent reads it, with an attribute of its own."""

    name = "the stream itself"

    def __init__(self, *events: Any) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[Any]:
        for event in self._events:
            yield event


def is_end(event: str) -> bool:
    return event == "end"


@pytest.mark.parametrize("events", [("one", "end"), ("end",), ("one", "end", "usage")])
async def test_a_whole_stream_is_passed_on(events: tuple[str, ...]) -> None:
    stream = WholeStream(Stream(*events), is_end)

    assert tuple([event async for event in stream]) == events
    assert stream.name == "the stream itself"


async def test_a_stream_without_its_end_fails_after_its_last_event() -> None:
    seen: list[str] = []

    async def read() -> None:
        async for event in WholeStream(Stream("one", "two"), is_end):
            seen.append(event)  # noqa: PERF401  it fails on the way

    with pytest.raises(CallFailedError, match="ended early") as failure:
        await read()

    assert seen == ["one", "two"]
    assert failure.value.reason == "llm_error"


async def test_an_empty_stream_is_passed_on_where_it_is_asked_for_again() -> None:
    assert [event async for event in WholeStream(Stream(), is_end, may_be_empty=True)] == []


class Unending(Stream):
    """A stream whose server does not end the body after the last event."""

    @override
    async def __aiter__(self) -> AsyncIterator[str]:
        async for event in super().__aiter__():
            yield event
        await asyncio.Event().wait()


async def test_a_stream_ends_after_its_last_event_if_its_server_does_not_end_it() -> None:
    stream = WholeStream(Unending("one", "end", "usage"), is_end, after_last_seconds=0.01)
    assert [event async for event in stream] == ["one", "end", "usage"]


@pytest.mark.parametrize("ping", [None, SimpleNamespace(type="ping"), SimpleNamespace(choices=[])])
async def test_a_stream_that_brings_only_pings_ends_in_time(ping: Any) -> None:
    async def pinging() -> AsyncIterator[Any]:
        while True:
            await asyncio.sleep(0)
            if ping is not None:  # else the library shows none
                yield ping

    with pytest.raises(TimeoutError):
        async for _ in WholeStream(pinging(), is_end, patience=0.01):
            pass


async def test_a_stream_that_has_begun_may_pause() -> None:
    gate = asyncio.Event()

    async def pausing() -> AsyncIterator[str]:
        yield "one"
        await gate.wait()
        yield "end"

    asyncio.get_running_loop().call_later(0.05, gate.set)
    assert [event async for event in WholeStream(pausing(), is_end, patience=0.01)] == ["one", "end"]


async def test_other_tasks_run_between_the_events_of_a_stream() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    async for _ in WholeStream(Stream(*["one"] * 10, "end"), is_end, busy_seconds=-1.0):  # each event takes longer
        pass
    counting.cancel()

    assert turns >= 9  # the first one is spent on its start


async def test_the_providers_own_word_that_this_is_all_is_enough() -> None:
    stream: Any = Stream("one")
    stream.is_done = True

    assert [event async for event in WholeStream(stream, is_end)] == ["one"]


@pytest.mark.parametrize(("body", "is_done"), [(CHUNK + b"data: [DONE]\n\n", True), (CHUNK, False)])
async def test_streams_of_openais_library_say_whether_their_provider_said_so(body: bytes, is_done: bool) -> None:
    preparation.prepare()
    ModelFactory._load_provider_class(Provider.GENERIC)
    response = httpx2.Response(200, content=body, request=httpx2.Request("POST", "http://127.0.0.1"))
    async with AsyncOpenAI(api_key="key") as client:
        stream = AsyncStream[ChatCompletionChunk](cast_to=ChatCompletionChunk, response=response, client=client)
        assert len([chunk async for chunk in stream]) == 1

    assert getattr(stream, "is_done", False) is is_done


def test_a_name_that_the_stream_has_not_is_missing() -> None:
    assert not hasattr(WholeStream(SimpleNamespace(), is_end), "is_done")


async def test_a_stream_without_any_event_is_incomplete_unless_it_is_asked_for_again() -> None:
    with pytest.raises(CallFailedError, match="not a complete answer"):
        assert [event async for event in WholeStream(Stream(), is_end)]
    assert [event async for event in WholeStream(Stream(), is_end, may_be_empty=True)] == []


async def test_the_beginning_of_an_answer_is_none(tmp_path: Path) -> None:
    async with serving(tmp_path, GENERIC, [end_early(["Once ", "upon "])]) as served:
        answer = await ask(served.url)

    assert answer.is_error
    assert answer.text.endswith(": the provider's answer ended early")


@pytest.mark.parametrize("provider", [GENERIC, OPENAI], ids=str)
async def test_one_end_of_two_is_enough(provider: Scripted, tmp_path: Path) -> None:
    delta = {"index": 0, "delta": {"role": "assistant", "content": "Hello."}, "finish_reason": None}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [delta]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
    async with serving(tmp_path, provider, [Reply(200, body, "text/event-stream")]) as served:
        answer = await ask(served.url)

    assert (answer.text, answer.is_error) == ("Hello.", False)
