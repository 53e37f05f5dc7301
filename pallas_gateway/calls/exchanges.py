"""Conversations between the processes of one gateway: JSON documents in both directions.

A document travels in parts of bounded length. `send` passes a part on to another process; alone, a process reaches no
other one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    type Document = Mapping[str, Any]

LONGEST_PART = 60_000
"""Characters of one part."""
MOST_UNREAD = 100
"""Documents that wait to be read by the other process before `send_in_turn` waits."""
_READ = "null"
"""The part that tells the other process that one of its documents was read."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a document, from the process `sender` to the process `to`; no text at all ends the exchange."""

    to: str
    sender: str
    exchange: str
    text: str
    is_last: bool = True


class Exchange:
    """One conversation with the process `peer`; `on_end` is called when that one ends it or is gone."""

    def __init__(self, id_: str, peer: str, exchanges: Exchanges) -> None:
        self.id = id_
        self.peer = peer
        self.on_end: Callable[[], object] = lambda: None
        self._exchanges = exchanges
        self._parts: list[str] = []
        self._documents: asyncio.Queue[Document | None] = asyncio.Queue()
        self._unread = 0
        self._was_read = asyncio.Event()

    async def send_in_turn(self, document: Document) -> None:
        """Send a document once the other process has read most of those before it."""
        while self._unread >= MOST_UNREAD:
            self._was_read.clear()
            await self._was_read.wait()
        self.send(document)

    def send(self, document: Document) -> None:
        """Send a document, unless the exchange has ended."""
        self._unread += 1
        text = json.dumps(document)
        for begin in range(0, len(text), LONGEST_PART):
            self._exchanges.pass_on(self, text[begin : begin + LONGEST_PART], is_last=begin + LONGEST_PART >= len(text))

    async def documents(self) -> AsyncIterator[Document]:
        """Yield what the other process sends, until the exchange has ended."""
        while (document := await self._documents.get()) is not None:
            yield document
            self._exchanges.pass_on(self, _READ)

    def take(self, part: Part) -> None:
        """Receive a part of a document, or that one was read."""
        if part.text == _READ:
            self._unread -= 1
            self._was_read.set()
            return
        self._parts.append(part.text)
        if part.is_last:
            document = "".join(self._parts)
            self._parts.clear()
            self._documents.put_nowait(json.loads(document))

    def end(self) -> None:
        """Note that nothing more comes."""
        self._documents.put_nowait(None)
        self.on_end()

    def close(self) -> None:
        """End the exchange on both sides."""
        self._exchanges.pass_on(self, "")
        self._exchanges.forget(self)


class Exchanges:
    """The exchanges of this process, which the others know by the name `process`.

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
        if exchange.id in self._open:
            self.send(Part(exchange.peer, self.process, exchange.id, text, is_last))

    def take(self, part: Part) -> None:
        """Receive a part; that of an unknown exchange begins it, unless this process began and ended that one."""
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
        """Neither send nor receive parts of an exchange from here on."""
        self._open.pop(exchange.id, None)
