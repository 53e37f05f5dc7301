"""Runs each turn of Amazon Bedrock in a thread, because its library blocks.

Each turn has its own thread instead of one of a pool: a silent model must not block other turns or the end of the
process. The end of a call shuts down the sockets that its thread waits for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from pallas_gateway.calls import current
from pallas_gateway.daemon_threads import begin
from pallas_gateway.errors import ProviderError


class BedrockTurn:
    """One turn in its thread, as the event loop controls it."""

    def __init__(self, idle_seconds: float | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.idle_seconds = idle_seconds
        self._is_cancelled = False

    def takes(self, sock: socket.socket) -> None:
        """Record, in the thread, a socket that belongs to this turn until another turn uses it."""
        with _owning:
            _owners[sock] = self
            if self._is_cancelled:
                _shut_down(sock)

    def wait_at_most(self, seconds: float) -> None:
        """Limit, in the thread, each further read of its sockets; the next answer has its own limit."""
        with _owning:
            for sock in [one for one, turn in _owners.items() if turn is self]:
                sock.settimeout(seconds)

    def check(self) -> None:
        """Raise an error in the thread, before it sends a request, if the call is over."""
        if self._is_cancelled:
            raise ProviderError("the call is over")

    def cancel(self) -> None:
        """Make the thread's current read fail."""
        with _owning:
            self._is_cancelled = True
            for sock in [one for one, turn in _owners.items() if turn is self]:
                _shut_down(sock)


_owners: WeakKeyDictionary[socket.socket, BedrockTurn] = WeakKeyDictionary()
_owning = Lock()


_turn: ContextVar[BedrockTurn | None] = ContextVar("pallas_bedrock_turn", default=None)
"""Of the current thread."""


def current_turn() -> BedrockTurn | None:
    """The turn of the current thread; None on the event loop."""
    return _turn.get()


def say_repeated(why: str, sent: int) -> None:
    """Log on the event loop, in the thread's context, that a request is sent again."""
    if (turn := current_turn()) is None:
        current.say_repeated(why, sent)
    else:
        turn.loop.call_soon_threadsafe(current.say_repeated, why, sent, context=copy_context())


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # a TLS socket's own method is not thread-safe


async def in_thread(turn: BedrockTurn, work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work`, which never waits for the event loop, in a thread; cancel the turn if this is cancelled."""
    context = copy_context()
    context.run(_turn.set, turn)
    try:
        return await begin(partial(context.run, _run_through, work), name="pallas-bedrock-turn")
    except asyncio.CancelledError:
        turn.cancel()
        raise


def _run_through(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise RuntimeError("fast-agent's turn of Bedrock waits for the event loop; this version does not fit")
