"""Many calls that ask: each question reaches its own caller, each answer its own call, and nothing is left."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.askable_callers import CAN_BE_ASKED, asked_at
from tests.support.asking import stdio_settings
from tests.support.asking_gateways import asking_gateway, gateway_of, questions
from tests.support.calling import answer_of, ask
from tests.support.clients import (
    INITIALIZE_VERSIONS,
    MODERN_VERSION,
    RawCall,
    RawClient,
    RawReply,
    raw_client,
    tool_params,
)
from tests.support.crowds import crowd
from tests.support.gateway import Agent, Running, until_idle
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.scripted_llm import LlmRequest, Script, Turn, call_tools, hang, say
from tests.support.waiting import Gate, eventually

pytestmark = pytest.mark.usefixtures("patience", "brief_sockets")
PATIENCE_SECONDS = 300
SENTINEL = re.compile(r"sentinel-(\d+)")
INITIALIZE_VERSION = INITIALIZE_VERSIONS[-1]


def asks_what_it_is_told(request: LlmRequest) -> Turn:
    message, results = request.last_user_text, list(request.tool_results.values())
    form = {"fields": [{"name": "name", "type": "text"}, {"name": "age", "type": "number"}]}
    of_server, of_agent = ("asking__name", {"message": message}), ("__human_input", {"message": message, **form})
    return say(results[0]) if results else call_tools([of_server if "server" in message else of_agent])


@dataclass
class Caller:
    """One of many callers, with a bearer and a sentinel of its own. `seen` is all that it was sent."""

    number: int
    url: str
    all_asked: asyncio.Barrier
    seen: str = ""

    @property
    def call(self) -> dict[str, Any]:
        asker = "server" if self.number % 4 < 2 else "agent"
        return tool_params("send_message", {"message": f"question of the {asker} for sentinel-{self.number}"})

    @property
    def answer(self) -> dict[str, Any]:
        return {"action": "accept", "content": {"name": f"sentinel-{self.number}", "age": self.number}}

    async def run(self) -> None:
        version = MODERN_VERSION if self.number % 2 else INITIALIZE_VERSION
        async with raw_client(self.url, protocol_version=version, bearer=f"bearer-{self.number}") as client:
            reply = await (self._by_repeating(client) if client.is_modern else self._on_the_stream(client))
        self.seen += str(reply.messages)
        assert f'"sentinel-{self.number}"' in answer_of(reply).text

    async def _on_the_stream(self, client: RawClient) -> RawReply:
        headers = {"mcp-protocol-version": INITIALIZE_VERSION, "mcp-session-id": f"session-{self.number}.f"}
        async with client.in_flight("tools/call", self.call, headers=headers) as call:
            question = await question_on(call)
            await self.all_asked.wait()
            body = {"jsonrpc": "2.0", "id": question["id"], "result": self.answer}
            taken = await client.post(body, headers={**client.headers_of(""), **headers})
            assert taken.status_code == 202
            return await call.reply(PATIENCE_SECONDS)

    async def _by_repeating(self, client: RawClient) -> RawReply:
        asked = await self._reply(client, self.call)
        self.seen += str(asked.messages)
        (id_,) = asked.result["inputRequests"]
        state = asked.result["requestState"]
        await self.all_asked.wait()
        more = {"requestState": state, "inputResponses": {id_: self.answer}}
        return await self._reply(client, {**self.call, **more})

    async def _reply(self, client: RawClient, params: dict[str, Any]) -> RawReply:
        async with client.in_flight("tools/call", params, meta=CAN_BE_ASKED) as call:
            return await call.reply(PATIENCE_SECONDS)


@pytest.mark.crowd
@crowd(12, 200)
async def test_many_calls_that_ask_at_once_get_each_their_own_question_and_answer(size: int, tmp_path: Path) -> None:
    agent = Agent(["asking"], decorator="human_input=True")
    async with asking_gateway(tmp_path, agent, script=asks_what_it_is_told) as (served, downstream):
        for version in (INITIALIZE_VERSION, MODERN_VERSION):
            await ask(served.url("user"), "warm", version=version)
        before = snapshot()
        all_asked = asyncio.Barrier(size + 1)
        callers = [Caller(number, served.url("user"), all_asked) for number in range(size)]
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            for caller in callers:
                group.create_task(caller.run())
            await eventually(lambda: all_asked.n_waiting == size, PATIENCE_SECONDS, what="every caller asked")
            assert served.metric("pallas_questions_open", agent="user") == size
            assert served.gateway.calls.waiting.count == size
            await all_asked.wait()
        assert {caller.number: set(SENTINEL.findall(caller.seen)) for caller in callers} == {
            number: {str(number)} for number in range(size)
        }
        await until_idle(served)
        await assert_nothing_left(before)
        assert_no_question_left(served)
        given = sorted(one["content"]["age"] for one in downstream.answers if one["content"])
        assert given == [number for number in range(size) if number % 4 < 2]
        assert questions(served, "form", "accepted") == questions(served, "human_input", "accepted") == size / 2


def assert_no_question_left(served: Running) -> None:
    sessions, calls = served.gateway.sessions, served.gateway.calls
    assert (len(sessions.waiting_calls), len(sessions.answers), calls.waiting.count) == (0, 0, 0)
    assert served.metric("pallas_questions_open", agent="user") == 0
    assert served.metric("pallas_calls_in_flight", agent="user") == 0


async def test_programs_that_ask_end_with_the_calls_of_clients_that_leave(tmp_path: Path) -> None:
    gate = Gate()
    server = {**stdio_settings("initialize"), "warm": 0}
    async with gateway_of(tmp_path, server, script=held_after_answers(gate)) as served:
        url = served.url("user")
        await ask(url, "warm")
        before = snapshot()
        await leave_asked(url)
        await leave_after_answer(url, gate)
        await until_idle(served)
        await assert_nothing_left(before)
        assert_no_question_left(served)


def held_after_answers(gate: Gate) -> Script:
    def script(request: LlmRequest) -> Turn:
        if request.last_user_text == "warm":
            return say("warm")
        return hang(gate) if request.tool_results else call_tools([("asking__name", {})])

    return script


async def leave_asked(url: str) -> None:
    """Call in the initialize era, and hang up when the question comes."""
    headers = {"mcp-protocol-version": INITIALIZE_VERSION, "mcp-session-id": "session.f"}
    async with (
        raw_client(url, protocol_version=INITIALIZE_VERSION, headers=headers) as client,
        client.in_flight("tools/call", tool_params("send_message", {"message": "name"})) as call,
    ):
        await question_on(call)


async def question_on(call: RawCall) -> dict[str, Any]:
    """Return the question on the stream of a call, once it is there."""
    while not (asked := [one for one in call.messages if one.get("method") == "elicitation/create"]):
        await call.wait_for_notifications(len(call.notifications) + 1, PATIENCE_SECONDS)
    return asked[0]


async def leave_after_answer(url: str, gate: Gate) -> None:
    """Call in 2026-07-28, answer the question, and hang up while the model works on the answer."""
    repeating = asyncio.create_task((await asked_at(url)).repeat())
    await gate.wait_for_entered()
    repeating.cancel()
    await asyncio.wait({repeating})
