"""A worker's and its parent's end of a channel, in one process."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pallas_gateway.process.workers.channel import Channel


@dataclass(frozen=True)
class Ends:
    """Both ends, which listen. `writer` is of the parent."""

    worker: Channel
    parent: Channel
    writer: asyncio.StreamWriter


@asynccontextmanager
async def channel(*, worker: Mapping[str, object], parent: Mapping[str, object]) -> AsyncGenerator[Ends]:
    (reader, writer), (other_reader, other_writer) = [
        await asyncio.open_connection(sock=end) for end in socket.socketpair()
    ]
    ends = Ends(Channel(reader, writer, worker), Channel(other_reader, other_writer, parent), other_writer)
    listening = [asyncio.create_task(end.listen()) for end in (ends.worker, ends.parent)]
    try:
        yield ends
    finally:
        for one in (writer, other_writer):
            one.close()
        await asyncio.gather(*listening)
