"""Work that blocks, in daemon threads: one that hangs keeps neither the pool's threads from others nor the process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def begin[T](work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Start `work`; its result, unless the future was cancelled by then."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(take: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():
            take(value)

    def run() -> None:
        try:
            end = partial(settle, outcome.set_result, work())
        except BaseException as error:  # noqa: BLE001  raised where the result is waited for
            end = partial(settle, outcome.set_exception, error)
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(end)

    Thread(target=run, name=name, daemon=True).start()
    return outcome


class SharedWork:
    """Work in a thread whose result is for all who ask while it runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: asyncio.Future[Any] | None = None

    async def result[T](self, work: Callable[[], T]) -> T:
        """The result of `work`, or of that of an earlier caller, which may end without waiting for it."""
        loop = asyncio.get_running_loop()
        if self._running is None or self._running.done() or self._running.get_loop() is not loop:
            self._running = begin(work, name=self._name)
            self._running.add_done_callback(_look_at)
        result: T = await asyncio.shield(self._running)
        return result


def _look_at(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging an exception that no caller has waited for."""
    if not future.cancelled():
        future.exception()
