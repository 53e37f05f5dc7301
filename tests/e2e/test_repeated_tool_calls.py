"""A tool call that meets a server which restarts is sent once more, where nothing has run yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.errors import STOPPING
from pallas_gateway.runtime.downstreams.connections import connecting
from tests.support.answering_calls import CallAnswer, answering_calls
from tests.support.calling import ask
from tests.support.downstreams import Era, stateless_downstream
from tests.support.gateway import Limits
from tests.support.one_user import ADD, use, world

DRAINING = CallAnswer(503, json.dumps({"error": STOPPING}).encode(), {"Retry-After": "0"})
ERAS = pytest.mark.parametrize("era", ["initialize", "modern"])


@pytest.fixture(autouse=True)
def a_busy_machine_may_be_slow_to_list_tools(limits: Limits) -> None:
    limits.runtime.attach_seconds = limits.runtime.listings.ask_seconds = 20


@ERAS
async def test_a_call_of_a_stopping_gateway_is_sent_again_to_the_next_one(era: Era, tmp_path: Path) -> None:
    async with stateless_downstream(era=era) as tools, world(tmp_path, use(ADD), tools=tools.url) as it:
        refused = answering_calls(tools, DRAINING, at_most=1)
        await ask(it.url)
        results = it.tool_results()

    assert ([json.loads(result) for result in results], len(refused)) == ([{"result": 3}], 1)


@ERAS
@pytest.mark.parametrize(
    ("refusal", "sent"),
    [
        (DRAINING, 2),
        (CallAnswer(503, DRAINING.body), 1),
        (CallAnswer(503, b'{"error": "overloaded"}', {"Retry-After": "0"}), 1),
        (CallAnswer(500, DRAINING.body, {"Retry-After": "0"}), 1),
    ],
    ids=["twice", "no Retry-After", "no gateway", "another status"],
)
async def test_it_is_sent_once_more_at_most_and_only_where_nothing_has_run(
    refusal: CallAnswer, sent: int, era: Era, tmp_path: Path
) -> None:
    async with stateless_downstream(era=era) as tools, world(tmp_path, use(ADD), tools=tools.url) as it:
        refused = answering_calls(tools, refusal)
        await ask(it.url)
        [result] = it.tool_results()

    assert len(refused) == sent
    assert f"HTTP {refusal.status}" in result


@ERAS
async def test_a_call_that_cannot_connect_is_sent_again_to_the_server_that_has_come_back(
    era: Era, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[Any] = []
    async with stateless_downstream(era=era) as tools, world(tmp_path, use(ADD), tools=tools.url) as it:

        async def come_back(server: str, why: str, seconds: float) -> None:
            paused.append((server, why, seconds))
            await tools.start()

        monkeypatch.setattr(connecting, "pause_before_repeat", come_back)
        await ask(it.url)  # which lists the tools
        await tools.stop()
        await ask(it.url)
        results = it.tool_results()

    assert [json.loads(result) for result in results] == [{"result": 3}]
    assert paused == [("tools", "connection refused", connecting.REFUSED_WAIT_SECONDS)]
