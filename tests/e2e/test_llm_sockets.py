"""What LLM servers do to sockets that are kept: answer unasked, close them, forget them; turns share nothing else."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.calls.current import AgentCall, calling
from pallas_gateway.fast_paths import kept_anthropic_clients
from pallas_gateway.limits import LlmLimits
from tests.support.asgi import Receive, Scope, Send, headers_of
from tests.support.calling import ask
from tests.support.dialects import polyglot_llm
from tests.support.gateway import Agent, Limits, Running, running, until_idle, write_project
from tests.support.listener import serve_app
from tests.support.scripted_llm import MODEL, Script, ScriptedLlm, hang, say
from tests.support.waiting import Gate, eventually

TOKEN = "token-of-a-caller-that-has-gone"


class SocketLlm:
    """An LLM on bare sockets; its answers are numbered. `socket_of` says over which socket each request came."""

    def __init__(self, *, repeats_itself: bool = False, closes_when_used_again: bool = False) -> None:
        self.socket_of: list[int] = []
        self.unasked = asyncio.Event()
        self._repeats_itself = repeats_itself
        self._closes_when_used_again = closes_when_used_again
        self._sockets = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        self._sockets += 1
        try:
            await self._answer_all(self._sockets, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the gateway has closed it
        finally:
            writer.close()

    async def _answer_all(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(sum(int(line.partition(b":")[2]) for line in lengths))
            if not head.startswith(b"POST"):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                continue
            is_used_again = number in self.socket_of
            self.socket_of.append(number)
            if is_used_again and self._closes_when_used_again:
                return
            writer.write(_answer(f"answer {len(self.socket_of)}"))
            await writer.drain()
            if self._repeats_itself:
                self.unasked.clear()
                asyncio.get_running_loop().call_later(0.05, self._say_unasked, writer)

    def _say_unasked(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_answer("what another call was told"))
        self.unasked.set()


def _answer(text: str) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "test-model", "choices": [choice]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    return f"{head}{body}".encode()


@asynccontextmanager
async def served_with(llm: SocketLlm, path: Path) -> AsyncGenerator[Running]:
    server = await asyncio.start_server(llm.accept, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with running(write_project(path, {"one": Agent()}, llm_url=f"http://127.0.0.1:{port}/v1")) as served:
            yield served


async def test_what_an_llm_says_unasked_is_no_other_turns_answer(tmp_path: Path) -> None:
    llm = SocketLlm(repeats_itself=True)
    async with served_with(llm, tmp_path) as served:
        answers = []
        for _ in range(3):
            answers.append((await ask(served.url("one"))).text)
            await asyncio.wait_for(llm.unasked.wait(), 10)

    assert answers == ["answer 1", "answer 2", "answer 3"]
    assert len(set(llm.socket_of)) == 3


async def test_a_socket_closed_as_a_turn_begins_costs_the_turn_nothing_but_another_socket(tmp_path: Path) -> None:
    llm = SocketLlm(closes_when_used_again=True)
    async with served_with(llm, tmp_path) as served:
        assert (await ask(served.url("one"))).text == "answer 1"
        assert (await ask(served.url("one"))).text == "answer 3"

    assert llm.socket_of[0] == llm.socket_of[1] != llm.socket_of[2]


async def test_an_open_socket_does_not_remember_whose_call_opened_it(tmp_path: Path, limits: Limits) -> None:
    limits.runtime.llm = LlmLimits(keep_alive_seconds=60)
    llm = SocketLlm()
    async with served_with(llm, tmp_path) as served:
        await ask(served.url("one"), bearer=TOKEN)
        await eventually(lambda: not served.metric("pallas_instances_live", agent="one"))
        gc.collect()
        holders = [
            handle
            for handle in gc.get_objects()
            if isinstance(handle, asyncio.Handle) and not handle.cancelled() and TOKEN in _texts_of(handle)
        ]
        assert (await ask(served.url("one"))).text == "answer 2"

    assert holders == []
    assert len(set(llm.socket_of)) == 1


async def test_anthropics_sockets_are_closed_when_nobody_has_used_them_for_a_while() -> None:
    current = AgentCall(llm_limits=LlmLimits(keep_alive_seconds=0.1))
    async with polyglot_llm() as llm, kept_anthropic_clients.aio_client() as client:
        with calling(current):
            await client.get(f"{llm.base_url}/v1/models")
        connector = client._transport.client.connector
        ((socket, _),) = next(iter(connector._conns.values()))
        assert socket.is_connected()

        await eventually(lambda: not socket.is_connected(), what="the socket's end")


def _texts_of(handle: asyncio.Handle) -> list[str]:
    context: Context | None = handle._context  # type: ignore[attr-defined]
    return [value for value in context.values() if isinstance(value, str)] if context is not None else []


# --- Turns share sockets, and nothing else


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
                await ask(served.url(agent))

    assert len(baker.sockets) == 3
    assert len(set(baker.sockets)) == 1
    assert baker.cookies == []


async def test_agents_with_different_keys_do_not_share_a_client(tmp_path: Path) -> None:
    async with baking(lambda _: say("Done.")) as baker:
        agents = {"one": Agent(decorator='api_key="key-of-one"'), "two": Agent(decorator='api_key="key-of-two"')}
        async with running(write_project(tmp_path, agents, llm_url=baker.llm.base_url)) as served:
            await asyncio.gather(*(ask(served.url(agent)) for agent in ("one", "two") * 3))

    assert sorted(str(request.bearer) for request in baker.llm.requests) == ["key-of-one"] * 3 + ["key-of-two"] * 3


async def test_a_turn_cut_off_ends_its_answer_and_nobody_elses(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        baking(lambda _: hang(gate, say("Done."))) as baker,
        running(write_project(tmp_path, {"one": Agent()}, llm_url=baker.llm.base_url)) as served,
    ):
        leaving = asyncio.create_task(ask(served.url("one")))
        await gate.wait_for_entered(1)
        staying = asyncio.create_task(ask(served.url("one")))
        await gate.wait_for_entered(2)
        leaving.cancel()
        await baker.llm.wait_for_aborted(1)
        gate.open()
        assert (await staying).text == "Done."
        await until_idle(served)

    assert len(baker.llm.aborted) == 1
