"""An HTTP/2 client with prior knowledge that sends what a test wants: malformed requests and bare frames as well."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.events
from hyperframe.frame import HeadersFrame

from tests.support.listener import HOST
from tests.support.waiting import Changes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from hyperframe.frame import Frame

type Headers = Sequence[tuple[bytes, bytes]]

WAIT_SECONDS = 20


class Http2Client:
    """One connection; streams are known by their ids.

    Attributes:
        statuses: the status of each answer.
        bodies: what came of each answer's body.
        ended: streams whose answer is complete.
        resets: the error code of each stream that the server reset.
        is_closed: whether the server closed the connection.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.statuses: dict[int, int] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.is_closed = False
        self._changes = Changes()
        self._writer = writer
        config = h2.config.H2Configuration(
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._connection = h2.connection.H2Connection(config)

    async def begin(self) -> None:
        """Send the preface."""
        self._connection.initiate_connection()
        await self._flush()

    async def request(
        self, path: bytes, *, body: bytes = b"", end: bool = True, headers: Mapping[bytes, bytes] | None = None
    ) -> int:
        """Send a well-formed POST if there is a body or more of it is to come, else a GET; returns its stream."""
        method = b"POST" if body or not end else b"GET"
        common = [(b":method", method), (b":scheme", b"http"), (b":authority", b"localhost"), (b":path", path)]
        stream = await self.open([*common, *(headers or {}).items()], end=not body and end)
        if body:
            await self.data(stream, body, end=end)
        return stream

    async def open(self, headers: Headers, *, end: bool = True) -> int:
        """Send any headers on a new stream, which is returned."""
        stream: int = self._connection.get_next_available_stream_id()
        self._connection.send_headers(stream, headers, end_stream=end)
        await self._flush()
        return stream

    async def data(self, stream: int, body: bytes, *, end: bool = False) -> None:
        """Send a body, or a part of it, as far as the server takes it at a time."""
        window = partial(self._connection.local_flow_control_window, stream)
        pending = body
        while True:
            await self._until(lambda: window() > 0 or not body, "credit of the server")
            size = min(window(), self._connection.max_outbound_frame_size)
            piece, pending = pending[:size], pending[size:]
            self._connection.send_data(stream, piece, end_stream=end and not pending)
            await self._flush()
            if not pending:
                return

    async def reset(self, stream: int) -> None:
        """Cancel a stream."""
        self._connection.reset_stream(stream)
        await self._flush()

    async def frames(self, *frames: Frame) -> None:
        """Send frames that h2 knows nothing of."""
        self._writer.write(b"".join(frame.serialize() for frame in frames))
        await self._writer.drain()

    async def bare_headers(self, stream: int, block: bytes) -> None:
        """Send a header block as it is, on any stream."""
        frame = HeadersFrame(stream, data=block)
        frame.flags |= {"END_HEADERS", "END_STREAM"}
        await self.frames(frame)

    async def until_ended(self, stream: int) -> None:
        """Return once an answer is complete, or its stream was reset."""
        await self._until(lambda: stream in self.ended or stream in self.resets, f"the end of stream {stream}")

    async def until_begun(self, stream: int) -> None:
        """Return once the headers of an answer have come."""
        await self._until(lambda: stream in self.statuses, f"an answer on stream {stream}")

    async def until_closed(self) -> None:
        """Return once the server has closed the connection."""
        await self._until(lambda: self.is_closed, "the end of the connection")

    async def read(self, reader: asyncio.StreamReader, *, credit: bool) -> None:
        """Take what the server sends; without `credit`, it may send no more than fits the first windows."""
        try:
            while received := await reader.read(1 << 16):
                for event in self._connection.receive_data(received):
                    self._take(event, credit=credit)
                await self._flush()
                self._changes.announce()
        except OSError:
            pass
        self.is_closed = True
        self._changes.announce()

    def _take(self, event: h2.events.Event, *, credit: bool) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self.statuses[event.stream_id] = int(dict(event.headers or ())[b":status"])
        elif isinstance(event, h2.events.DataReceived):
            self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            if credit:
                self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.resets[event.stream_id] = int(event.error_code)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        await self._changes.until(holds, WAIT_SECONDS, what=what)

    async def _flush(self) -> None:
        self._writer.write(self._connection.data_to_send())
        await self._writer.drain()


@asynccontextmanager
async def http2_client(port: int, *, credit: bool = True) -> AsyncIterator[Http2Client]:
    """A connection to a port on loopback, open for the block; see `Http2Client.read` for `credit`."""
    reader, writer = await asyncio.open_connection(HOST, port)
    client = Http2Client(writer)
    await client.begin()
    reading = asyncio.create_task(client.read(reader, credit=credit), name="HTTP/2 client")
    try:
        yield client
    finally:
        writer.close()
        await asyncio.wait({reading}, timeout=WAIT_SECONDS)
        reading.cancel()
