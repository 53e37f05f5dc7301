"""Answers of clients of the initialize era, which come in requests of their own.

A question is a JSON-RPC request on the stream of a call, with an unguessable id. The answer is found by that id, the
client's session and its bearer, all three, so no client answers for another one.

The id has the name of the process that asks, to which other processes forward the answer. It shows by itself that the
gateway gave it to that client.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from contextlib import contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pallas_gateway.calls.cancellation import RequestKey

    type KeyOf = Callable[[str], RequestKey]

_PREFIX = "question-"


def process_of(id_: str) -> str | None:
    """Return the name of the process in the id of a request to a client; None if there is no name."""
    name, dot, _ = id_.removeprefix(_PREFIX).partition(".")
    return name if dot and id_.startswith(_PREFIX) else None


class ClientAnswers:
    """The answers that calls of this process wait for.

    Processes that share a port share `secret`; `process` is the name of this one. A `key_of` returns the key of an id
    for one client.
    """

    def __init__(self, secret: bytes | None = None, process: str = "") -> None:
        self._process = process
        self._secret = secret or secrets.token_bytes(32)
        self._expected: dict[RequestKey, asyncio.Future[Mapping[str, Any]]] = {}

    def __len__(self) -> int:
        """Return the number of expected answers."""
        return len(self._expected)

    @contextmanager
    def expecting(self, key_of: KeyOf) -> Iterator[tuple[str, asyncio.Future[Mapping[str, Any]]]]:
        """Yield the id of a new request to a client, and the future of its answer.

        The answer is a JSON-RPC response with `result` or `error`.
        """
        name = f"{self._process}.{secrets.token_urlsafe(16)}"
        id_ = f"{_PREFIX}{name}.{self._seal(key_of(name))}"
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._expected[key_of(id_)] = answer
        try:
            yield id_, answer
        finally:
            del self._expected[key_of(id_)]

    def take(self, key_of: KeyOf, id_: str, response: Mapping[str, Any]) -> bool:
        """Pass an answer to the call of this process that waits for it, if there still is one.

        Returns False if this process has sent that client no request of this id.
        """
        name, _, seal = id_.removeprefix(_PREFIX).rpartition(".")
        is_own = name.startswith(f"{self._process}.")
        if not is_own or not hmac.compare_digest(seal.encode(), self._seal(key_of(name)).encode()):
            return False
        answer = self._expected.get(key_of(id_))
        if answer is not None and not answer.done():
            answer.set_result(response)
        return True

    def _seal(self, key: RequestKey) -> str:
        return hmac.digest(self._secret, repr(("answer", *astuple(key))).encode(), "sha256").hex()[:32]
