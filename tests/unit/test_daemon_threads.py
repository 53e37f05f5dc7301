"""Work in threads that keep nothing waiting: shared by those who ask meanwhile, left alone by those who leave."""

import asyncio
from threading import Event

import pytest

from pallas_gateway.daemon_threads import SharedWork, begin
from tests.support.waiting import eventually


async def test_the_loop_turns_while_work_blocks() -> None:
    let_go = Event()
    work = begin(lambda: let_go.wait(20), name="test")
    await asyncio.sleep(0)
    let_go.set()
    assert await work


async def test_what_work_raises_is_raised_where_it_is_waited_for() -> None:
    with pytest.raises(ZeroDivisionError):
        await begin(lambda: 1 // 0, name="test")


async def test_who_asks_while_work_runs_gets_its_result_also_when_the_first_one_has_left() -> None:
    let_go, begun, shared = Event(), [], SharedWork("test")

    def work() -> int:
        begun.append(1)
        let_go.wait(20)
        return len(begun)

    first, second = (asyncio.create_task(shared.result(work)) for _ in range(2))
    await eventually(lambda: begun)
    first.cancel()
    let_go.set()
    assert await second == 1
    assert await shared.result(work) == 2


async def test_a_failure_is_not_kept() -> None:
    shared = SharedWork("test")
    with pytest.raises(ZeroDivisionError):
        await shared.result(lambda: 1 // 0)
    assert await shared.result(lambda: 1) == 1
