"""A TCP relay that cuts some of the connections through it, at points a seeded chance chooses.

It knows nothing of HTTP: a cut may fall before the request, between request and answer, or in the middle of either.
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from .listener import HOST

CHUNK_BYTES = 65_536
AT_ONCE = -1


class Breaker:
    """Relays to one port. `connections` and `cuts` count what has come and what was cut."""

    def __init__(self, port: int, *, share: float, most_chunks: int, seed: int) -> None:
        """Cut `share` (0 to 1) of the connections: at once, or after up to `most_chunks` pieces of answers."""
        self.port = 0  # set by `breaker`
        self.connections = 0
        self.cuts = 0
        self._to = port
        self._share = share
        self._most_chunks = most_chunks
        self._chance = random.Random(seed)  # noqa: S311  not a secret
        self._relays: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        is_cut = self._chance.random() < self._share
        after = self._chance.randint(AT_ONCE, self._most_chunks) if is_cut else None
        if self._is_stopped:
            after = AT_ONCE
        relay = asyncio.create_task(self._relay(reader, writer, after), name="breaker")
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def stop(self) -> None:
        """Cut what is open, and each connection that comes before `start`, as if the server were gone."""
        self._is_stopped = True
        await self.close()

    def start(self) -> None:
        self._is_stopped = False

    async def close(self) -> None:
        for relay in list(self._relays):
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, after: int | None) -> None:
        is_cut = after == AT_ONCE
        try:
            is_cut = is_cut or await self._relay_until(reader, writer, after)
        except OSError:
            is_cut = True  # the server is down: whoever connects is cut off, as it would be without a relay
        finally:
            self.cuts += is_cut
            _end(writer, is_cut=is_cut)

    async def _relay_until(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, after: int | None) -> bool:
        """Relay until one side ends or the point to cut at is reached; whether it was that point."""
        answers, there = await asyncio.open_connection(HOST, self._to)
        requesting = asyncio.create_task(_pump(reader, there), name="breaker, requests")
        answering = asyncio.create_task(_pump(answers, writer, after), name="breaker, answers")
        try:
            await asyncio.wait({requesting, answering}, return_when=asyncio.FIRST_COMPLETED)
            return answering.done() and answering.result()
        finally:
            requesting.cancel()
            answering.cancel()
            await asyncio.wait({requesting, answering})
            _end(there, is_cut=True)


def _end(writer: asyncio.StreamWriter, *, is_cut: bool) -> None:
    if is_cut:
        writer.transport.abort()
    else:
        writer.close()  # what was relayed still goes out


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, after: int | None = None) -> bool:
    """Pass on what comes, up to `after` pieces; whether it was cut there."""
    pieces = 0
    try:
        while piece := await reader.read(CHUNK_BYTES):
            if pieces == after:
                return True
            writer.write(piece)
            await writer.drain()
            pieces += 1
    except OSError:
        return False
    return False


@asynccontextmanager
async def breaker(port: int, *, share: float, most_chunks: int, seed: int) -> AsyncGenerator[Breaker]:
    """Relay to `port` of the loopback address until the block ends."""
    relay = Breaker(port, share=share, most_chunks=most_chunks, seed=seed)
    server = await asyncio.start_server(relay.accept, HOST, 0, backlog=1024)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.close()
        await server.wait_closed()
