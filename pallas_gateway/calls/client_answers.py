"""Answers that clients of the initialize era give in a request of their own.

A question is a JSON-RPC request on the stream of a call, with an unguessable id. The answer is found by that id, the
client's session and its bearer, all three, so no client answers for another one.

Where several processes serve the same port, the answer may reach another process than the call. So a process hands on
to the others each answer that it did not expect.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pallas_gateway.calls.cancellation import RequestKey


class ClientAnswers:
    """The answers that calls of this process wait for.

    `hand_on` tells other processes of an answer that this one did not expect.
    """

    def __init__(self) -> None:
        self.hand_on: Callable[[RequestKey, Mapping[str, Any]], object] = lambda *_: None
        self._expected: dict[RequestKey, asyncio.Future[Mapping[str, Any]]] = {}

    def __len__(self) -> int:
        """Return the number of expected answers."""
        return len(self._expected)

    @contextmanager
    def expecting(self, key: RequestKey) -> Iterator[asyncio.Future[Mapping[str, Any]]]:
        """Yield the future of an answer: a JSON-RPC response with `result` or `error`."""
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._expected[key] = answer
        try:
            yield answer
        finally:
            del self._expected[key]

    def deliver(self, key: RequestKey, response: Mapping[str, Any]) -> bool:
        """Give an answer to the call that waits for it; return False if no call of this process does."""
        answer = self._expected.get(key)
        if answer is None:
            return False
        if not answer.done():
            answer.set_result(response)
        return True
