"""Pauses between reads of a streamed answer, so long here that only the end of the answer ends them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.doors.mcp import notifications
from pallas_gateway.fast_paths import paced_reads
from tests.support.calling import answer_of, ask
from tests.support.provider_gateways import Provider, deltas_of, serving
from tests.support.provider_matrix import ANTHROPIC, GENERIC, RESPONSES
from tests.support.scripted_llm import Turn, call_tools, stream
from tests.support.waiting import Gate, eventually

FOR_EVER = 3600.0
PROVIDERS = pytest.mark.parametrize("provider", [GENERIC, RESPONSES, ANTHROPIC], ids=lambda one: one.name)


@pytest.fixture(autouse=True)
def _without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_reads, "PAUSE_SECONDS", FOR_EVER)
    monkeypatch.setattr(notifications, "StreamOptions", partial(StreamOptions, text_seconds=FOR_EVER))


@PROVIDERS
async def test_the_first_live_text_of_each_turn_is_not_held_back(tmp_path: Path, provider: Provider) -> None:
    gate = Gate()
    asking = call_tools([("tools__echo", {"text": "x"})], text="Looking.")
    script: list[Turn] = [asking, stream(["Found ", "it ", "there."], gate)]
    async with serving(tmp_path, provider, script) as served, served.in_flight() as call:
        await eventually(lambda: deltas_of(call) == ["Looking.", "Found "])
        gate.open()
        answer = answer_of(await call.reply())

    assert answer.text == "Found it there."
    assert "".join(deltas_of(call)) == f"Looking.{answer.text}"


@PROVIDERS
async def test_an_answer_without_live_text_is_returned_when_it_ends(tmp_path: Path, provider: Provider) -> None:
    gate = Gate()
    gate.open()
    async with serving(tmp_path, provider, [stream([f"{number} " for number in range(20)], gate)]) as served:
        answer = await ask(served.url)

    assert answer.text.split() == [str(number) for number in range(20)]
