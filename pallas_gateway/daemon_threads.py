"""Runs blocking work in daemon threads: if it hangs, it blocks no thread of a pool; the process can still end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any


def begin[T](work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Start `work` in a thread; return a future for its result."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(take: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():
            take(value)

    def run() -> None:
        try:
            end = partial(settle, outcome.set_result, work())
        except BaseException as error:  # noqa: BLE001  raised by the future
            end = partial(settle, outcome.set_exception, error)
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(end)

    Thread(target=run, name=name, daemon=True).start()
    return outcome


class SharedWork:
    """Work in a thread, shared by all callers that ask while it runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: asyncio.Future[Any] | None = None

    async def result[T](self, work: Callable[[], T]) -> T:
        """Return the result of `work`, or of the work that an earlier caller started; callers may be cancelled."""
        loop = asyncio.get_running_loop()
        if self._running is None or self._running.done() or self._running.get_loop() is not loop:
            self._running = begin(work, name=self._name)
            self._running.add_done_callback(_look_at)
        result: T = await asyncio.shield(self._running)
        return result


def _look_at(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception, which asyncio would log if no caller waits for it."""
    if not future.cancelled():
        future.exception()
