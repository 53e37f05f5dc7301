"""The scripted providers, asked by the libraries of the real ones."""

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import anthropic
import boto3
import httpx2
import openai
import pytest
from botocore.config import Config
from google import genai

from tests.support.providers.anthropic import Anthropic
from tests.support.providers.bedrock import Bedrock
from tests.support.providers.gemini import Gemini
from tests.support.providers.provider import Dialect, ScriptedProvider, scripted_provider
from tests.support.providers.responses import Responses
from tests.support.scripted_llm import Turn, Usage, call_tools, error_event, say, stream

USAGE = Usage(prompt=11, completion=7, cached=3, reasoning=2)
type Said = tuple[str, list[tuple[str, Any]], int, int]
"""The text, the tool calls, and the tokens of prompt and completion."""


async def ask_gemini(llm: ScriptedProvider) -> Said:
    async with httpx2.AsyncClient(trust_env=False) as http:
        options = genai.types.HttpOptions(base_url=llm.base_url, httpx_async_client=http)
        client = genai.Client(api_key="key", http_options=options)
        chunks = [one async for one in await client.aio.models.generate_content_stream(model="g", contents="hi")]
    parts = [part for one in chunks for part in (one.candidates or [])[0].content.parts]  # type: ignore[union-attr]
    usage = chunks[-1].usage_metadata
    assert usage is not None
    calls = [(part.function_call.name or "", part.function_call.args) for part in parts if part.function_call]
    spent = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    return "".join(part.text or "" for part in parts), calls, usage.prompt_token_count or 0, spent


async def ask_anthropic(llm: ScriptedProvider) -> Said:
    async with (
        httpx2.AsyncClient(trust_env=False) as http,
        anthropic.AsyncAnthropic(api_key="key", base_url=llm.base_url, http_client=http, max_retries=0) as client,
        client.beta.messages.stream(
            model="claude", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        ) as streamed,
    ):
        message = await streamed.get_final_message()
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
    usage = message.usage
    prompt = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return text, calls, prompt, usage.output_tokens


async def ask_bedrock(llm: ScriptedProvider) -> Said:
    def ask() -> list[dict[str, Any]]:
        client = boto3.client(
            "bedrock-runtime",
            region_name="eu-west-1",
            endpoint_url=llm.base_url,
            aws_access_key_id="id",
            aws_secret_access_key="key",
            config=Config(retries={"total_max_attempts": 1}, proxies={}),
        )
        messages = [{"role": "user", "content": [{"text": "hi"}]}]
        with closing(client), closing(client.converse_stream(modelId="a.model", messages=messages)["stream"]) as events:
            return list(events)

    events = await asyncio.to_thread(ask)
    deltas = [one["contentBlockDelta"] for one in events if "contentBlockDelta" in one]
    starts = [one["contentBlockStart"] for one in events if "contentBlockStart" in one]
    text = "".join(one["delta"].get("text", "") for one in deltas)
    calls = []
    for start in starts:
        mine = [one["delta"] for one in deltas if one["contentBlockIndex"] == start["contentBlockIndex"]]
        arguments = "".join(one["toolUse"]["input"] for one in mine)
        calls.append((start["start"]["toolUse"]["name"], json.loads(arguments)))
    usage = events[-1]["metadata"]["usage"]
    prompt = usage["inputTokens"] + usage["cacheReadInputTokens"] + usage["cacheWriteInputTokens"]
    return text, calls, prompt, usage["outputTokens"]


async def ask_responses(llm: ScriptedProvider) -> Said:
    async with (
        httpx2.AsyncClient(trust_env=False) as http,
        openai.AsyncOpenAI(api_key="key", base_url=f"{llm.base_url}/v1", http_client=http, max_retries=0) as client,
        client.responses.stream(model="gpt", input=[{"role": "user", "content": "hi"}]) as streamed,
    ):
        async for event in streamed:
            if event.type == "error":
                raise AssertionError(event.message)
        response = await streamed.get_final_response()
    calls = [(one.name, json.loads(one.arguments)) for one in response.output if one.type == "function_call"]
    assert response.usage is not None
    return response.output_text, calls, response.usage.input_tokens, response.usage.output_tokens


DIALECTS: dict[str, tuple[Dialect, Callable[[ScriptedProvider], Any]]] = {
    "gemini": (Gemini(), ask_gemini),
    "gemini together": (Gemini(has_ids=False, together=True), ask_gemini),
    "anthropic": (Anthropic(), ask_anthropic),
    "bedrock": (Bedrock(), ask_bedrock),
    "responses": (Responses(), ask_responses),
}
each_dialect = pytest.mark.parametrize("name", DIALECTS)


@pytest.fixture
def ask(name: str) -> Callable[[Turn], Any]:
    dialect, asker = DIALECTS[name]

    async def asking(turn: Turn) -> Any:
        async with scripted_provider(dialect, [turn]) as llm:
            said = await asker(llm)
            assert llm.requests[0].last_user_text == "hi"
            return said

    return asking


@each_dialect
async def test_says_its_text_and_its_usage(ask: Any) -> None:
    assert await ask(say("hello", usage=USAGE)) == ("hello", [], 11, 7)
    assert (await ask(stream(["once ", "upon"])))[0] == "once upon"


@each_dialect
async def test_asks_for_tools(ask: Any) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("add", {"a": 1, "b": 2}), ("echo", {"text": "x"})]
    for text in ("", "Both."):
        assert (await ask(call_tools(calls, text=text)))[:2] == (text, calls)


@each_dialect
async def test_reports_an_error_within_a_stream(ask: Any) -> None:
    with pytest.raises(Exception, match="overloaded"):
        await ask(error_event("overloaded"))
