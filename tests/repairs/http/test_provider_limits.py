"""A provider's server can stop the gateway."""

import asyncio
import gzip
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, override

import httpx2
import pytest
from fast_agent.llm.provider_types import Provider
from fast_agent.mcp.auth.context import request_bearer_token

from pallas_gateway.changes.registry import registry
from pallas_gateway.errors import CallFailedError
from pallas_gateway.limits import LARGEST_ANSWER_BYTES, LARGEST_ERROR_BYTES
from pallas_gateway.repairs.http._limited import is_limited, limited
from tests.support.loaded_providers import http_of, load, make_client

URL = "http://provider.test/v1/chat"
PIECE = b"x" * 16_384


class Body(httpx2.AsyncByteStream):
    """A body that counts the pieces that were read of it."""

    def __init__(self, *pieces: bytes, is_endless: bool = False) -> None:
        self._pieces = pieces
        self._is_endless = is_endless
        self.read = 0
        self.is_closed = False

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            for piece in self._pieces:
                self.read += 1
                yield piece
            if not self._is_endless:
                return

    @override
    async def aclose(self) -> None:
        self.is_closed = True


def client_of(answer: Callable[[httpx2.Request], httpx2.Response]) -> httpx2.AsyncClient:
    client: httpx2.AsyncClient = limited(
        httpx2.AsyncClient(transport=httpx2.MockTransport(answer), follow_redirects=True)
    )
    return client


async def answered(status: int, body: Body, **headers: str) -> bytes:
    async with client_of(lambda _: httpx2.Response(status, headers=headers, stream=body)) as client:
        return (await client.post(URL)).content


async def test_an_error_without_an_end_is_cut_off() -> None:
    body = Body(PIECE, is_endless=True)

    assert len(await answered(400, body)) == LARGEST_ERROR_BYTES
    assert body.read == LARGEST_ERROR_BYTES // len(PIECE) + 1
    assert body.is_closed


async def test_an_answer_without_an_end_is_refused() -> None:
    body = Body(PIECE, is_endless=True)

    with pytest.raises(CallFailedError, match="its provider sent more than 128 MB in one answer") as failure:
        await answered(200, body)

    assert failure.value.reason == "llm_error"
    assert body.read == LARGEST_ANSWER_BYTES // len(PIECE) + 1
    assert body.is_closed


@pytest.mark.parametrize("encoding", ["gzip", "X-GZIP"])
async def test_a_compressed_answer_is_decompressed(encoding: str) -> None:
    compressed = gzip.compress(b"Hello. " * 100_000)
    body = Body(compressed[:7], compressed[7:])

    assert await answered(200, body, **{"Content-Encoding": encoding}) == b"Hello. " * 100_000


async def test_a_compressed_error_is_decompressed_up_to_its_limit() -> None:
    body = Body(gzip.compress(bytes(50_000_000)))

    assert 0 < len(await answered(400, body, **{"Content-Encoding": "gzip"})) <= LARGEST_ERROR_BYTES


async def test_an_answer_that_cannot_be_decompressed_is_incomplete() -> None:
    with pytest.raises(CallFailedError, match="not a complete answer"):
        await answered(200, Body(b"not compressed"), **{"Content-Encoding": "gzip"})


async def test_no_other_encoding_is_asked_for_or_decoded() -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.headers["Accept-Encoding"])
        return httpx2.Response(200, headers={"Content-Encoding": "gzip, gzip"}, stream=Body(b"as it is"))

    async with client_of(answer) as client:
        assert (await client.post(URL)).content == b"as it is"
    assert asked == ["gzip"]


async def test_other_tasks_run_between_the_pieces_of_an_answer() -> None:
    body, turns = Body(*[PIECE] * 10), 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def respond(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=body)

    counting = asyncio.create_task(count())
    client = limited(
        httpx2.AsyncClient(transport=httpx2.MockTransport(respond)), busy_seconds=-1.0
    )  # each takes longer
    await client.post(URL)
    counting.cancel()

    assert turns >= 9  # the first one is spent on its start


@pytest.mark.parametrize(
    "location",
    [
        "http://elsewhere.test/v1/chat",
        "//elsewhere.test/v1/chat",
        "https://provider.test/v1/chat",
        "http://provider.test:8080/v1/chat",
        "http://[/v1/chat",
        "file:///etc/passwd",
    ],
)
async def test_no_redirect_to_another_server_is_followed(location: str) -> None:
    asked: list[httpx2.URL] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url)
        return httpx2.Response(307, headers={"Location": location})

    async with client_of(answer) as client:
        response = await client.post(URL, headers={"x-api-key": "key"})

    assert (response.status_code, asked) == (307, [httpx2.URL(URL)])


@pytest.mark.parametrize("location", ["/v2/chat", "http://provider.test/v2/chat", "http://provider.test:80/v2/chat"])
async def test_a_redirect_within_a_server_is_followed(location: str) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        moved = httpx2.Response(307, headers={"Location": location})
        return moved if request.url.path == "/v1/chat" else httpx2.Response(200, content=request.headers["x-api-key"])

    async with client_of(answer) as client:
        assert (await client.post(URL, headers={"x-api-key": "key"})).text == "key"


async def test_a_body_that_is_left_is_closed_without_a_task_of_its_own() -> None:
    tasks: list[asyncio.Task[None]] = []

    def begin(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
        tasks.append(task := asyncio.Task(work, loop=loop, **options))
        return task

    body = Body(PIECE, is_endless=True)
    async with client_of(lambda _: httpx2.Response(200, stream=body)) as client:
        asyncio.get_running_loop().set_task_factory(begin)
        async with client.stream("POST", URL) as response, aclosing(response.aiter_bytes()) as pieces:
            assert await anext(pieces) == PIECE
        await asyncio.sleep(0)  # in which asyncio begins tasks for generators that were left

    assert tasks == []


@pytest.mark.parametrize("provider", [Provider.GENERIC, Provider.RESPONSES, Provider.ANTHROPIC, Provider.AZURE])
async def test_each_client_of_a_provider_is_limited(provider: Provider) -> None:
    assert is_limited(http_of(make_client(provider)))
    await registry().close()


async def test_googles_client_is_limited() -> None:
    module: Any = sys.modules[load(Provider.GOOGLE).__module__]

    client = module.genai.Client(api_key="not-a-key", http_options=None)

    assert is_limited(client.aio.http)
    await registry().close()


@pytest.mark.parametrize("provider", [Provider.GENERIC, Provider.ANTHROPIC])
async def test_the_sockets_of_a_client_with_the_callers_own_token_are_closed(provider: Provider) -> None:
    load(provider)
    token = request_bearer_token.set("of-the-caller")
    try:
        client = make_client(provider, api_key="of-the-caller")
    finally:
        request_bearer_token.reset(token)

    assert client._client.headers["Connection"] == "close"
    assert is_limited(client._client)
    await client.close()
