"""The benchmarks' stand-ins and their load generator, in one process: they understand each other, and real clients."""

import asyncio
import itertools
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai

from benchmarks import contenders, load, mixed
from benchmarks.contenders import Endpoint
from benchmarks.fakes import downstream, llm
from benchmarks.fakes.http import Answer, Connection, Request
from benchmarks.load import Era, Load, WrongAnswerError
from benchmarks.processes import HOST, Process
from pallas_gateway.identity.secret import Secret
from pallas_gateway.identity.token_exchange import TokenExchange, TokenExchanger
from tests.support.clients import initialize_client, modern_client, text_of

ERAS: tuple[Era, ...] = ("initialize", "modern")
TOOLS = [{"type": "function", "function": {"name": "facts__lookup_fact"}}]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Process]:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(answer), HOST, 0)
    async with server:
        yield Process(os.getpid(), server.sockets[0].getsockname()[1], Path(os.devnull), 0.0)


def http_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, verify=False)  # noqa: S501  plain HTTP on loopback


def fact_of(process: Process, expected: str = downstream.FACT) -> Endpoint:
    return Endpoint(process, "/facts/0/mcp", downstream.TOOL, {"topic": "bees"}, expected)


async def ask(
    process: Process, base: str, messages: list[dict[str, Any]], *, stream: bool = False, tools: list[Any] = TOOLS
) -> httpx.Response:
    async with http_client() as http:
        body = {"model": "scripted", "messages": messages, "tools": tools, "stream": stream}
        return await http.post(f"http://{HOST}:{process.port}{base}/chat/completions", json=body)


@pytest.mark.parametrize("era", ERAS)
async def test_load_generator_and_downstream_speak_both_eras(era: Era) -> None:
    async with serving(downstream.answer) as process:
        answers = await load.answers(fact_of(process), 3, era=era)

    assert len(answers) == 3
    assert all(answer.bytes > len(downstream.FACT) for answer in answers)


@pytest.mark.parametrize("connect", [initialize_client, modern_client])
async def test_downstream_answers_a_real_client(connect: Any) -> None:
    async with serving(downstream.answer) as process, connect(f"http://{HOST}:{process.port}/facts/0/mcp") as client:
        result = await client.call_tool(downstream.TOOL, {"topic": "bees"})

    assert text_of(result) == downstream.FACT


async def test_downstream_that_asks_is_answered_by_a_load_generator_that_can_be_asked() -> None:
    async with serving(downstream.answer) as process:
        asks = Endpoint(process, "/asks/0/mcp", downstream.TOOL, {"topic": "bees"}, downstream.FACT)
        async with load.client(asks, era="modern", can_be_asked=True) as client:
            await client.call()
            await client.leave_asked()
            assert client.largest_state == len("asked")
        with pytest.raises(WrongAnswerError, match="input_required"):
            await load.answers(asks, 1, era="modern")
        async with load.client(fact_of(process), era="modern", can_be_asked=True) as client:
            with pytest.raises(WrongAnswerError):
                await client.leave_asked()


async def test_downstream_counts_requests_by_method() -> None:
    async with serving(downstream.answer) as process, http_client() as http:
        url = f"http://{HOST}:{process.port}/counts"
        await http.post(url)
        await load.answers(fact_of(process), 3)
        counts = (await http.get(url)).json()

    assert counts == {"facts": {"initialize": 1, "notifications/initialized": 1, "tools/call": 3}}


async def test_load_generator_brings_its_token_and_the_stand_in_exchanges_it() -> None:
    heads: list[bytes] = []

    def seen(request: Request, transport: asyncio.Transport) -> None:
        heads.append(request.head)
        downstream.answer(request, transport)

    async with serving(seen) as process:
        await load.answers(replace(fact_of(process), bearer="anns-token"), 1, era="modern")
        await load.answers(fact_of(process), 1, era="modern")
        settings = contenders.token_exchange(process)
        async with TokenExchanger() as exchanger:
            exchange = TokenExchange("facts", settings["token_endpoint"], "urn:facts", client_id=settings["client_id"])
            issued = await exchanger.exchange(Secret("anns-token"), exchange)

    assert [b"Authorization: Bearer anns-token" in head for head in heads[:2]] == [True, False]
    assert issued.reveal() == "issued"


async def test_wrong_answer_fails_the_run() -> None:
    async with serving(downstream.answer) as process:
        with pytest.raises(WrongAnswerError, match="Bees"):
            await load.answers(fact_of(process, "Bees cannot count."), 1)


async def test_measuring_counts_calls_and_cpu() -> None:
    async with serving(downstream.answer) as process:
        sample = await load.measure(fact_of(process), Load(clients=2, seconds=0.1, warm_up_seconds=0.01))

    assert sample.calls > 0
    assert sample.calls_per_second > 0
    assert 0 < sample.p50_ms <= sample.p95_ms


async def test_a_mix_of_calls_counts_answers_and_errors_by_kind() -> None:
    async with serving(downstream.answer) as process, AsyncExitStack() as stack:
        endpoints = {kind: fact_of(process) for kind in mixed.SHARES}
        calls = mixed.Calls({**endpoints, "image": fact_of(process, "Bees cannot count.")}, stack)
        made = await calls.paced(2000, 0.1)

    kinds = calls.kinds()
    assert made == 200
    assert set(kinds) == {"short", "forwarded", "orchestrator", "history"}
    assert sum(one["calls"] for one in kinds.values()) + len(calls.errors) == made
    assert kinds["short"]["calls"] > kinds["forwarded"]["calls"] > kinds["orchestrator"]["calls"]
    assert all(error.startswith("image: WrongAnswerError: ") for error in calls.errors)
    assert calls.errors


async def test_capacity_counts_answers_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    for module in (mixed, load):
        monkeypatch.setattr(module, "perf_counter", lambda: next(ticks) / 10_000)

    async with serving(downstream.answer) as process, AsyncExitStack() as stack:
        calls = mixed.Calls({kind: fact_of(process) for kind in mixed.SHARES}, stack)
        per_second = await calls.closed(0.05, 0.1)

    everything = sum(one["calls"] for one in calls.kinds().values())
    assert 0 < per_second * 0.1 < everything


async def test_llm_asks_for_the_tool_once_and_then_answers() -> None:
    result = {"role": "tool", "tool_call_id": "call_1", "content": "a fact"}
    async with serving(llm.answer) as process:
        first = (await ask(process, "/tool/0/v1", [{"role": "user", "content": "?"}])).json()["choices"][0]["message"]
        second = (await ask(process, "/tool/0/v1", [result])).json()["choices"][0]["message"]

    assert first["tool_calls"][0]["function"]["name"] == "facts__lookup_fact"
    assert second["content"] == llm.ANSWER


PEERS = ["first__send_message", "second__send_message", "agent__third"]


@pytest.mark.parametrize("stream", [False, True])
async def test_llm_asks_for_several_agents_in_turn_or_at_once(stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ["first__get_health", *PEERS]]
    result = {"role": "tool", "tool_call_id": "call_1", "content": "an answer"}
    asked: list[list[str]] = []
    async with serving(llm.answer) as process:
        for kind, results in (("tool3", 0), ("tool3", 1), ("tool3", 2), ("tool3", 3), ("tools", 0), ("tools", 3)):
            said = await ask(process, f"/{kind}/0/v1", [result] * results, stream=stream, tools=tools)
            asked.append(re.findall(r'"name": "([^"]+)", "arguments": "{\\"message\\": \\"bees\\"}"', said.text))

    assert asked == [PEERS[:1], PEERS[1:2], PEERS[2:], [], PEERS, []]


async def anthropic_texts(address: str) -> list[str]:
    async with (
        anthropic.AsyncAnthropic(api_key="none", base_url=address, http_client=http2_client()) as client,
        client.beta.messages.stream(
            model="scripted", max_tokens=9, messages=[{"role": "user", "content": "?"}]
        ) as stream,
    ):
        return [text async for text in stream.text_stream]


async def responses_texts(address: str) -> list[str]:
    async with (
        openai.AsyncOpenAI(api_key="none", base_url=f"{address}/v1", http_client=http2_client()) as client,
        client.responses.stream(model="scripted", input="?") as stream,
    ):
        return [event.delta async for event in stream if event.type == "response.output_text.delta"]


async def gemini_texts(address: str) -> list[str]:
    async with http_client() as http:
        options = genai.types.HttpOptions(base_url=address, httpx_async_client=http)
        client = genai.Client(api_key="none", http_options=options).aio
        stream = await client.models.generate_content_stream(model="scripted", contents="?")
        return [text async for part in stream if (text := part.text)]


def http2_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(trust_env=False, verify=False)


@pytest.mark.parametrize("texts_of", [anthropic_texts, responses_texts, gemini_texts])
@pytest.mark.parametrize(("how", "pieces"), [("0", llm.PIECES), ("0.01x20", 20)])
async def test_llm_answers_the_libraries_of_other_providers(
    texts_of: Callable[[str], Awaitable[list[str]]], how: str, pieces: int
) -> None:
    async with serving(llm.answer) as process:
        texts = await texts_of(f"http://{HOST}:{process.port}/answer/{how}")

    assert len(texts) == pieces
    assert "".join(texts).startswith(llm.ANSWER)
    assert tuple(texts) == llm.texts_of(f"/answer/{how}/v1")


def test_llm_says_ordinary_words_or_the_same_one_again() -> None:
    words, again = (llm.texts_of(f"/{kind}/4x800/v1") for kind in ("answer", "again"))

    assert (len(words), len(again)) == (800, 800)
    assert (len(set(words[8:])), len(set(again))) == (8, 1)
