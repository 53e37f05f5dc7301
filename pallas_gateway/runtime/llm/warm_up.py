"""Has a provider's library read an answer from memory, so that its schemas are made before the first call."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import httpx2

_ANSWERS = Path(__file__).with_name("answers")
"""An answer with a text and a tool call, in the form of each library's API."""
_NOWHERE = "http://localhost"
_NO_KEY = "none"
_reading = Lock()


def warm_up(llm_class: type[Any]) -> None:
    """Make the library of a fast-agent class read an answer, once for each library."""
    with _reading:  # agents start at the same time, each in a thread
        for each in inspect.getmro(llm_class):
            if (read := _READERS.get(each.__name__)) is not None:
                read()


@cache
def _responses() -> None:
    from openai import OpenAI  # noqa: PLC0415  not before an LLM is used

    client = OpenAI(api_key=_NO_KEY, base_url=_NOWHERE, http_client=_answering("responses"))
    with client, client.responses.stream(model="any", input="Hi") as stream:
        stream.until_done()


@cache
def _chat_completions() -> None:
    from openai import OpenAI  # noqa: PLC0415

    message: Any = [{"role": "user", "content": "Hi"}]
    client = OpenAI(api_key=_NO_KEY, base_url=_NOWHERE, http_client=_answering("chat_completions"))
    with client, client.chat.completions.stream(model="any", messages=message) as stream:
        stream.until_done()


@cache
def _anthropic() -> None:
    from anthropic import Anthropic  # noqa: PLC0415

    message: Any = [{"role": "user", "content": "Hi"}]
    client = Anthropic(api_key=_NO_KEY, base_url=_NOWHERE, http_client=_answering("messages"))
    with client, client.beta.messages.stream(model="any", max_tokens=1, messages=message) as stream:
        stream.until_done()


@cache
def _google() -> None:
    from google import genai  # noqa: PLC0415

    trusted = httpx2.create_ssl_context()  # otherwise the library reads the trust store for two unused clients
    options = genai.types.HttpOptions(
        base_url=_NOWHERE,
        httpx_client=_answering("candidates"),
        client_args={"verify": trusted},
        async_client_args={"verify": trusted, "ssl": trusted},
    )
    client = genai.Client(api_key=_NO_KEY, http_options=options)
    function = genai.types.FunctionDeclaration(name="tool", parameters_json_schema={"type": "object"})
    tools: Any = [genai.types.Tool(function_declarations=[function])]
    config = genai.types.GenerateContentConfig(system_instruction="Hi", tools=tools)
    for _ in client.models.generate_content_stream(model="any", contents="Hi", config=config):
        pass
    client.close()


_READERS = {
    "ResponsesLLM": _responses,
    "OpenAILLM": _chat_completions,
    "AnthropicLLM": _anthropic,
    "GoogleNativeLLM": _google,
}


def _answering(name: str) -> httpx2.Client:
    """A client that has every request answered with the same server-sent events, without a network."""
    body = (_ANSWERS / f"{name}.sse").read_bytes()

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    return httpx2.Client(transport=httpx2.MockTransport(answer), trust_env=False)
