"""Callers of every API: each makes one call, sees its question, and answers it over a connection of its own."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol, override
from urllib.parse import urlsplit

import httpx
import httpx2
from mcp import MCPError
from mcp_types import ElicitResult

from tests.support.askable_callers import Person, client_of, told
from tests.support.clients import MODERN_VERSION
from tests.support.threads_api import EVENTS, Stream, stream_of
from tests.support.waiting import eventually

type Answer = dict[str, Any]

TIMEOUT = 60


class Caller(Protocol):
    async def ask(self, base_url: str, agent: str, message: str) -> str:
        """Call, and return the text of the question once it is there."""

    async def connect(self, base_url: str) -> None:
        """Open the connections that the answer takes."""

    async def answer(self, answer: Answer) -> str:
        """Answer, and return what the call says at its end."""

    async def text(self) -> str:
        """What the call says at its end, without an answer."""

    async def again(self) -> None:
        """Send the same answer again, which must have no effect."""

    async def leave(self) -> None:
        """Close all connections."""


class _Wire(httpx2.AsyncBaseTransport):
    """Sends answers over a connection of their own, and all else as always."""

    def __init__(self) -> None:
        self._calls, self._answers = httpx2.AsyncHTTPTransport(), _kept_transport()
        self._base_url = ""
        self._sent: httpx2.Request | None = None

    async def connect(self, base_url: str) -> None:
        self._base_url, self._answers = base_url, _kept_transport()
        await self._over_own(httpx2.Request("GET", f"{base_url}/healthz"))

    async def again(self) -> str:
        """Send the last answer again; return the status and the body."""
        assert self._sent is not None
        response = await self._over_own(self._sent)
        return f"{response.status_code} {response.text}"

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        message = json.loads(await request.aread() or "{}")
        if self._base_url:  # the process of the call may be gone
            there = urlsplit(self._base_url)
            url = request.url.copy_with(host=there.hostname, port=there.port)
            headers = {**request.headers, "host": there.netloc}
            request = httpx2.Request(request.method, url, headers=headers, content=request.content)
        if "result" not in message and "inputResponses" not in message.get("params", {}):
            return await self._calls.handle_async_request(request)
        self._sent = request
        return await self._answers.handle_async_request(request)

    async def _over_own(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._answers.handle_async_request(request)
        await response.aread()
        return response

    @override
    async def aclose(self) -> None:
        """Close the connections of calls alone: the client that closes them leaves before the last answer is sent."""
        await self._calls.aclose()

    async def leave(self) -> None:
        await self._answers.aclose()


def _kept_transport() -> httpx2.AsyncHTTPTransport:
    """One connection, that stays: another one might reach another process."""
    return httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=1, keepalive_expiry=None))


class McpCaller:
    """A client of the SDK, of one era."""

    def __init__(self, mode: str) -> None:
        self._mode, self._wire, self._person = mode, _Wire(), Person(None)
        self._call: asyncio.Task[str] | None = None

    async def ask(self, base_url: str, agent: str, message: str) -> str:
        self._call = asyncio.create_task(self._make(f"{base_url}/agents/{agent}/mcp", message))
        await self._person.wait_for(1)
        return self._person.asked[0].message

    async def _make(self, url: str, message: str) -> str:
        async with client_of(url, self._person, self._mode, transport=self._wire) as client:
            try:
                return await told(client, message)
            except MCPError as error:
                return f"{error.error.code} {error.error.message}"

    async def connect(self, base_url: str) -> None:
        await self._wire.connect(base_url)

    async def answer(self, answer: Answer) -> str:
        if self._person.is_waited_for:
            self._person.answer_now(ElicitResult.model_validate(answer))
        return await self.text()

    async def text(self) -> str:
        assert self._call is not None
        await asyncio.wait({self._call}, timeout=TIMEOUT)
        return "" if self._call.cancelled() else self._call.result()

    async def again(self) -> None:
        """Send the same answer again; in the initialize era it is ignored, so that only its effects could show."""
        refused = await self._wire.again()
        assert "-32602" in refused if self._mode == MODERN_VERSION else refused[:3] in {"202", "400"}, refused

    async def leave(self) -> None:
        assert self._call is not None
        self._call.cancel()
        await asyncio.wait({self._call})
        await self._wire.leave()


class ThreadsCaller:
    """A client of the threads API, which reads events or JSON."""

    def __init__(self, *, reads_events: bool) -> None:
        self._reads_events, self._stack = reads_events, AsyncExitStack()
        self._stream: Stream | None = None
        self._answering: httpx.AsyncClient
        self._thread_id = self._question = ""
        self._given: Answer = {}

    async def ask(self, base_url: str, agent: str, message: str) -> str:
        http, path, body = await self._connected(base_url), f"/agents/{agent}/chat", {"message": message}
        if self._reads_events:
            self._stream = await self._stack.enter_async_context(stream_of(http, path, body))
            asked = await self._stream.event("question")
            self._thread_id = (await self._stream.event("thread"))["threadId"]
        else:
            reply = (await http.post(path, json=body)).raise_for_status().json()
            self._thread_id, (asked,) = reply["threadId"], reply["questions"]
        self._question = asked["id"]
        return str(asked["message"])

    async def connect(self, base_url: str) -> None:
        self._answering = await self._connected(base_url)

    async def _connected(self, base_url: str) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=1, keepalive_expiry=None)
        client = httpx.AsyncClient(base_url=f"{base_url}/api/v1", limits=limits, trust_env=False, timeout=TIMEOUT)
        http = await self._stack.enter_async_context(client)
        (await http.get("/agents")).raise_for_status()
        return http

    @property
    def _answers(self) -> str:
        return f"/threads/{self._thread_id}/answers"

    async def answer(self, answer: Answer) -> str:
        """Answer, and read what follows; where the client reads events, the stream of its call ends alike."""
        self._given = {"answers": {self._question: answer}}
        headers = EVENTS if self._reads_events else {}
        response = await self._answering.post(self._answers, json=self._given, headers=headers)
        lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
        final = json.loads(lines[-1].removeprefix("data: ")) if lines else response.json()
        if "content" not in final:  # the turn has ended before
            return await self.text()
        last = await self._stream.last() if self._stream is not None else final
        if last.get("type") == "final":
            assert last["content"] == final["content"]
        elif last.get("type") == "error":  # the process of the call has ended
            assert last["reason"] == "stopping"
        return str(final["content"])

    async def text(self) -> str:
        """The newest answer of the thread, once the turn has ended."""
        http = self._answering

        async def ended() -> dict[str, Any] | None:
            shown = (await http.get(f"/threads/{self._thread_id}/messages")).raise_for_status().json()["messages"][-1]
            return shown if shown["status"] in {"complete", "error"} else None

        shown = await eventually(ended, TIMEOUT, what="the end of the turn")
        return str(shown["content"] if shown["status"] == "complete" else shown["error"]["reason"])

    async def again(self) -> None:
        refused = await self._answering.post(self._answers, json=self._given)
        assert (refused.status_code, refused.json()["error"]) == (404, "question_not_open")

    async def leave(self) -> None:
        self._stream = None
        await self._stack.aclose()


class OpenAiCaller:
    """A client of the OpenAI API, which cannot be asked: its call ends before it could answer."""

    def __init__(self) -> None:
        self._text = ""

    async def ask(self, base_url: str, agent: str, message: str) -> str:
        body = {"model": agent, "messages": [{"role": "user", "content": message}]}
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as http:
            reply = (await http.post(f"{base_url}/v1/chat/completions", json=body)).raise_for_status().json()
        self._text = reply["choices"][0]["message"]["content"]
        return ""

    async def connect(self, base_url: str) -> None:
        """Need no connection."""

    async def answer(self, answer: Answer) -> str:
        del answer
        return self._text

    async def text(self) -> str:
        return self._text

    async def again(self) -> None:
        """Have no answer to send again."""

    async def leave(self) -> None:
        """Hold no connection."""


CALLERS: dict[str, Callable[[], Caller]] = {
    "initialize": lambda: McpCaller("legacy"),
    "2026-07-28": lambda: McpCaller(MODERN_VERSION),
    "threads, events": lambda: ThreadsCaller(reads_events=True),
    "threads, JSON": lambda: ThreadsCaller(reads_events=False),
    "OpenAI": OpenAiCaller,
}
