"""Agents for OpenAI's official client: the gateway, the script of their models, and the client."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
from openai import AsyncOpenAI

from tests.support.gateway import Agent
from tests.support.scripted_llm import LlmRequest, Turn, Usage, call_tools, cut, fail, hang, say, stream
from tests.support.waiting import Gate
from tests.support.watching import DESK, PIPELINE, Stage, speaker, stage

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n not really").decode()
PDF = base64.b64encode(b"%PDF-1.7 not really").decode()
ON = {"openai_api": True}
COST = Usage(prompt=20, completion=7, cached=5, reasoning=2)


@asynccontextmanager
async def client_of(base_url: str, key: str = "any", *, retries: int = 0) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key, max_retries=retries, timeout=60) as client:
        yield client


def said(*texts: str) -> list[Any]:
    """A conversation of user and assistant in turns."""
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]


def errors_of(error: openai.APIStatusError) -> tuple[int, str | None, str | None, str | None]:
    """Status, type, code and param of what a client was told."""
    return error.status_code, error.type, error.code, error.param


class Plot:
    """What the models say, by what the user told them; `gate` holds streams and hangs."""

    def __init__(self) -> None:
        """Everything is held at first."""
        self.gate = Gate()

    def __call__(self, request: LlmRequest) -> Turn:
        told = request.last_user_text
        if speaker(request) in ("scout", "drafter"):
            return say("psst")
        if request.tool_results:
            return stream(["It ", "is 3."])
        turns: dict[str, Turn] = {
            "add": call_tools([("tools__add", {"a": 1, "b": 2})], text="Let me see."),
            "ask": call_tools([("agent__scout", {"message": "psst?"})], text="I ask."),
            "fail": fail(500),
            "cut": cut(),
            "long": say("so far", finish_reason="length"),
            "half": say("half \ud83d"),
            "hang": hang(self.gate),
            "slowly": stream(["Once ", "upon ", "a time."], self.gate, usage=COST),
        }
        return turns.get(told, say(f"heard {len(request.messages) - 1}: {told}", usage=COST))


@asynccontextmanager
async def talking(path: Path, **gateway: Any) -> AsyncGenerator[tuple[Stage, Plot, AsyncOpenAI]]:
    plot = Plot()
    agents = {
        "solo": Agent(["tools"], settings={"title": "Solo", "description": "Adds numbers."}),
        "eyes": Agent(settings={"model_capabilities": {"vision": True, "documents": True, "max_output_tokens": 70}}),
        "desk": Agent(source=DESK),
        "pipeline": Agent(source=PIPELINE),
        "strict": Agent(settings={"caller_params": ["temperature"], "model_capabilities": {"vision": False}}),
        "hasty": Agent(settings={"call_timeout_seconds": 10}),  # before a heartbeat begins a stream
    }
    async with (
        stage(path, plot, agents, gateway={**ON, **gateway}) as staged,
        client_of(staged.served.base_url) as client,
    ):
        yield staged, plot, client
