"""Callers that can be asked: clients of the SDK, and calls of 2026-07-28 that end with a question."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.session import LoggingFnT
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestParams, ElicitResult, TextContent

from tests.support.clients import MODERN_VERSION, RawReply, raw_client
from tests.support.waiting import Changes

EACH_ERA = pytest.mark.parametrize("era", ["initialize", "modern"])


EACH_MODE = pytest.mark.parametrize("mode", ["legacy", MODERN_VERSION])


class Person:
    """A caller that can be asked: `replies` are played in turn, None waits for `answer_now`; `asked` was shown."""

    def __init__(self, *replies: ElicitResult | None) -> None:
        self.replies = list(replies)
        self.asked: list[ElicitRequestParams] = []
        self.changes = Changes()
        self._later: asyncio.Future[ElicitResult] = asyncio.get_running_loop().create_future()

    async def __call__(self, context: object, params: ElicitRequestParams) -> ElicitResult:
        del context
        self.asked.append(params)
        self.changes.announce()
        reply = self.replies.pop(0)
        return reply if reply is not None else await self._later

    @property
    def is_waited_for(self) -> bool:
        """The client still waits for `answer_now`."""
        return not self._later.done()

    def answer_now(self, reply: ElicitResult) -> None:
        self._later.set_result(reply)

    async def wait_for(self, count: int) -> None:
        await self.changes.until(lambda: len(self.asked) >= count, 20, what=f"{count} questions")


def accept(**content: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=content or None)


DECLINE = ElicitResult(action="decline")


@asynccontextmanager
async def client_of(
    url: str,
    person: Person,
    mode: str = "legacy",
    *,
    on_log: LoggingFnT | None = None,
    tls: SSLContext | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(timeout=30, verify=tls or True, transport=transport) as http:
        streams = streamable_http_client(url, http_client=http)
        async with Client(streams, mode=mode, elicitation_callback=person, logging_callback=on_log) as client:
            yield client


async def told(client: Client, message: str, tool: str = "send_message") -> str:
    result = await client.call_tool(tool, {"message": message})
    return "".join(block.text for block in result.content if isinstance(block, TextContent))


CAN_BE_ASKED: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}, "url": {}}}}


INVALID_PARAMS = -32602


@dataclass(frozen=True)
class Asked:
    """A call of 2026-07-28 that has ended with one question."""

    url: str
    state: str
    id: str

    message: str = "name"

    async def repeat(
        self,
        answer: dict[str, Any] | None = None,
        *,
        state: str | None = None,
        url: str | None = None,
        message: str | None = None,
        bearer: str | None = "mine",
    ) -> RawReply:
        """Repeat the call with an answer, changed in one way or another."""
        async with raw_client(url or self.url, protocol_version=MODERN_VERSION, bearer=bearer) as client:
            return await client.request("tools/call", self.params(answer, state, message), meta=CAN_BE_ASKED)

    def params(
        self, answer: dict[str, Any] | None = None, state: str | None = None, message: str | None = None
    ) -> dict[str, Any]:
        return {
            "name": "send_message",
            "arguments": {"message": message or self.message},
            "requestState": self.state if state is None else state,
            "inputResponses": {self.id: answer or {"action": "accept", "content": {"name": "Ada"}}},
        }


async def asked_at(url: str, message: str = "name", meta: dict[str, Any] = CAN_BE_ASKED) -> Asked:
    return asked_in((await called_at(url, message, meta)).result, url, message)


async def called_at(url: str, message: str, meta: dict[str, Any] = CAN_BE_ASKED) -> RawReply:
    async with raw_client(url, protocol_version=MODERN_VERSION, bearer="mine") as client:
        return await client.call_tool("send_message", {"message": message}, meta=meta)


def asked_in(result: Any, url: str, message: str = "name") -> Asked:
    assert result["resultType"] == "input_required"
    return Asked(url, result["requestState"], min(result["inputRequests"]), message)


END = {**CAN_BE_ASKED, "pallas/end": True}


async def ended(asked: Asked, *, bearer: str = "mine", url: str | None = None, **changed: Any) -> RawReply:
    """Repeat a call in order to end it."""
    params = {key: value for key, value in asked.params().items() if key != "inputResponses"} | changed
    async with raw_client(url or asked.url, protocol_version=MODERN_VERSION, bearer=bearer) as client:
        return await client.request("tools/call", params, meta=END)
