"""How an instance is given back: in its own time, but not for ever."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pallas_gateway.calls.call import Spent
from pallas_gateway.calls.spending import Spending
from pallas_gateway.limits import RuntimeLimits
from pallas_gateway.runtime.call.turn_meter import TurnMeter
from pallas_gateway.runtime.instance import FastAgentInstance
from pallas_gateway.tasks import TaskOwner
from tests.support.waiting import eventually


class Session:
    """A harness session whose end waits for the test."""

    def __init__(self) -> None:
        self.agent_app = SimpleNamespace(registered_agents=dict)
        self.may_end = asyncio.Event()
        self.ended = False

    async def delete(self) -> None:
        await self.may_end.wait()
        self.ended = True


def instance_of(session: Session, tasks: TaskOwner, **limits: float) -> FastAgentInstance:
    observer: Any = SimpleNamespace(watch_agents=lambda agents: None, tool_uses=[])
    runtime_limits = RuntimeLimits(**cast("Any", limits))
    meter = TurnMeter(Spending(), Spent())
    return FastAgentInstance(
        cast("Any", session), "echo", cast("Any", None), observer, tasks, meter=meter, limits=runtime_limits
    )


async def test_an_instance_that_is_slow_to_be_released_is_said_and_released_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = Session()
    async with TaskOwner() as tasks:
        disposing = tasks.spawn(instance_of(session, tasks, dispose_seconds=0.0).dispose(), name="dispose")
        await eventually(lambda: "instance slow to release" in caplog.text, what="the line in the log")
        session.may_end.set()
        await asyncio.wait_for(disposing, 20)
    assert session.ended
    assert "could not be released" not in caplog.text


async def test_an_instance_that_never_ends_is_given_up_and_counts_as_live(caplog: pytest.LogCaptureFixture) -> None:
    async with TaskOwner() as tasks:
        with pytest.raises(TimeoutError):
            await instance_of(Session(), tasks, give_up_seconds=0.0).dispose()
    assert "instance not released" in caplog.text


async def test_an_instance_that_is_released_in_time_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    session = Session()
    session.may_end.set()
    async with TaskOwner() as tasks:
        await instance_of(session, tasks).dispose()
    assert (session.ended, caplog.text) == (True, "")
