"""The check of requests to providers: what it finds, where it says that is, and which requests pass it."""

from typing import Any

import httpx
import pytest

from tests.support.dialects import polyglot_llm
from tests.support.protocol_messages import MISFITS
from tests.support.provider_requests import misfits_of_request
from tests.support.providers.bedrock import Bedrock
from tests.support.providers.provider import scripted_provider
from tests.support.scripted_llm import scripted_llm

Json = dict[str, Any]

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GEMINI, CONVERSE = "/v1beta/models/gemini-test:generateContent", "/model/nova/converse"
VERTEX = "/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict"

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
TOOL = {"name": "look", "parameters": {"type": "object"}}
TEXT = {"type": "text", "text": "hi"}
ASKED = {"role": "user", "content": [TEXT]}
PARTS = [{"text": "hi"}]

WHOLE: dict[str, Json] = {
    CHAT: {
        "model": "m",
        "messages": [{"role": "user", "content": [TEXT, IMAGE]}],
        "tools": [{"type": "function", "function": TOOL}],
        "stream": True,
    },
    RESPONSES: {
        "model": "m",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "tools": [{"type": "function", **TOOL, "strict": None}],
        "stream": True,
    },
    MESSAGES: {
        "model": "m",
        "max_tokens": 9,
        "messages": [ASKED],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "stream": True,
    },
    VERTEX: {"anthropic_version": "vertex-2023-10-16", "max_tokens": 9, "messages": [ASKED], "stream": True},
    GEMINI: {
        "contents": [{"role": "user", "parts": PARTS}],
        "tools": [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": {"type": "object"}}]}],
        "generationConfig": {"temperature": 1},
    },
    CONVERSE: {
        "messages": [{"role": "user", "content": PARTS}],
        "toolConfig": {"tools": [{"toolSpec": {"name": "look", "inputSchema": {"json": {"type": "object"}}}}]},
        "inferenceConfig": {"temperature": 1},
    },
}


@pytest.mark.parametrize("path", WHOLE)
def test_a_request_that_a_provider_documents_fits(path: str) -> None:
    assert misfits_of_request(path, WHOLE[path]) == []


@pytest.mark.parametrize(
    ("path", "change", "place", "fault"),
    [
        (CHAT, {"messages": None}, "messages", "null"),
        (CHAT, {"temperature": "hot"}, "temperature", '"hot"'),
        (CHAT, {"temprature": 1}, "the body", "'temprature'"),
        (CHAT, {"messages": [{"role": "user", "content": [{**IMAGE, "url": ""}]}]}, "messages.0.content.0", "'url'"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0", '"text"'),
        (CHAT, {"tools": [{"type": "function", "function": {}}]}, "tools.0.function", '"name"'),
        (RESPONSES, {"instructions": 1}, "instructions", "1"),
        (RESPONSES, {"messages": []}, "the body", "'messages'"),
        (RESPONSES, {"tools": [{"type": "function", **TOOL}]}, "tools.0", '"strict"'),
        (MESSAGES, {"max_tokens": None}, "max_tokens", "null"),
        (MESSAGES, {"betas": []}, "the body", "'betas'"),
        (
            MESSAGES,
            {"messages": [{**ASKED, "content": [{"type": "text", "text": "hi", "id": "1"}]}]},
            "0.content.0",
            "'id'",
        ),
        (VERTEX, {"max_tokens": "9"}, "max_tokens", '"9"'),
        (VERTEX, {"model": "m"}, "model", "no `model`"),
        (GEMINI, {"contents": [{"role": "user", "parts": [{"text": 1}]}]}, "contents.0.parts.0.text", "1"),
        (GEMINI, {"contents": [{"role": "user", "parts": [{"txt": ""}]}]}, "contents.0.parts.0.txt", "not permitted"),
        (GEMINI, {"model": "m"}, "model", "not permitted"),
        (CONVERSE, {"inferenceConfig": {"temperature": "hot"}}, "inferenceConfig.temperature", "hot"),
        (CONVERSE, {"messages": [{"role": "user", "content": PARTS, "name": "x"}]}, "messages[0]", '"name"'),
    ],
)
def test_a_wrong_member_or_type_is_named_with_its_path(path: str, change: Json, place: str, fault: str) -> None:
    [found] = misfits_of_request(path, {**WHOLE[path], **change})
    assert place in found
    assert fault in found


async def test_requests_to_each_fake_provider_are_checked() -> None:
    async with (
        scripted_llm() as llm,
        scripted_provider(Bedrock()) as bedrock,
        polyglot_llm() as polyglot,
        httpx.AsyncClient(timeout=30) as http,
    ):
        await http.post(f"{llm.base_url}/chat/completions", json={**WHOLE[CHAT], "chat": 1})
        await http.post(f"{bedrock.base_url}{CONVERSE}", json={**WHOLE[CONVERSE], "bedrock": 1})
        await http.post(f"{polyglot.base_url}{MESSAGES}", json={**WHOLE[MESSAGES], "polyglot": 1})
    found = [one.partition(": ")[2] for one in MISFITS.take()]
    assert [name in one for name, one in zip(("chat", "bedrock", "polyglot"), found, strict=True)] == [True] * 3
