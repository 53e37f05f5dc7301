"""Objects that a call leaves in reference cycles, and tasks of connections that it does not need: both cost CPU."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import uvloop
from starlette.types import ASGIApp

from pallas_gateway.core.feature import PortRoutes
from pallas_gateway.doors.http.app import create_app
from pallas_gateway.doors.mcp.mcp_servers import McpServers
from tests.support.askable_callers import asked_at, called_at, ended
from tests.support.asking_gateways import HUMAN
from tests.support.calling import answer_of
from tests.support.gateway import Agent, Running, gateway_and_model, until_idle
from tests.support.one_user import use_if_told
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say
from tests.support.waiting import Gate
from tests.support.watching import stage

NO_CODE = SimpleNamespace(co_filename="")
OF_A_CALL = ("pallas_gateway.", "fast_agent.")
NOT_OF_A_CALL = ("fast_agent.ui.", "pallas_gateway.process.")
"""Displays, whose cycles have two objects each, and connections of the stand-ins' listeners: a client closes its socket
after 1.5 s without a request. The calls themselves have no listener."""
LIBRARIES = re.compile(r"site-packages/(fast_agent/mcp|mcp/client|mcp/shared)/")


@pytest.mark.parametrize("message", [pytest.param("leave it", marks=pytest.mark.whole), "use it"])
def test_a_call_leaves_no_objects_to_the_garbage_collector(message: str, tmp_path: Path) -> None:
    async def left_by_calls() -> list[str]:
        async with stage(tmp_path, use_if_told) as staged:
            app = app_of(staged.served)
            await call(app, message)
            await until_idle(staged.served)
            with left_in_cycles() as left:
                for _ in range(3):  # the socket to the LLM keeps the scope of its last call
                    await call(app, message)
                    await until_idle(staged.served)
        return left

    # asyncio's own loop keeps the contexts of cancelled timers.
    assert asyncio.run(left_by_calls(), loop_factory=uvloop.new_event_loop) == []


@pytest.mark.parametrize(
    "ending",
    [
        *(pytest.param(ending, marks=pytest.mark.whole) for ending in ("not asked", "answered", "ended")),
        "abandoned",
        "of the OpenAI API",
    ],
)
def test_a_call_that_may_ask_leaves_no_objects_to_the_garbage_collector(ending: str, tmp_path: Path) -> None:
    async def left_by_calls() -> list[str]:
        settings = {"ask_seconds": 0.3 if ending == "abandoned" else 30, "openai_api": True}
        agents = {"solo": Agent(decorator="human_input=True")}
        async with gateway_and_model(tmp_path, agents, ask_if_told, gateway=settings) as (served, _):
            await end_a_call(served, ending)
            with left_in_cycles() as left:
                for _ in range(3):
                    await end_a_call(served, ending)
        return left

    assert asyncio.run(left_by_calls(), loop_factory=uvloop.new_event_loop) == []


async def end_a_call(served: Running, ending: str) -> None:
    """One call of a client that can be asked, or of one of the OpenAI API."""
    if ending == "of the OpenAI API":
        request = {"model": "solo", "messages": [{"role": "user", "content": "go"}]}
        async with httpx.AsyncClient() as http:
            (await http.post(f"{served.base_url}/v1/chat/completions", json=request)).raise_for_status()
    elif ending == "not asked":
        await called_at(served.url("solo"), "go")
    else:
        asked = await asked_at(served.url("solo"), "ask me")
        if ending == "answered":
            assert answer_of(await asked.repeat()).text == "Done."
        elif ending == "ended":
            assert answer_of(await ended(asked)).is_error
    await until_idle(served)


def ask_if_told(request: LlmRequest) -> Turn:
    """Ask the caller if the message asks for it, then the answer."""
    return call_tools([HUMAN]) if request.last_user_text == "ask me" and not request.tool_results else say("Done.")


@contextmanager
def left_in_cycles() -> Iterator[list[str]]:
    """The types of the gateway's and fast-agent's objects that only the garbage collector frees after the block."""
    left: list[str] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        types = [f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage]
        left += [name for name in types if name.startswith(OF_A_CALL) and not name.startswith(NOT_OF_A_CALL)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_a_used_downstream_keeps_no_task_while_the_model_answers(tmp_path: Path) -> None:
    answering = Gate()

    def use_then_wait(request: LlmRequest) -> Turn:
        return hang(answering, say("Done.")) if request.tool_results else use_if_told(request)

    async with stage(tmp_path, use_if_told) as staged:
        app = app_of(staged.served)
        await call(app, "use it")
        await until_idle(staged.served)
        before = connection_tasks()
        staged.llm.script = use_then_wait
        async with asyncio.TaskGroup() as calls:
            calls.create_task(call(app, "use it"))
            await answering.wait_for_entered()
            during = connection_tasks()
            answering.open()

    assert during == before


def connection_tasks() -> list[str]:
    """The running tasks of the libraries' connections to MCP servers."""
    code = [getattr(task.get_coro(), "cr_code", NO_CODE) for task in asyncio.all_tasks()]
    return sorted(one.co_qualname for one in code if LIBRARIES.search(one.co_filename))


def app_of(served: Running) -> ASGIApp:
    return create_app(
        served.gateway, cast("McpServers", served.gateway._agent_set.servers), {1: PortRoutes(agents_by_path=True)}
    )


async def call(app: ASGIApp, message: str) -> None:
    """One call over ASGI: no listener and no client of the test has tasks of its own in it."""
    params = {"name": "send_message", "arguments": {"message": message}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    sent = []

    async def receive() -> Any:
        return incoming.pop() if incoming else await asyncio.get_running_loop().create_future()

    async def send(event: Any) -> None:
        sent.append(event.get("body", b""))

    headers = {
        "host": "localhost",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/agents/solo/mcp", "headers": raw, "server": ("127.0.0.1", 1)}
    await app({**scope, "scheme": "http", "query_string": b"", "client": ("127.0.0.1", 1)}, receive, send)
    assert b"Done." in b"".join(sent)
