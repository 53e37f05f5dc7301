"""What a server says of itself to one caller stands in the instruction of that caller's calls alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.forwarding import ANN, BOB, Noting, ask_as, world
from tests.support.asgi import AsgiApp, Message, Receive, Scope, Send, headers_of
from tests.support.downstreams import Era
from tests.support.gateway import Agent, module_source
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say
from tests.support.waiting import Gate

NAME = "name-of-caller"
SOURCE = module_source("user", Agent(["notes"])).replace("You are user.", "You serve. {{serverInstructions}}")


def naming(app: AsgiApp) -> AsgiApp:
    """Put the bearer of each request into its answer, in the place of `NAME`."""

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        bearer = headers_of(scope).get("authorization", "").removeprefix("Bearer token-of-")

        async def said(message: Message) -> None:
            if message["type"] == "http.response.body":
                message["body"] = message["body"].replace(NAME.encode(), bearer.ljust(len(NAME), ".").encode())
            await send(message)

        await app(scope, receive, said)

    return named


@pytest.mark.parametrize("era", ["modern", "initialize"])
async def test_calls_at_once_have_each_the_instructions_of_their_own_caller(era: Era, tmp_path: Path) -> None:
    gate, systems = Gate(), dict[str, set[str]]()

    def script(request: LlmRequest) -> Turn:
        who = request.last_user_text
        systems.setdefault(who, set()).add(str(request.messages[0]["content"]))
        if request.tool_results:
            return say(who)
        turn = call_tools([("notes__note", {"who": who})])
        return hang(gate, turn) if who == ANN else turn

    notes = Noting(era=era, wrapped=naming)
    notes.server.instructions = f"You speak with {NAME}"
    async with (
        notes.serve(),
        world(tmp_path, {"user": Agent(source=SOURCE)}, {"notes": notes.entry}, script=script) as it,
    ):
        for number in (1, 2):  # the second time the listings of both are kept
            held = asyncio.create_task(ask_as(it, ANN))
            await gate.wait_for_entered(number)
            await ask_as(it, BOB)
            gate.let_through()
            await held
    assert {who: len(texts) for who, texts in systems.items()} == {ANN: 1, BOB: 1}
    assert "You speak with ann..." in systems[ANN].pop()
    assert "You speak with bob..." in systems[BOB].pop()
