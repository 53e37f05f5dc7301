"""Many calls at once: nothing is mixed up, limits hold, and clients that vanish leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.support.calling import EACH_VERSION, Answer, answer_of, ask
from tests.support.clients import raw_client, tool_params
from tests.support.crowds import crowd
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, gateway_and_model, running, until_idle, write_project
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.pairs import pairs
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say, scripted_llm, stream
from tests.support.waiting import Gate, eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from tests.support.clients import RawClient
    from tests.support.gateway import Limits

CALLS = 100
AT_ONCE = 50
VANISHING_SHARE = 0.3
POINTS = ("answer", "tool", "stream")
SEED = 20260728


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


@pairs({"limited": ["gateway", "agent"], "version": EACH_VERSION})
async def test_call_over_the_limit_waits_and_is_then_told_to_try_again(
    limited: str, version: str, tmp_path: Path
) -> None:
    gate = Gate()
    async with scripted_llm(lambda request: hang(gate) if "stay" in request.last_user_text else say("hi")) as llm:
        settings = {"max_in_flight": 2} if limited == "agent" else {}
        gateway = {"queue_seconds": 0.05, **({"max_in_flight": 2} if limited == "gateway" else {})}
        agents = {"small": Agent(settings=settings), "other": Agent()}
        project = write_project(tmp_path, agents, llm_url=llm.base_url, gateway=gateway)
        async with running(project) as served, asyncio.TaskGroup() as group:
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


async def test_waiting_call_gets_the_place_that_becomes_free(tmp_path: Path) -> None:
    gate = Gate()
    async with scripted_llm(lambda _: hang(gate)) as llm:
        gateway = {"queue_seconds": 60, "max_in_flight": 1}
        project = write_project(tmp_path, {"small": Agent()}, llm_url=llm.base_url, gateway=gateway)
        async with running(project) as served, asyncio.TaskGroup() as group:
            first = group.create_task(ask(served.url("small"), "first"))
            await gate.wait_for_entered()
            second = group.create_task(ask(served.url("small"), "second"))
            gate.let_through()
            await gate.wait_for_entered(2)
            gate.let_through()

    assert [first.result().text, second.result().text] == ["released", "released"]
    assert llm.most_in_flight == 1


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_client_that_vanishes_while_waiting_gives_its_turn_away(version: str, tmp_path: Path) -> None:
    gate = Gate()
    async with scripted_llm(lambda _: hang(gate)) as llm:
        gateway = {"queue_seconds": 60, "max_in_flight": 1}
        project = write_project(tmp_path, {"small": Agent()}, llm_url=llm.base_url, gateway=gateway)
        async with running(project) as served, asyncio.TaskGroup() as group:
            first = group.create_task(ask(served.url("small"), "first"))
            await gate.wait_for_entered()
            errors_before = served.metric("pallas_send_message_total", agent="small", outcome="error")
            async with raw_client(served.url("small"), protocol_version=version) as client:
                params = tool_params("send_message", {"message": "never mind"})
                async with client.in_flight("tools/call", params):
                    await eventually(lambda: served_tasks("call ") == 2, what="the second call waiting")
            await eventually(
                lambda: served.metric("pallas_send_message_total", agent="small", outcome="error") > errors_before,
                what="the second call over",
            )
            gate.open()
            assert (await ask(served.url("small"), "third")).text == "released"
            assert (await first).text == "released"

    assert [request.last_user_text for request in llm.requests] == ["first", "third"]


@pytest.mark.crowd
async def test_hanging_calls_of_one_agent_do_not_delay_another(tmp_path: Path) -> None:
    gate = Gate()
    async with scripted_llm(lambda request: hang(gate) if request.last_user_text == "stay" else say("hi")) as llm:
        project = write_project(tmp_path, {"stuck": Agent(), "free": Agent()}, llm_url=llm.base_url)
        async with running(project) as served, asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(ask(served.url("stuck"), "stay", version=EACH_VERSION[number % 2]))
            await gate.wait_for_entered(30, timeout_seconds=90)
            for version in EACH_VERSION:
                free = await asyncio.wait_for(ask(served.url("free"), version=version), 10)
                assert free.text == "hi"
            assert gate.waiting == 30
            gate.open()


@pytest.mark.usefixtures("brief_sockets")
@pytest.mark.crowd
@crowd(30, 300)
async def test_vanished_clients_leave_nothing_behind(size: int, tmp_path: Path, limits: Limits) -> None:
    """In both eras, at seeded points: before the model answered, during a tool call, in the middle of a stream."""
    limits.runtime.attach_seconds = 60  # not what is tried here, and everybody shares one process
    points = drawn_points(size)
    vanishing = Vanishing()
    async with scripted_llm(vanishing.script) as llm, stateless_downstream() as tools:
        servers = {"tools": {"transport": "http", "url": tools.url}}
        project = write_project(tmp_path, {"busy": Agent(servers=["tools"])}, llm_url=llm.base_url, servers=servers)
        async with running(project) as served:

            async def one(number: int, client: RawClient) -> str | None:
                params = tool_params("send_message", {"message": f"{points[number]}-{number}"})
                async with client.in_flight("tools/call", params, meta={"progressToken": number}) as call:
                    if points[number] == "stay":
                        return answer_of(await call.reply()).text
                    await vanishing.reached(points[number], number, tools.gate)
                return None

            for version in EACH_VERSION:
                await ask(served.url("busy"), "stay-warm", version=version)
            before, filters = snapshot(), logging_filters()
            answers = await in_workers(served.url("busy"), range(size), one)
            await until_idle(served)
            await llm.wait_until_idle()
            await tools.recorder.wait_until_idle()
            await assert_nothing_left(before)

            assert answers == [f"stayed {n}" if point == "stay" else None for n, point in enumerate(points)]
            assert logging_filters() == filters
            assert served.gateway.calls.started == 0
            assert served.metric("pallas_calls_in_flight", agent="busy") == 0
            assert served.metric("pallas_instances_live", agent="busy") == 0
            gone = size - points.count("stay")
            assert served.metric("pallas_send_message_total", agent="busy", outcome="ok") == len(points) - gone + 2
            assert served.metric("pallas_send_message_total", agent="busy", outcome="error") == gone

    assert len(llm.aborted) == points.count("answer") + points.count("stream")
    assert len(tools.gate.cancelled) == points.count("tool")


class Vanishing:
    """A model that holds every call at the point its message names; the gates are never opened."""

    def __init__(self) -> None:
        self._gates: defaultdict[str, Gate] = defaultdict(Gate)

    def script(self, request: LlmRequest) -> Turn:
        message = request.last_user_text
        point, _, number = message.partition("-")
        if point == "answer":
            return hang(self._gates[message])
        if point == "stream":
            return stream(["begin", " and end"], self._gates[message])
        if point == "tool":
            return call_tools([("tools__slow", {"label": message})])
        return say(f"stayed {number}")

    async def reached(self, point: str, number: int, tool_gate: Gate) -> None:
        message = f"{point}-{number}"
        if point == "tool":
            await eventually(lambda: message in tool_gate.entered, 90, what=message)
        else:
            await self._gates[message].wait_for_entered(1, 90)


def drawn_points(count: int) -> list[str]:
    """Where each call's client vanishes, `stay` if it does not."""
    chance = random.Random(SEED)  # noqa: S311  not a secret
    points = [chance.choice(POINTS) if chance.random() < VANISHING_SHARE else "stay" for _ in range(count)]
    assert min(points.count(point) for point in POINTS) > count / 20 - 2
    return points


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


def logging_filters() -> dict[str, int]:
    """Filters by logger, of those that have any."""
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    return {logger.name: len(logger.filters) for logger in loggers if logger.filters}


def served_tasks(prefix: str) -> int:
    """How many tasks of the gateway have a name that begins so."""
    return sum(task.get_name().startswith(prefix) for task in asyncio.all_tasks())
