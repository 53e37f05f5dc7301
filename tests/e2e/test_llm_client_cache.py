"""LLM turns share sockets, and nothing else."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.asgi import headers_of
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.listener import serve_app
from tests.support.scripted_llm import MODEL, ScriptedLlm, hang, say
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.support.asgi import Receive, Scope, Send
    from tests.support.gateway import Running
    from tests.support.scripted_llm import Script


class Baking:
    """An LLM that wants every client to come back with a cookie; notes who came with what, over which socket."""

    def __init__(self, llm: ScriptedLlm) -> None:
        self.llm = llm
        self.sockets: list[Any] = []
        self.cookies: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            self.sockets.append(scope["client"])
            self.cookies += [headers_of(scope)["cookie"]] if "cookie" in headers_of(scope) else []

        async def send_with_cookie(event: Any) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event["headers"], (b"set-cookie", b"session=of-this-caller; Path=/")]
            await send(event)

        await self.llm(scope, receive, send_with_cookie)


@asynccontextmanager
async def baking(script: Script) -> AsyncGenerator[Baking]:
    baker = Baking(ScriptedLlm(script, models=(MODEL,)))
    async with serve_app(baker) as listener:
        baker.llm.base_url = f"{listener.base_url}/v1"
        yield baker


@pytest.mark.usefixtures("lasting_sockets")
async def test_turns_share_a_socket_and_no_cookie(tmp_path: Path) -> None:
    async with baking(lambda _: say("Done.")) as baker:
        project = write_project(tmp_path, {"one": Agent(), "two": Agent()}, llm_url=baker.llm.base_url)
        async with running(project) as served:
            for agent in ("one", "two", "one"):
                await ask(served, agent)

    assert len(baker.sockets) == 3
    assert len(set(baker.sockets)) == 1
    assert baker.cookies == []


async def test_agents_with_different_keys_do_not_share_a_client(tmp_path: Path) -> None:
    async with baking(lambda _: say("Done.")) as baker:
        agents = {"one": Agent(decorator='api_key="key-of-one"'), "two": Agent(decorator='api_key="key-of-two"')}
        async with running(write_project(tmp_path, agents, llm_url=baker.llm.base_url)) as served:
            await asyncio.gather(*(ask(served, agent) for agent in ("one", "two") * 3))

    assert sorted(str(request.bearer) for request in baker.llm.requests) == ["key-of-one"] * 3 + ["key-of-two"] * 3


async def test_a_turn_cut_off_ends_its_answer_and_nobody_elses(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        baking(lambda _: hang(gate, say("Done."))) as baker,
        running(write_project(tmp_path, {"one": Agent()}, llm_url=baker.llm.base_url)) as served,
    ):
        leaving = asyncio.create_task(ask(served, "one"))
        await gate.wait_for_entered(1)
        staying = asyncio.create_task(ask(served, "one"))
        await gate.wait_for_entered(2)
        leaving.cancel()
        await baker.llm.wait_for_aborted(1)
        gate.open()
        assert await staying == "Done."
        await until_idle(served)

    assert len(baker.llm.aborted) == 1


async def ask(served: Running, agent: str) -> str:
    async with raw_client(served.url(agent), protocol_version=MODERN_VERSION) as client:
        reply = await client.call_tool(agent, {"message": "Hello"})
    assert not reply.result.get("isError"), reply.result
    return str(reply.result["content"][0]["text"])
