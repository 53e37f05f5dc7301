"""No silence while a call with a token runs: whatever it waits for, clients and proxies that give up soon do not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path

import httpx
import pytest

from tests.support.clients import RawCall
from tests.support.fair_time import hastened
from tests.support.gateway import Agent
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say
from tests.support.waiting import Gate, eventually
from tests.support.watching import EACH_VERSION, Watched, calling, check_order, stage

BEAT = {"heartbeat_seconds": 0.2}
PATIENCE = 5.0  # seconds without a byte after which the clients and the proxy of these tests give up
LONG = 28  # heartbeats: more than the patience
NO_TOKEN = {"io.modelcontextprotocol/logLevel": "info"}


def beats(messages: Sequence[str], by: str) -> list[int]:
    """The seconds that the heartbeats of `by` tell of."""
    return [int(found[1]) for one in messages if (found := re.fullmatch(rf"{re.escape(by)} working \((\d+)s\)", one))]


async def until_beaten(call: RawCall, count: int, by: str = "solo") -> None:
    """Return once `count` heartbeats have come, on a hastened clock; each of them restarts the wait."""
    for number in range(1, count + 1):
        beaten = eventually(lambda: _beaten(call, by) >= number, what=f"heartbeat {number} of {by}")  # noqa: B023  awaited here
        await hastened(beaten, BEAT["heartbeat_seconds"] / 2)


def _beaten(call: RawCall, by: str) -> int:
    return len(beats([one["params"].get("message", "") for one in call.notifications], by))


@pytest.mark.parametrize("version", EACH_VERSION)
@pytest.mark.parametrize("waits_for", ["model", "tool"])
async def test_heartbeats_come_while_a_call_waits(waits_for: str, version: str, tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if waits_for == "model":
            return hang(gate, say("done"))
        return say("done") if request.tool_results else call_tools([("tools__slow", {})])

    async with stage(tmp_path, script, gateway=BEAT) as staged:
        async with calling(staged.url("solo"), version=version) as (_, call):
            await until_beaten(call, 6)
            gate.open()
            staged.tools.gate.open()
            watched = Watched(await call.reply())

        check_order(watched.reply)
        told = beats(watched.progress, "solo")
        assert told == sorted(told)
        assert told[-1] >= 1
        assert staged.served.metric("pallas_heartbeats_total", agent="solo") == len(told)
    assert watched.text == "done"
    assert "solo step 1 (llm)" in watched.progress


async def test_heartbeats_come_while_a_call_waits_for_its_turn(tmp_path: Path) -> None:
    gate = Gate()
    one_at_a_time = {**BEAT, "max_in_flight": 1, "queue_seconds": 30}
    async with stage(tmp_path, lambda _: hang(gate), gateway=one_at_a_time) as staged, calling(staged.url("solo")):
        await gate.wait_for_entered()  # else the second call could take the slot
        async with calling(staged.url("solo")) as (_, queued):
            await until_beaten(queued, 3)
            gate.open()
            watched = Watched(await queued.reply())

    assert len(beats(watched.progress[:3], "solo")) == 3


async def test_heartbeats_of_a_peer_are_progress_of_the_tool_that_called_it(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if request.last_user_text == "inner":
            return hang(gate)
        return say("done") if request.tool_results else call_tools([("peer__send_message", {"message": "inner"})])

    with reserved_port() as port:
        agents = {"root": Agent(["peer"]), "peer": Agent(settings={"port": port})}
        servers = {"peer": {"url": f"http://localhost:{port}/mcp"}}
        async with (
            stage(tmp_path, script, agents, peers=servers, gateway=BEAT) as staged,
            calling(staged.url("root")) as (_, call),
        ):
            await until_beaten(call, 3, "peer/send_message: peer")
            gate.open()
            check_order(await call.reply())


async def test_a_call_without_a_token_hears_no_heartbeat(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, lambda _: hang(gate), gateway=BEAT) as staged:
        async with (
            calling(staged.url("solo")) as (_, hears),
            calling(staged.url("solo"), meta=NO_TOKEN) as (_, hears_nothing),
        ):
            await gate.wait_for_entered(2)
            await until_beaten(hears, 4)
            gate.open()
            heard, unheard = Watched(await hears.reply()), Watched(await hears_nothing.reply())
        counted = staged.served.metric("pallas_heartbeats_total", agent="solo")

    assert unheard.progress == []
    assert counted == len(beats(heard.progress, "solo"))


async def test_a_call_that_is_never_silent_needs_no_heartbeat(tmp_path: Path) -> None:
    async with stage(tmp_path, lambda _: say("hello"), gateway={"heartbeat_seconds": 60}) as staged:
        async with calling(staged.url("solo")) as (_, call):
            watched = Watched(await call.reply())

        assert staged.served.metric("pallas_heartbeats_total", agent="solo") == 0
    assert watched.progress == ["solo step 1 (llm)"]


async def test_clients_that_soon_give_up_survive_a_long_call_if_they_ask_for_progress(tmp_path: Path) -> None:
    """As do proxies: tests/deploy/test_ingress.py has those that pass progress on."""
    gate = Gate()
    async with stage(tmp_path, lambda _: hang(gate, say("done")), gateway=BEAT) as staged, AsyncExitStack() as stack:
        calls: dict[bool, list[RawCall]] = {True: [], False: []}
        for version, is_patient in product(EACH_VERSION, calls):
            meta = None if is_patient else NO_TOKEN
            call = calling(staged.url("solo"), version=version, meta=meta, read_seconds=PATIENCE)
            calls[is_patient].append((await stack.enter_async_context(call))[1])
        for one in calls[True]:
            await until_beaten(one, LONG)
        for one in calls[False]:
            with pytest.raises(httpx.ReadTimeout):
                await one.reply()
        gate.open()
        answers = [Watched(await one.reply()) for one in calls[True]]

    assert [answer.text for answer in answers] == ["done", "done"]
