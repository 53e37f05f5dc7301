"""The threads API of a gateway whose downstream asks, and its streams of events."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.asking import Asking, asking_downstream
from tests.support.asking_gateways import calls_the_tool_it_is_told, gateway_of
from tests.support.gateway import Agent, Running
from tests.support.waiting import Changes

EVENTS = {"Accept": "text/event-stream"}


ACCEPT = {"action": "accept", "content": {"name": "Ada"}}


@dataclass(frozen=True)
class Api:
    served: Running
    downstream: Asking
    http: httpx.AsyncClient

    async def chat(self, message: str, *, agent: str = "user", **body: Any) -> dict[str, Any]:
        return await chat(self.http, message, agent=agent, **body)

    async def answer(self, thread_id: str, answers: dict[str, Any], **headers: str) -> httpx.Response:
        return await self.http.post(f"/threads/{thread_id}/answers", json={"answers": answers}, headers=headers)

    async def last(self, thread_id: str) -> dict[str, Any]:
        return (await messages(self.http, thread_id))[-1]

    def stream(self, path: str, body: dict[str, Any]) -> AbstractAsyncContextManager["Stream"]:
        return stream_of(self.http, path, body)


@asynccontextmanager
async def stream_of(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> AsyncGenerator["Stream"]:
    async with http.stream("POST", path, json=body, headers=EVENTS) as response:
        assert response.status_code == 200
        stream = Stream(response)
        reading = asyncio.create_task(stream.read())
        try:
            yield stream
        finally:
            reading.cancel()
            await asyncio.wait({reading})


class Stream:
    def __init__(self, response: httpx.Response) -> None:
        self.events: list[dict[str, Any]] = []
        self._response = response
        self._changes = Changes()
        self._is_over = False

    async def read(self) -> None:
        try:
            async for line in self._response.aiter_lines():
                if line.startswith("data: {"):
                    self.events.append(json.loads(line.removeprefix("data: ")))
                    self._changes.announce()
        finally:
            self._is_over = True
            self._changes.announce()

    async def last(self) -> dict[str, Any]:
        await self._changes.until(lambda: self._is_over, 20, what="the end of the stream")
        return self.events[-1]

    async def event(self, type_: str) -> dict[str, Any]:
        await self._changes.until(lambda: type_ in self.types, 20, what=f"the event '{type_}'")
        return next(one for one in self.events if one["type"] == type_)

    @property
    def types(self) -> list[str]:
        return [one["type"] for one in self.events]


@asynccontextmanager
async def serving(path: Path, agent: Agent | None = None, script: Any = None, **gateway: Any) -> AsyncIterator[Api]:
    settings = {"database": "sqlite:///threads.db", **gateway}
    async with (
        asking_downstream("modern") as downstream,
        gateway_of(
            path,
            {"url": downstream.url},
            agent,
            script=script or calls_the_tool_it_is_told,
            gateway=settings,
        ) as served,
        http_of(served) as http,
    ):
        yield Api(served, downstream, http)


async def chat(http: httpx.AsyncClient, message: str, *, agent: str = "solo", **body: Any) -> dict[str, Any]:
    response = await http.post(f"/agents/{agent}/chat", json={"message": message, **body})
    return dict(response.raise_for_status().json())


async def messages(http: httpx.AsyncClient, thread_id: str, **query: Any) -> list[dict[str, Any]]:
    found = await http.get(f"/threads/{thread_id}/messages", params=query)
    return list(found.raise_for_status().json()["messages"])


def http_of(served: Running) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"{served.base_url}/api/v1", trust_env=False, timeout=60)
