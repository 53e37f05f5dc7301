"""Calls over every provider of models, in its own wire format."""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, override

import httpx
import pytest

from pallas_gateway.runtime.instance import FastAgentInstance
from pallas_gateway.telemetry.logs import CallFields, HumanFormatter, JsonFormatter
from tests.support.calling import answer_of, ask
from tests.support.gateway import until_idle
from tests.support.provider_gateways import KEY, Provider, Served, deltas_of, serving
from tests.support.provider_matrix import BEDROCK, GENERIC, GROQ, HF, XAI, in_shared_gateways
from tests.support.reachable import reachable
from tests.support.scripted_llm import (
    LlmRequest,
    Turn,
    Usage,
    call_tools,
    cut,
    error_event,
    garbage,
    hang,
    say,
    stream,
    text_of,
)
from tests.support.waiting import Gate

pytestmark = pytest.mark.asyncio(loop_scope="module")
BLACK = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
GREY = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGM4AQAAygDJmcpdfgAAAABJRU5ErkJggg=="


@in_shared_gateways("answer")
async def test_it_answers(shared: Served) -> None:
    async with shared.playing([say("Hello.")]) as served:
        answer = await ask(served.url, "hi")

    assert (answer.text, answer.is_error) == ("Hello.", False)
    assert served.llm.requests[0].last_user_text == "hi"
    assert served.outcomes == (1, 0)


@in_shared_gateways("history")
async def test_earlier_messages_go_along_in_order(shared: Served) -> None:
    history = [{"role": "user", "content": "I am Ann."}, {"role": "assistant", "content": "Hello, Ann."}]
    async with shared.playing(lambda _: say("Ann.")) as served:
        await ask(served.url, "Who am I?", history=history)
        await ask(served.url, "Who?")

    first, second = (conversation(request) for request in served.llm.requests)
    assert first == [("user", "I am Ann."), ("assistant", "Hello, Ann."), ("user", "Who am I?")]
    assert second == [("user", "Who?")]


def conversation(request: LlmRequest) -> list[tuple[str, str]]:
    turns = [(one["role"], text_of(one)) for one in request.messages]
    return [turn for turn in turns if turn[0] in {"user", "assistant"}]


@in_shared_gateways("history")
async def test_a_call_reaches_nothing_of_an_earlier_one(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    instances: list[tuple[dict[int, object], dict[int, object]]] = []
    answer = FastAgentInstance._answer

    async def noting(self: Any, call: Any) -> Any:
        given = [one := self._agents["solo"].config.default_request_params, *vars(one).values()]  # of the agent
        before = reachable(self._agents, but=given)
        reply = await answer(self, call)
        instances.append((before, reachable(self._agents, but=given)))
        return reply

    monkeypatch.setattr(FastAgentInstance, "_answer", noting)
    async with shared.playing(both_tools) as served:
        for number in range(4):
            await ask(served.url, f"{number}")
    for (_, earlier), (later, _) in itertools.combinations(instances, 2):
        assert {type(later[key]) for key in later.keys() & earlier.keys()} == set()
        assert len(later) > 100
    assert len(instances) == 4


@in_shared_gateways("images")
async def test_images_leave_as_they_came(shared: Served) -> None:
    async with shared.playing(lambda _: say("A cat.")) as served:
        earlier = [
            {"role": "user", "content": "Look.", "images": [picture(BLACK)]},
            {"role": "assistant", "content": "Yes."},
        ]
        answer = await ask(served.gateway.url("seeing"), "And?", images=[picture(GREY)], history=earlier)

    assert (answer.text, answer.is_error) == ("A cat.", False)
    assert served.llm.requests[0].images == [("image/png", BLACK), ("image/png", GREY)]


def pdf(text: str, **more: str) -> dict[str, str]:
    data = base64.b64encode(f"%PDF-1.7 {text}".encode()).decode()
    return {"data": data, "mime_type": "application/pdf", **more}


def picture(data: str) -> dict[str, str]:
    return {"data": data, "mime_type": "image/png"}


@pytest.mark.parametrize(
    ("provider", "image", "declared"),
    [
        *((one, picture(BLACK), {}) for one in (GENERIC, GROQ)),
        (BEDROCK, picture(BLACK), {"model_capabilities": {"vision": True}}),
        *((one, pdf("one"), {}) for one in (GENERIC, GROQ, BEDROCK, XAI)),
    ],
    ids=str,
)
async def test_images_and_documents_for_a_model_that_gets_none_are_refused(
    provider: Provider, image: dict[str, str], declared: Mapping[str, Any], tmp_path: Path
) -> None:
    async with serving(tmp_path, provider, [], **declared) as served:
        answer = await ask(served.url, "And?", images=[image])

    assert (answer.is_error, answer.meta["stop_reason"]) == (True, "images_unsupported")


@in_shared_gateways("documents")
async def test_documents_leave_as_they_came_and_only_within_the_request(shared: Served) -> None:
    async with shared.playing(lambda _: say("A report.")) as served:
        earlier = [
            {"role": "user", "content": "Read.", "images": [pdf("one")]},
            {"role": "assistant", "content": "Yes."},
        ]
        answer = await ask(served.gateway.url("seeing"), "And?", images=[pdf("two", name="Größe.pdf")], history=earlier)

    assert (answer.text, answer.is_error) == ("A report.", False)
    [request] = served.llm.requests
    assert [data for _, data in request.documents] == [pdf("one")["data"], pdf("two")["data"]]
    assert {name for name, _ in request.documents} in ({"document.pdf", "Größe.pdf"}, {None})


@in_shared_gateways("usage")
async def test_tokens_are_counted_by_disjoint_kinds(shared: Served) -> None:
    kinds = shared.provider.kinds
    parts = {name: tokens for name, tokens in {"cached": 4, "written": 6, "reasoning": 3}.items() if name in kinds}
    usage = Usage(prompt=30, completion=7, **parts)
    async with shared.playing([say("Hello.", usage=usage)]) as served:
        answer = await ask(served.url, "hi")

    read, written, reasoning = (parts.get(name, 0) for name in ("cached", "written", "reasoning"))
    spent = {
        "input": 30 - read - written,
        "cache_read": read,
        "cache_write": written,
        "output": 7,
        "reasoning": reasoning,
    }
    assert answer.meta["usage"] == spent
    model = served.provider.wire_model
    labels = {"agent": "solo", "model": model}
    assert {kind: served.counted("pallas_llm_tokens_total", kind=kind, **labels) for kind in spent} == spent
    assert served.counted("pallas_llm_turns_total", **labels) == 1


@in_shared_gateways("connections")
async def test_calls_share_a_connection(shared: Served) -> None:
    async with shared.playing(lambda _: say("Done.")) as served:
        for _ in range(3):
            assert (await ask(served.url)).text == "Done."

    assert len(set(served.llm.sockets)) == 1


@in_shared_gateways("parallel tools")
async def test_parallel_tool_calls_each_get_their_own_arguments(shared: Served) -> None:
    async with shared.playing(both_tools) as served:
        answer = await ask(served.url, "Both?")

    assert answer.text == "done"
    assert sorted(call.tool or "" for call in served.tools.recorder.calls()) == ["add", "echo"]
    second = served.llm.requests[1]
    if "previous_response_id" not in second.body:  # a WebSocket keeps the conversation of its call
        assert (second.last_user_text, second.called) == ("Both?", ["tools__echo", "tools__add"])
    results = "".join(second.tool_results.values())
    assert "Ann" in results
    assert "3" in results


def both_tools(request: LlmRequest) -> Turn:
    if request.tool_results:
        return say("done")
    return call_tools([("tools__echo", {"text": "Ann"}), ("tools__add", {"a": 1, "b": 2})], text="Both.")


@in_shared_gateways("deltas")
async def test_live_text_comes_while_the_model_speaks(shared: Served) -> None:
    gate = Gate()
    async with (
        shared.playing([stream(["Once ", "upon ", "a time."], gate)]) as served,
        served.in_flight() as call,
    ):
        await call.wait_for_notifications(2)
        assert deltas_of(call) == ["Once "]
        gate.open()
        answer = answer_of(await call.reply())

    assert answer.text == "".join(deltas_of(call)) == "Once upon a time."


@in_shared_gateways("cancellation")
@pytest.mark.parametrize("has_begun", [False, True], ids=["request", "stream"])
async def test_a_call_whose_client_leaves_ends_its_request_and_is_gone(shared: Served, *, has_begun: bool) -> None:
    gate = Gate()
    turn = stream(["Once ", "upon."], gate) if has_begun else hang(gate)
    async with shared.playing(lambda _: turn) as served:
        async with served.in_flight() as call:
            await gate.wait_for_entered()
            await call.vanish()
        await served.llm.wait_for_aborted()
        await until_idle(served.gateway)
        assert len(served.llm.requests) == 1
        assert served.outcomes == (0, 1)
        assert served.gateway.metric("pallas_calls_in_flight", agent="solo") == 0


@in_shared_gateways("silence")
async def test_the_gateway_answers_others_while_a_model_is_silent(shared: Served) -> None:
    gate = Gate()
    async with shared.playing(lambda _: hang(gate, say("At last."))) as served, served.in_flight() as call:
        await gate.wait_for_entered()
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{served.gateway.base_url}/livez")).status_code == 200
        gate.open()
        assert answer_of(await call.reply()).text == "At last."


@in_shared_gateways("caller's token")
async def test_a_callers_token_is_the_key_of_a_provider_that_takes_it_and_unknown_to_others(shared: Served) -> None:
    gate = Gate()
    async with shared.playing(lambda request: hang(gate, say(f"heard {request.last_user_text}"))) as served:
        async with asyncio.TaskGroup() as group:
            tokens = {"Ann": "token-of-ann", "Ben": "token-of-ben", "anyone": None}
            calls = {name: group.create_task(ask(served.url, name, bearer=token)) for name, token in tokens.items()}
            await gate.wait_for_entered(len(tokens))
            gate.open()
        assert [call.result().text for call in calls.values()] == [f"heard {name}" for name in tokens]
        assert (await ask(served.url, "anyone")).text == "heard anyone"

    requests = served.llm.requests
    sent = {text for request in requests for text in tokens.values() if text and text in str(request.headers)}
    if served.provider.name != HF.name:
        assert sent == set()
        return
    assert {request.last_user_text: request.bearer for request in requests} == {**tokens, "anyone": KEY}
    sockets = [socket for request, socket in zip(requests, served.llm.sockets, strict=True) if request.bearer != KEY]
    assert len({*sockets}) == len(sockets) == 2
    assert served.llm.sockets[-1] not in sockets


@in_shared_gateways("log")
async def test_no_key_no_token_and_no_word_of_a_conversation_is_in_the_log(shared: Served) -> None:
    turns: list[Turn] = [
        call_tools([("tools__echo", {"text": "word-of-arguments"})], text="word-of-a-turn"),
        say("word-of-an-answer"),
        *(shared.llm.refuse(status, f"wrong key {KEY}") for status in (400, 401)),
        error_event(f"too many for {KEY}"),
        cut(["word-of-a-stream"]),
        garbage(),
    ]
    with written() as records:
        async with shared.playing(lambda _: turns.pop(0) if turns else say("word-of-an-answer")) as served:
            history = [{"role": "user", "content": "word-of-history"}]
            for _ in range(6):
                await ask(served.url, "word-of-a-question", bearer="token-of-a-caller", history=history)

    assert any("generation failed" in text or "LLM" in text for _, text in records)
    assert [text for _, text in records if KEY in text or "token-of-a-caller" in text] == []
    assert [text for level, text in records if level >= logging.INFO and "word-of" in text] == []


@contextmanager
def written() -> Iterator[list[tuple[int, str]]]:
    """Collect what both forms of the log would hold at DEBUG, each line with its level."""

    class Lines(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            records.extend((record.levelno, one.format(record)) for one in (JsonFormatter(), HumanFormatter()))

    records: list[tuple[int, str]] = []
    handler, root = Lines(), logging.getLogger()
    handler.addFilter(CallFields())
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield records
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
