"""Stopping while calls hang: each client is told so, and the gateway ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.process.reload import SwappableApp
from tests.support.calling import EACH_VERSION, ask
from tests.support.clients import McpClient, initialize_client, modern_client
from tests.support.gateway import Agent, Limits, gateway_and_model, running, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say
from tests.support.waiting import Gate, eventually, tick

type Connect = Callable[[str], AbstractAsyncContextManager[McpClient]]

IS_STOPPING = "The gateway is stopping and could not wait for this call any longer. Send it again in a moment."
STOP_SECONDS = 15  # half of what agents get to leave in


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_call_that_outlasts_the_drain_ends_with_a_sentence_and_the_gateway_ends_too(
    version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    solo, gateway = {"solo": Agent()}, {"drain_seconds": 0.2}
    async with gateway_and_model(tmp_path, solo, lambda _: hang(Gate()), gateway=gateway) as (served, llm):
        calls = [asyncio.create_task(ask(served.url("solo"), f"{n}", version=version)) for n in range(3)]
        await llm.wait_for_requests(3)
        async with asyncio.timeout(STOP_SECONDS):
            served.stop.set()
            answers = await asyncio.gather(*calls)
        errors = served.metric("pallas_send_message_total", agent="solo", outcome="error")
        await llm.wait_for_aborted(3)
    assert {(answer.text, answer.is_error) for answer in answers} == {(IS_STOPPING, True)}
    assert {answer.meta["stop_reason"] for answer in answers} == {"stopped"}
    assert errors == 3
    said = [(record.levelname, record.message) for record in caplog.records if record.name == "pallas.server"]
    assert ("WARNING", "drain time exceeded") in said
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_the_client_of_an_agent_that_waits_for_a_peer_is_told_too(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if "You are parent" in str(request.messages[0]):
            return call_tools([("peer__send_message", {"message": "wait"})])
        return hang(Gate())

    with reserved_port() as port:
        agents = {
            "parent": Agent(servers=["peer"], settings={"depends_on": ["peer"]}),
            "peer": Agent(settings={"port": port}),
        }
        servers = {"peer": {"transport": "http", "url": f"http://localhost:{port}/mcp"}}
        gateway = {"drain_seconds": 0.2}
        async with gateway_and_model(tmp_path, agents, script, servers=servers, gateway=gateway) as (served, llm):
            call = asyncio.create_task(ask(served.url("parent")))
            await llm.wait_for_requests(2)
            async with asyncio.timeout(STOP_SECONDS):
                served.stop.set()
                answer = await call
        assert len(llm.requests) == 2  # nobody goes on with the peer's failure
    assert (answer.text, answer.is_error) == (IS_STOPPING, True)


@pytest.mark.parametrize("connect", [initialize_client, modern_client])
async def test_clients_that_look_at_the_tools_again_understand_their_answer_also_after_the_last_one(
    connect: Connect, tmp_path: Path, limits: Limits
) -> None:
    limits.gateway.connections.last_requests_seconds = 2.0
    gate, last = Gate(), Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate if request.last_user_text == "one" else last, say("the answer"))

    async with (
        gateway_and_model(tmp_path, {"solo": Agent()}, script) as (served, _),
        connect(served.url("solo")) as client,
    ):
        call = asyncio.create_task(client.call_tool("send_message", {"message": "one"}))
        other = asyncio.create_task(ask(served.url("solo"), "two"))
        await asyncio.gather(gate.wait_for_entered(), last.wait_for_entered())
        served.stop.set()
        await eventually(lambda: served.gateway.calls.draining, what="the drain")
        gate.open()
        assert "the answer" in str((await call).content)
        tools = {tool.name for tool in await client.list_tools()}
        assert "send_message" in tools
        another = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "send_message"}}
        assert (await served.request("POST", "/agents/solo/mcp", json=another)).status_code == 503
        last.open()
        assert (await other).text == "the answer"
        assert await asyncio.gather(*(names_of_tools(connect, served.url("solo")) for _ in range(20))) == [tools] * 20


async def names_of_tools(connect: Connect, url: str) -> set[str]:
    async with connect(url) as client:
        return {tool.name for tool in await client.list_tools()}


async def test_the_wait_for_further_requests_ends_although_they_never_cease() -> None:
    async def app(*_: object) -> None: ...

    entrance, over = SwappableApp(app), asyncio.Event()

    async def ask_again_and_again() -> None:
        while not over.is_set():
            await entrance({}, no_event, no_event)
            await tick()

    asking = asyncio.create_task(ask_again_and_again())
    await asyncio.wait_for(entrance.wait_for_silence(0.05), 20)
    over.set()
    await asking


async def no_event(*_: object) -> Any: ...


async def test_a_gateway_that_is_cancelled_waits_for_nothing_that_does_not_end_by_itself(tmp_path: Path) -> None:
    """As by Ctrl-C before `serve` handles signals."""
    loop, took = asyncio.get_running_loop(), 60.0
    with suppress(asyncio.CancelledError):  # also raised by the end of the block
        async with running(write_project(tmp_path, {"solo": Agent()})):
            [serving] = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == "_serve"]
            began = loop.time()
            serving.cancel()
            await asyncio.wait({serving})
            took = loop.time() - began
    assert took < 5  # by the loop's clock, which stands still while the machine does
