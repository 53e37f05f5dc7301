"""Many calls at once: nothing is mixed up, and limits hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from tests.support.calling import EACH_VERSION, Answer, answer_of, ask
from tests.support.clients import RawClient, raw_client
from tests.support.gateway import Agent, gateway_and_model
from tests.support.pairs import pairs
from tests.support.scripted_llm import Script, hang, say
from tests.support.waiting import Gate

CALLS = 100
AT_ONCE = 50


@pytest.mark.crowd
async def test_no_answer_holds_anything_of_another_call(tmp_path: Path) -> None:
    async with gateway_and_model(tmp_path, {"echo": Agent()}) as (served, llm):

        async def one(number: int, client: RawClient) -> tuple[int, Answer]:
            rows = [("user", f"first-{number}"), ("assistant", f"noted-{number}"), ("user", f"second-{number}")]
            history = [{"role": role, "content": content} for role, content in rows]
            arguments = {"message": f"now-{number}", "history": history, "conversation_id": f"c-{number}"}
            return number, answer_of(await client.call_tool("echo", arguments))

        answers = await in_workers(served.url("echo"), range(CALLS), one)

    assert [answer for _, answer in answers if answer.is_error] == []
    heard = {number: answer.text for number, answer in answers}
    assert heard == {number: f"heard: first-{number} | second-{number} | now-{number}" for number in range(CALLS)}
    assert all(answer.meta["conversation_id"] == f"c-{number}" for number, answer in answers)
    assert len({answer.meta["call_id"] for _, answer in answers}) == CALLS
    assert {answer.meta["iterations"] for _, answer in answers} == {1}
    assert llm.most_in_flight > AT_ONCE / 5  # they did run at once


def stays(gate: Gate) -> Script:
    return lambda request: hang(gate) if request.last_user_text == "stay" else say("hi")


@pairs({"limited": ["gateway", "agent"], "version": EACH_VERSION})
async def test_call_over_the_limit_waits_and_is_then_told_to_try_again(
    limited: str, version: str, tmp_path: Path
) -> None:
    gate = Gate()
    settings = {"max_in_flight": 2} if limited == "agent" else {}
    gateway = {"queue_seconds": 0.05, **({"max_in_flight": 2} if limited == "gateway" else {})}
    agents = {"small": Agent(settings=settings), "other": Agent()}
    async with (
        gateway_and_model(tmp_path, agents, stays(gate), gateway=gateway) as (served, _),
        asyncio.TaskGroup() as group,
    ):
        staying = [group.create_task(ask(served.url("small"), "stay", version=version)) for _ in range(2)]
        await gate.wait_for_entered(2)
        async with raw_client(served.url("small"), protocol_version=version) as client:
            reply = await client.call_tool("send_message", {"message": "room for me?"})
        elsewhere = await ask(served.url("other"), "and here?", version=version)
        assert served.metric("pallas_calls_in_flight", agent="small") == 2
        gate.open()
        await asyncio.wait(staying)
        afterwards = await ask(served.url("small"), "and now?", version=version)

        assert reply.status == 200
        assert "busy, try again" in answer_of(reply).text
        assert answer_of(reply).is_error
        assert elsewhere.is_error is (limited == "gateway")
        assert (afterwards.text, afterwards.is_error) == ("hi", False)
        assert served.metric("pallas_calls_refused_total", agent="small", reason="busy") == 1
        assert served.metric("pallas_send_message_total", agent="small", outcome="error") == 1


@pytest.mark.crowd
async def test_hanging_calls_of_one_agent_do_not_delay_another(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        gateway_and_model(tmp_path, {"stuck": Agent(), "free": Agent()}, stays(gate)) as (served, _),
        asyncio.TaskGroup() as group,
    ):
        for number in range(30):
            group.create_task(ask(served.url("stuck"), "stay", version=EACH_VERSION[number % 2]))
        await gate.wait_for_entered(30, timeout_seconds=90)
        for version in EACH_VERSION:
            free = await asyncio.wait_for(ask(served.url("free"), version=version), 10)
            assert free.text == "hi"
        assert gate.waiting == 30
        gate.open()


async def in_workers[T](url: str, numbers: Iterable[int], work: Callable[[int, RawClient], Awaitable[T]]) -> list[T]:
    """`work` for every number, `AT_ONCE` at a time, half of the workers in each era; results in order."""
    remaining, results = iter(numbers), {}

    async def worker(version: str) -> None:
        async with raw_client(url, protocol_version=version) as client:
            for number in remaining:
                results[number] = await work(number, client)

    async with asyncio.TaskGroup() as group:
        for index in range(AT_ONCE):
            group.create_task(worker(EACH_VERSION[index % 2]))
    return [result for _, result in sorted(results.items())]
