"""Calls of 2026-07-28 that wait for an answer, and that their client ends without one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.support.askable_callers import INVALID_PARAMS, asked_at, ended
from tests.support.asking import asking_downstream
from tests.support.asking_gateways import calls_the_tool_it_is_told, neighbours, project_of, questions
from tests.support.calling import answer_of
from tests.support.gateway import Agent, running, until_idle
from tests.support.resumed_calls import resumed
from tests.support.scripted_llm import call_tools, say, scripted_llm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clients import RawReply
    from tests.support.gateway import Running
    from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn

BOOKS = """
from pathlib import Path

from fast_agent import FastAgent

fast = FastAgent("user", parse_cli_args=False)


def wipe() -> str:
    return "wiped"


def book() -> str:
    Path(__file__).with_name("booked").touch()
    return "booked"


@fast.agent(name="user", function_tools=[wipe, book], default=True)
async def agent() -> None: ...
"""
ANSWER = {"action": "cancel"}


def wipes_then_books(request: LlmRequest) -> Turn:
    if (made := len(request.tool_results)) < 2:
        return call_tools([(("wipe", "book")[made], {})])
    return say("done")


@asynccontextmanager
async def booking(path: Path) -> AsyncIterator[tuple[Running, ScriptedLlm]]:
    """Serve an agent that books after an approval, whatever the answer to that is."""
    agent = Agent(source=BOOKS, settings={"approve": ["local/wipe"]})
    async with (
        scripted_llm(wipes_then_books) as llm,
        running(project_of(path, llm, {"url": "http://x"}, agent)) as served,
    ):
        yield served, llm


ENDED = "The call was cancelled."


def assert_cancelled(reply: RawReply, text: str = ENDED) -> None:
    result = answer_of(reply)
    assert result.is_error
    assert result.text == text
    assert result.meta["stop_reason"] == "cancelled"


async def test_a_call_that_is_ended_at_an_approval_calls_no_tool_and_no_model(tmp_path: Path) -> None:
    async with booking(tmp_path) as (served, llm):
        asked = await asked_at(served.url("user"), "go")
        first = await ended(asked)
        assert_cancelled(first)
        await until_idle(served)
        assert len(llm.requests) == 1
        assert not list(tmp_path.rglob("booked"))
        assert served.metric("pallas_send_message_total", agent="user", outcome="error") == 1
        assert len(served.gateway.sessions.waiting_calls) == 0

        again = await ended(asked)
        assert_cancelled(again)
        assert answer_of(again).meta["call_id"] == answer_of(first).meta["call_id"]
        assert (await asked.repeat(ANSWER)).error["code"] == INVALID_PARAMS
        assert served.metric("pallas_send_message_total", agent="user", outcome="error") == 1


async def test_only_the_caller_of_a_call_ends_it_with_its_arguments_and_without_an_answer(tmp_path: Path) -> None:
    async with booking(tmp_path) as (served, llm):
        asked = await asked_at(served.url("user"), "go")
        refused = [
            await ended(asked, bearer="other"),
            await ended(asked, arguments={"message": "other"}),
            await ended(asked, requestState=None),
            await ended(asked, inputResponses={asked.id: ANSWER}),
        ]
        assert [one.error["code"] for one in refused] == [INVALID_PARAMS] * 4
        assert len(served.gateway.sessions.waiting_calls) == len(llm.requests) == 1
        assert_cancelled(await ended(asked))


async def test_a_call_is_ended_whichever_process_gets_the_request(tmp_path: Path) -> None:
    async with (
        asking_downstream("modern") as downstream,
        neighbours(tmp_path, downstream.url, calls_the_tool_it_is_told) as (one, two),
    ):
        asked = await asked_at(one.url("user"))
        assert_cancelled(await ended(asked, url=two.url("user")))
        await until_idle(one)
        assert_cancelled(await ended(asked, url=two.url("user")))
        assert (await asked.repeat(ANSWER, url=two.url("user"))).error["code"] == INVALID_PARAMS
        assert not downstream.answers


MAY_WAIT = (
    f"{ENDED} If it waits at another replica of the gateway, it ends there when its state expires, "
    "without another turn of the model."
)


async def test_a_call_that_waits_at_another_replica_is_ended_only_here_and_the_result_tells_so(tmp_path: Path) -> None:
    keys = {"state_keys": ["k" * 32]}
    async with (
        asking_downstream("modern") as downstream,
        scripted_llm(calls_the_tool_it_is_told) as llm,
        running(project_of(tmp_path / "one", llm, {"url": downstream.url}, gateway=keys)) as one,
        running(project_of(tmp_path / "two", llm, {"url": downstream.url}, gateway=keys)) as two,
    ):
        asked = await asked_at(one.url("user"))
        assert_cancelled(await ended(asked, url=two.url("user")), MAY_WAIT)
        assert (await asked.repeat(url=two.url("user"))).error["code"] == INVALID_PARAMS
        assert (len(one.gateway.sessions.waiting_calls), len(llm.requests), downstream.answers) == (1, 1, [])
        assert_cancelled(await ended(asked))
        await until_idle(one)
        assert len(llm.requests) == 1


async def test_a_call_that_is_ended_after_a_restart_is_not_resumed(tmp_path: Path) -> None:
    async with asking_downstream("modern") as downstream, resumed(tmp_path, downstream.url, "name") as call:
        assert_cancelled(await ended(call.asked), MAY_WAIT)
        assert (await call.asked.repeat()).error["code"] == INVALID_PARAMS
        assert_cancelled(await ended(call.asked))
        assert not call.llm.requests
        assert questions(call.served, "form", "accepted") == 0
