"""A worker's and its parent's end of a channel, in one process."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_gateway.process.workers.channel import Channel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping


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
