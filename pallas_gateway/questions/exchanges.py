"""Conversations between the processes of one gateway: JSON documents in both directions.

A document travels in parts of bounded length. `send` passes a part on to another process; alone, a process reaches no
other one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    type ExchangeDocument = Mapping[str, Any]

LONGEST_PART = 60_000
"""Characters of one part."""
MOST_UNREAD = 100
"""Parts that wait to be read by the other process before `send` waits."""
MOST_UNREAD_CHARACTERS = 2 * LONGEST_PART
"""Characters of unread parts before `send` waits, so that one exchange does not fill the channel of its process."""
_READ = "null"
"""The part that tells the other process that one of its parts was read."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a document, from the process `sender` to the process `to`; without a text, it ends the exchange."""

    to: str
    sender: str
    exchange: str
    text: str
    is_last: bool = True


class Exchange:
    """An exchange with the process `peer`; `on_end` is called when that process closes it or ends."""

    def __init__(self, id_: str, peer: str, exchanges: Exchanges) -> None:
        self.id = id_
        self.peer = peer
        self.on_end: Callable[[], object] = lambda: None
        self._exchanges = exchanges
        self._parts: list[str] = []
        self._documents: asyncio.Queue[str | None] = asyncio.Queue()
        self._unread: deque[int] = deque()
        self._was_read = asyncio.Event()

    async def send(self, document: ExchangeDocument) -> None:
        """Send a document, unless the exchange has ended; a part waits until most earlier parts were read."""
        text = json.dumps(document)
        for begin in range(0, len(text), LONGEST_PART):
            part = text[begin : begin + LONGEST_PART]
            while self in self._exchanges and self._has_too_many_unread:
                self._was_read.clear()
                await self._was_read.wait()
            self._unread.append(len(part))
            self._exchanges.pass_on(self, part, is_last=begin + LONGEST_PART >= len(text))

    async def documents(self) -> AsyncIterator[ExchangeDocument]:
        """Yield the documents of the other process, until the exchange has ended."""
        while (document := await self._documents.get()) is not None:
            yield json.loads(document)
            self._exchanges.pass_on(self, _READ)

    def take(self, part: Part) -> None:
        """Receive a part of a document, or the note that a part was read."""
        if part.text == _READ:
            self._unread.popleft()
            self._was_read.set()
            return
        self._parts.append(part.text)
        if part.is_last:
            self._documents.put_nowait("".join(self._parts))
            self._parts.clear()
        else:
            self._exchanges.pass_on(self, _READ)

    def end(self) -> None:
        """End `documents`; no more parts come."""
        self._documents.put_nowait(None)
        self._was_read.set()
        self.on_end()

    def close(self) -> None:
        """End the exchange on both sides."""
        self._exchanges.pass_on(self, "")
        self._exchanges.forget(self)

    @property
    def _has_too_many_unread(self) -> bool:
        return len(self._unread) >= MOST_UNREAD or sum(self._unread) >= MOST_UNREAD_CHARACTERS


class Exchanges:
    """The exchanges of this process, which other processes know by the name `process`.

    `send` passes a part on. `on_begun` receives each exchange that another process begins, and has to close it.
    """

    def __init__(self, process: str | None = None) -> None:
        self.process = process or secrets.token_hex(4)
        self.send: Callable[[Part], object] = lambda part: self.lose(part.to)
        self.on_begun: Callable[[Exchange], object] = Exchange.close
        self._open: dict[str, Exchange] = {}

    def __len__(self) -> int:
        """Return the number of open exchanges."""
        return len(self._open)

    def __contains__(self, exchange: Exchange) -> bool:
        """Return whether an exchange is open."""
        return exchange.id in self._open

    @contextmanager
    def beginning(self, peer: str) -> Iterator[Exchange]:
        """Yield a new exchange with the process `peer`, which is closed at the end of the block."""
        id_ = f"{self.process}-{secrets.token_hex(8)}"
        exchange = self._open[id_] = Exchange(id_, peer, self)
        try:
            yield exchange
        finally:
            exchange.close()

    def pass_on(self, exchange: Exchange, text: str, *, is_last: bool = True) -> None:
        """Send a part of an exchange that has not ended."""
        if exchange in self:
            self.send(Part(exchange.peer, self.process, exchange.id, text, is_last))

    def take(self, part: Part) -> None:
        """Receive a part. The first part of an unknown exchange begins it, unless this process has ended it."""
        exchange = self._open.get(part.exchange)
        if not part.text:
            if exchange is not None:
                self.forget(exchange)
                exchange.end()
        elif exchange is not None:
            exchange.take(part)
        elif part.text != _READ and not part.exchange.startswith(f"{self.process}-"):
            exchange = self._open[part.exchange] = Exchange(part.exchange, part.sender, self)
            self.on_begun(exchange)
            exchange.take(part)

    def lose(self, process: str) -> None:
        """End the exchanges with a process that has ended, or that this one cannot reach."""
        for exchange in [one for one in self._open.values() if one.peer == process]:
            self.forget(exchange)
            exchange.end()

    def forget(self, exchange: Exchange) -> None:
        """Send and receive no more parts of an exchange."""
        self._open.pop(exchange.id, None)
