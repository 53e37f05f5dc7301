"""The Responses API by WebSocket, which a project has to choose."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.e2e.calling import answer_of, ask
from tests.e2e.provider_matrix import RESPONSES
from tests.e2e.providers import deltas_of, serving
from tests.support.listener import reserved_port
from tests.support.scripted_llm import call_tools, end_early, hang, say, stream
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripted_llm import LlmRequest, Turn

pytestmark = pytest.mark.usefixtures("no_trust_store")
WEBSOCKET = replace(RESPONSES, model="responses.gpt-4.1?transport=websocket")
REPEATED = "LLM request repeated"


async def test_server_sent_events_are_used_where_nothing_is_chosen_over_one_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, RESPONSES, lambda _: say("Done.")) as served:
        for _ in range(3):
            assert (await ask(served.url)).text == "Done."

    assert {request.body.get("type") for request in served.llm.requests} == {None}
    assert len(set(served.llm.sockets)) == 1


async def test_a_websocket_carries_text_and_tools(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if request.tool_results:
            return stream(["It ", "is 3."], gate)
        return call_tools([("tools__add", {"a": 1, "b": 2})])

    async with serving(tmp_path, WEBSOCKET, script) as served, served.in_flight() as call:
        await gate.wait_for_entered()
        gate.open()
        answer = answer_of(await call.reply())

    assert answer.text == "".join(deltas_of(call)) == "It is 3."
    assert {request.body["type"] for request in served.llm.requests} == {"response.create"}


async def test_a_refused_handshake_is_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path, WEBSOCKET, [say("At last.")]) as served:
        served.llm.handshakes = [served.llm.refuse(429), served.llm.refuse(503)]
        answer = await ask(served.url)

    assert (answer.text, [record.message for record in caplog.records].count(REPEATED)) == ("At last.", 2)


async def test_events_that_take_the_place_of_a_websocket_are_repeated_by_the_library_alone(tmp_path: Path) -> None:
    either = replace(RESPONSES, model="responses.gpt-4.1?transport=auto")
    async with serving(tmp_path, either, lambda _: served.llm.refuse(429, retry_after="0.01")) as served:
        served.llm.handshakes = [served.llm.refuse(503), served.llm.refuse(503)]
        answer = await ask(served.url)

    assert (answer.is_error, len(served.llm.requests), len(served.llm.handshakes)) == (True, 3, 1)


async def test_a_handshake_with_a_wrong_key_is_not(tmp_path: Path) -> None:
    async with serving(tmp_path, WEBSOCKET, [say("never")]) as served:
        served.llm.handshakes = [served.llm.refuse(401, "wrong key")]
        answer = await ask(served.url)

    assert (answer.is_error, answer.meta["stop_reason"], served.llm.handshakes) == (True, "llm_error", [])
    assert served.llm.requests == []


async def test_a_refused_connection_is_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with reserved_port() as port:
        elsewhere = replace(
            WEBSOCKET, config={name: value.replace("{url}", f"http://127.0.0.1:{port}") for name, value in CONFIG}
        )
        async with serving(tmp_path, elsewhere, []) as served:
            answer = await ask(served.url)

    assert (answer.is_error, answer.meta["stop_reason"]) == (True, "llm_error")
    assert [record.message for record in caplog.records].count(REPEATED) == 2
    assert str(port) not in answer.text


CONFIG = RESPONSES.config.items()


async def test_an_answer_that_never_ends_is_a_timeout(tmp_path: Path) -> None:
    async with serving(tmp_path, WEBSOCKET, [end_early()], params="streaming_timeout=0.5") as served:
        answer = await ask(served.url)

    assert (answer.is_error, answer.meta["stop_reason"]) == (True, "llm_timeout")


async def test_a_call_whose_client_leaves_closes_its_socket(tmp_path: Path) -> None:
    gate = Gate()
    async with serving(tmp_path, WEBSOCKET, lambda _: hang(gate)) as served:
        async with served.in_flight() as call:
            await gate.wait_for_entered()
            await call.vanish()
        await served.llm.wait_for_aborted()
