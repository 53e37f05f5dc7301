"""Calls over every provider of models, in its own wire format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.e2e.calling import answer_of, ask
from tests.e2e.provider_matrix import GEMINI, over_providers
from tests.e2e.providers import Provider, deltas_of, serving
from tests.support.providers.gemini import Gemini
from tests.support.scripted_llm import Usage, call_tools, hang, say, stream
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripted_llm import LlmRequest, Turn

pytestmark = pytest.mark.usefixtures("no_trust_store")


@over_providers("answer")
async def test_it_answers_and_its_tokens_are_counted(provider: Provider, tmp_path: Path) -> None:
    cached = None if provider is GEMINI else 4
    usage = Usage(prompt=30, completion=7, cached=cached)
    async with serving(tmp_path, provider, [say("Hello.", usage=usage)]) as served:
        answer = await ask(served.url, "hi")

    assert (answer.text, answer.is_error) == ("Hello.", False)
    assert served.llm.requests[0].last_user_text == "hi"
    spent = answer.meta["usage"]
    assert (spent["input"] + spent["cache_read"] + spent["cache_write"], spent["output"]) == (30, 7)
    assert spent["cache_read"] == (cached or 0)


@over_providers("parallel tools")
async def test_parallel_tool_calls_each_get_their_own_arguments(provider: Provider, tmp_path: Path) -> None:
    async with serving(tmp_path, provider, both_tools) as served:
        answer = await ask(served.url)

    assert answer.text == "done"
    assert sorted(call.tool or "" for call in served.tools.recorder.calls()) == ["add", "echo"]
    results = "".join(served.llm.requests[1].tool_results.values())
    assert "Ann" in results
    assert "3" in results


@pytest.mark.parametrize("dialect", [Gemini(a, b) for a in (True, False) for b in (True, False)], ids=str)
async def test_gemini_parallel_tool_calls_in_every_form(dialect: Gemini, tmp_path: Path) -> None:
    provider = Provider(GEMINI.name, GEMINI.model, dialect, GEMINI.config)
    async with serving(tmp_path, provider, both_tools) as served:
        answer = await ask(served.url)

    assert answer.text == "done"
    assert sorted(call.tool or "" for call in served.tools.recorder.calls()) == ["add", "echo"]


def both_tools(request: LlmRequest) -> Turn:
    if request.tool_results:
        return say("done")
    return call_tools([("tools__echo", {"text": "Ann"}), ("tools__add", {"a": 1, "b": 2})], text="Both.")


@over_providers("deltas")
async def test_live_text_comes_while_the_model_speaks(provider: Provider, tmp_path: Path) -> None:
    gate = Gate()
    async with (
        serving(tmp_path, provider, [stream(["Once ", "upon ", "a time."], gate)]) as served,
        served.in_flight() as call,
    ):
        await call.wait_for_notifications(2)
        assert deltas_of(call) == ["Once "]
        gate.open()
        answer = answer_of(await call.reply())

    assert answer.text == "".join(deltas_of(call)) == "Once upon a time."


@over_providers("cancellation")
async def test_a_call_whose_client_leaves_ends_its_request(provider: Provider, tmp_path: Path) -> None:
    gate = Gate()
    async with serving(tmp_path, provider, lambda _: hang(gate)) as served:
        async with served.in_flight() as call:
            await gate.wait_for_entered()
            await call.vanish()
        await served.llm.wait_for_aborted()
        assert len(served.llm.requests) == 1


@over_providers("cancellation")
async def test_a_call_whose_client_leaves_ends_its_stream(provider: Provider, tmp_path: Path) -> None:
    gate = Gate()
    async with serving(tmp_path, provider, [stream(["Once ", "upon."], gate)]) as served:
        async with served.in_flight() as call:
            await gate.wait_for_entered()
            await call.vanish()
        await served.llm.wait_for_aborted()
        assert len(served.llm.requests) == 1


@over_providers("silence")
async def test_the_gateway_answers_others_while_a_model_is_silent(provider: Provider, tmp_path: Path) -> None:
    gate = Gate()
    async with serving(tmp_path, provider, lambda _: hang(gate, say("At last."))) as served, served.in_flight() as call:
        await gate.wait_for_entered()
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{served.gateway.base_url}/livez")).status_code == 200
        gate.open()
        assert answer_of(await call.reply()).text == "At last."
