"""The leak check sees a leaked task and a leaked descriptor, and forgives what ends in time."""

import asyncio
import os

import pytest

from tests.support.leaks import assert_nothing_left, snapshot


async def wait_for_it(event: asyncio.Event) -> None:
    await event.wait()


async def test_a_running_task_and_an_open_descriptor_are_named() -> None:
    before, event = snapshot(), asyncio.Event()
    task = asyncio.create_task(wait_for_it(event))
    descriptors = os.pipe()

    with pytest.raises(AssertionError, match="1 more task wait_for_it; 2 more fd pipe"):
        await assert_nothing_left(before, 0)

    event.set()
    await task
    for descriptor in descriptors:
        os.close(descriptor)
    await assert_nothing_left(before)


async def test_a_descriptor_replaced_by_one_of_its_kind_is_no_leak() -> None:
    reading, writing = os.pipe()
    before = snapshot()
    os.close(reading)
    os.close(writing)
    others = os.pipe()

    await assert_nothing_left(before)

    for descriptor in others:
        os.close(descriptor)


class Closing:
    """Closes a descriptor when the garbage collector finds it: it holds on to itself."""

    def __init__(self, descriptor: int) -> None:
        self.itself, self.descriptor = self, descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


async def test_what_the_garbage_collector_closes_is_no_leak() -> None:
    before = snapshot()
    Closing(os.open(os.devnull, os.O_RDONLY))

    await assert_nothing_left(before, 0)
