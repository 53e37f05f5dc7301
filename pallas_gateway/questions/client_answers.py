"""Answers of clients of the initialize era, which come in requests of their own.

A question is a JSON-RPC request on the stream of a call, with an unguessable id. The answer is found by that id, the
client's session and its bearer, all three, so no client answers for another one.

Where several processes serve the same port, the answer may reach another process than the call. So a process hands on
to the others each answer that it did not expect: once, and only if its id is one that the gateway gave to that client,
which the id itself shows.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import deque
from contextlib import contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pallas_gateway.calls.cancellation import RequestKey

    type KeyOf = Callable[[str], RequestKey]

MOST_HANDED_ON = 4096
"""Answers that are remembered, because they were passed to another process."""
_PREFIX = "question-"


class ClientAnswers:
    """The answers that calls of this process wait for.

    Processes that share a port share `secret`. `hand_on` tells them of an answer that this one did not expect. A
    `key_of` returns the key of an id for one client.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self.hand_on: Callable[[RequestKey, bytes], object] = lambda *_: None
        self._secret = secret or secrets.token_bytes(32)
        self._expected: dict[RequestKey, asyncio.Future[Mapping[str, Any]]] = {}
        self._handed_on: deque[RequestKey] = deque(maxlen=MOST_HANDED_ON)

    def __len__(self) -> int:
        """Return the number of expected answers."""
        return len(self._expected)

    @contextmanager
    def expecting(self, key_of: KeyOf) -> Iterator[tuple[str, asyncio.Future[Mapping[str, Any]]]]:
        """Yield the id of a new request to a client, and the future of its answer.

        The answer is a JSON-RPC response with `result` or `error`.
        """
        nonce = secrets.token_urlsafe(16)
        id_ = f"{_PREFIX}{nonce}.{self._seal(key_of(nonce))}"
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._expected[key_of(id_)] = answer
        try:
            yield id_, answer
        finally:
            del self._expected[key_of(id_)]

    def take(self, key_of: KeyOf, id_: str, response: Mapping[str, Any], body: bytes) -> bool:
        """Pass an answer, which came as `body`, to the call that waits for it, in this or another process.

        Returns False if the gateway has sent that client no request of this id.
        """
        nonce, _, seal = id_.removeprefix(_PREFIX).partition(".")
        if not hmac.compare_digest(seal.encode(), self._seal(key_of(nonce)).encode()):
            return False
        key = key_of(id_)
        if not self.deliver(key, response) and key not in self._handed_on:
            self._handed_on.append(key)
            self.hand_on(key, body)
        return True

    def deliver(self, key: RequestKey, response: Mapping[str, Any]) -> bool:
        """Pass an answer to the call of this process that waits for it; return False if there is none."""
        answer = self._expected.get(key)
        if answer is None:
            return False
        if not answer.done():
            answer.set_result(response)
        return True

    def _seal(self, key: RequestKey) -> str:
        return hmac.digest(self._secret, repr(("answer", *astuple(key))).encode(), "sha256").hex()[:32]
