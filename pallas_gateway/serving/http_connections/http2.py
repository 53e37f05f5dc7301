"""HTTP/2: Hypercorn's, in which a fault of one stream ends that stream only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, override

import h2.config
import h2.connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, PriorityUpdated, RequestReceived, StreamReset
from h2.exceptions import FlowControlError, ProtocolError
from h2.settings import SettingCodes, Settings
from hypercorn.events import Updated
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import Request, StreamClosed
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, BufferCompleteError, H2Protocol, StreamBuffer
from hypercorn.utils import filter_pseudo_headers
from hyperframe.frame import DataFrame, HeadersFrame, PriorityFrame

from pallas_gateway.changes.change import Fault, Name
from pallas_gateway.serving.http_connections.inbox import stream_of

if TYPE_CHECKING:
    from h2.events import Event
    from hypercorn.typing import WorkerContext
    from hyperframe.frame import Frame

    from pallas_gateway.serving.http_connections.connection import Settings as ConnectionSettings
    from pallas_gateway.serving.http_connections.connection_limits import UnreadLimit
    from pallas_gateway.serving.http_connections.inbox import Apps

FAULTS = (
    Fault(
        title="A fault of one HTTP/2 stream ends all streams of its connection",
        text="""\
Symptom: a malformed request or body, a request too many, a stream that depends on itself, or an error of an app ends
the connection, with all calls of a proxy or client that share it.

Reproduction: open two streams and send a request with a header in upper case on a third.

Repair: events are handled one by one (`Http2._handle_events`), the frames of a malformed request reset its stream
(`_Frames._receive_frame`, RFC 9113, section 8.1.1), and requests too many are refused one by one (`_is_full`).
""",
        library="hypercorn",
        gone_when="h2 and `H2Protocol` reset the stream",
        test="tests/e2e/test_http2.py",
    ),
    Fault(
        title="An HTTP/2 answer that its client does not read grows without a limit",
        text="""\
Symptom: while a client's window is full, the rest of a streamed answer is kept in memory, however much it is.

Reproduction: request a long stream and never send WINDOW_UPDATE: `StreamBuffer.push` returns at once.

Repair: `_Buffer.push` waits until the client has read, as long as there is progress.
""",
        library="hypercorn",
        gone_when="`StreamBuffer.push` waits while the buffer is above its high-water mark",
        test="tests/unit/serving/test_http_connections.py",
    ),
    Fault(
        title="An HTTP/2 answer that was cut off looks whole",
        text="""\
Symptom: if an app fails in the middle of its answer, the stream ends as if that were all.

Reproduction: raise in an app after its first piece: the client receives END_STREAM.

Repair: the stream is reset with INTERNAL_ERROR (`Http2.stream_send`).
""",
        library="hypercorn",
        gone_when="`H2Protocol` resets streams whose apps have not ended their answers",
        test="tests/e2e/test_http2.py",
    ),
    Fault(
        title="HTTP/2 connections starve, are cut off, or stay for ever",
        text="""\
Symptom: bodies of requests that were answered already use up the window of the connection, so that no other body
arrives; after a thousand requests a connection is closed with all its calls; one without any stream counts as busy and
is never closed; requests that were cancelled in the packet that opened them start apps that no limit counts; each
PRIORITY frame makes a tree larger.

Reproduction: `tests/e2e/test_http2.py` has one connection for each.

Repair: data of answered requests is acknowledged, PRIORITY is ignored, cancelled requests start no app
(`Http2._handle_event`), requests are not counted (`_answer`), and a connection without streams is idle
(`_handle_events`).
""",
        library="hypercorn",
        gone_when="`H2Protocol` does so",
        test="tests/e2e/test_http2.py",
    ),
)
RELIED_ON = (
    *(
        Name(f"hypercorn.protocol.h2:H2Protocol.{name}")
        for name in ("_close_stream", "_create_stream", "_flush", "_handle_events", "_send_data", "_window_updated")
    ),
    *(Name(f"h2.connection:H2Connection.{name}") for name in ("_receive_frame", "open_inbound_streams")),
    *(Name(f"hypercorn.protocol.h2:StreamBuffer.{name}") for name in ("close", "complete", "drain", "pop", "push")),
)
_SEND_NO_MORE = ErrorCodes.NO_ERROR
"""Tells the client of a request that was answered to send no more of it (RFC 9113, section 8.1)."""


class Http2(H2Protocol):
    """One HTTP/2 connection."""

    config: ConnectionSettings
    task_group: Apps

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connection = _Frames(self.config)

    @override
    async def _handle_events(self, events: list[Event]) -> None:
        """Handle each event apart from the others, which may be of other streams."""
        for event in events:
            try:
                await self._handle_event(event)
            except Exception as error:  # noqa: BLE001  the other streams continue
                self.config.faults.log("stream", error)
                await self._end(getattr(event, "stream_id", 0), ErrorCodes.INTERNAL_ERROR)
        if not self.closed and any(isinstance(event, RequestReceived | StreamReset) for event in events):
            await self.send(Updated(idle=self.idle))  # Hypercorn regards a connection without streams as busy
        await self._flush()

    async def _handle_event(self, event: Event) -> None:
        if isinstance(event, PriorityUpdated):
            return  # deprecated by RFC 9113, and a tree that clients can grow
        if isinstance(event, DataReceived) and event.stream_id not in self.streams:  # it was answered
            self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            return
        if isinstance(event, RequestReceived) and not self._is_open(event.stream_id):
            return  # cancelled already, by what came in the same packet
        await super()._handle_events([event])

    @override
    async def _create_stream(self, request: RequestReceived) -> None:
        pseudo = {name: value for name, value in request.headers or () if name.startswith(b":")}
        method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
        if self._is_full():
            self._reset(request.stream_id, ErrorCodes.REFUSED_STREAM)
        elif method == b"CONNECT":
            self._refuse(request.stream_id, 405)
        elif not path or not path.isascii() or not method.isascii():
            self._refuse(request.stream_id, 400)
        else:
            await self._answer(request, method.decode().upper(), path)

    def _is_full(self) -> bool:
        """True if one more request is too many; cancelled requests count until they are cleaned up."""
        most = self.config.h2_max_concurrent_streams
        return len(self.streams) >= most or self.task_group.running >= 2 * most

    def _refuse(self, stream_id: int, status: int) -> None:
        headers = [(b":status", b"%d" % status), (b"content-length", b"0")]
        self.connection.send_headers(stream_id, headers, end_stream=True)
        self._reset(stream_id, _SEND_NO_MORE)

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        if self._is_open(stream_id):
            self.connection.reset_stream(stream_id, code)

    def _is_open(self, stream_id: int) -> bool:
        """True if client or server may still send on a stream."""
        stream = self.connection.streams.get(stream_id)
        return stream is not None and not stream.closed

    async def _answer(self, request: RequestReceived, method: str, path: bytes) -> None:
        """Start the app. Requests are not counted: Hypercorn cuts off all calls of a connection after a thousand."""
        stream_id = request.stream_id
        self.streams[stream_id] = stream = stream_of(self, stream_id)
        self.stream_buffers[stream_id] = _Buffer(self.context, self.config.unread)
        self.priority.insert_stream(stream_id)
        self.priority.block(stream_id)
        await stream.handle(
            Request(
                stream_id=stream_id,
                headers=filter_pseudo_headers(request.headers),
                http_version="2",
                method=method,
                raw_path=path,
                state=self.connection_state,
            )
        )

    @override
    async def stream_send(self, event: StreamEvent) -> None:
        """Send what an app says; a client that does not read it loses the stream."""
        try:
            await super().stream_send(event)
        except TimeoutError:
            await self._end(event.stream_id, ErrorCodes.CANCEL)
        buffer = self.stream_buffers.get(event.stream_id)
        if isinstance(event, StreamClosed) and isinstance(buffer, _Buffer) and not buffer.is_ended:
            await self._end(event.stream_id, ErrorCodes.INTERNAL_ERROR)  # the app failed in the middle of its answer

    @override
    async def _send_data(self, stream_id: int) -> None:
        await super()._send_data(stream_id)
        if stream_id not in self.stream_buffers:
            self._reset(stream_id, _SEND_NO_MORE)
            await self._flush()

    async def _end(self, stream_id: int, code: ErrorCodes) -> None:
        """Reset one stream, and release what was held for it."""
        self._reset(stream_id, code)
        await self._close_stream(stream_id)
        await self._window_updated(stream_id)  # the sending task finds it closed, and forgets it
        await self._flush()


class _Buffer(StreamBuffer):
    """The unsent data of one stream, with a limit for the time without progress."""

    def __init__(self, context: WorkerContext, unread: UnreadLimit) -> None:
        super().__init__(context.event_class)
        self._unread = unread

    @property
    def is_ended(self) -> bool:
        """True if the app has ended its answer."""
        return self._complete

    @override
    async def push(self, data: bytes) -> None:
        """Take more of the answer.

        Hypercorn's own goes on whenever the client's window is full, so that what waits for it grows without a limit.

        Raises:
            TimeoutError: the client reads nothing.
        """
        if self._complete:
            raise BufferCompleteError
        self.buffer.extend(data)
        await self._is_empty.clear()
        await self._unread.until_taken(self._until_low, lambda: len(self.buffer))

    async def _until_low(self) -> None:
        while len(self.buffer) >= BUFFER_HIGH_WATER:
            await self._paused.wait()
            await self._paused.clear()

    @override
    async def drain(self) -> None:
        """Wait until all of the answer was taken.

        Raises:
            TimeoutError: the client reads nothing.
        """
        await self._unread.until_taken(super().drain, lambda: len(self.buffer))


class _Frames(h2.connection.H2Connection):
    """The frames of one connection. A malformed request or body is a fault of its stream (RFC 9113, section 8.1.1)."""

    def __init__(self, config: ConnectionSettings) -> None:
        super().__init__(h2.config.H2Configuration(client_side=False, header_encoding=None))
        self._most_streams = config.h2_max_concurrent_streams
        self.DEFAULT_MAX_INBOUND_FRAME_SIZE = config.h2_max_inbound_frame_size
        limits = {
            SettingCodes.MAX_CONCURRENT_STREAMS: self._most_streams,
            SettingCodes.MAX_HEADER_LIST_SIZE: config.h2_max_header_list_size,
        }
        self.local_settings = Settings(client=False, initial_values=limits)

    @property
    @override
    def open_inbound_streams(self) -> int:
        """The number of open streams, as long as one more is allowed: `Http2` refuses the others one by one."""
        return min(super().open_inbound_streams, self._most_streams - 1)

    @override
    def _receive_frame(self, frame: Frame) -> list[Event]:
        if isinstance(frame, PriorityFrame):
            return []  # deprecated by RFC 9113; h2 ends the connection for a stream that depends on itself
        try:
            return super()._receive_frame(frame)
        except ProtocolError as error:
            if not isinstance(frame, HeadersFrame | DataFrame) or not self._is_of_stream(error, frame.stream_id):
                raise
            self.reset_stream(frame.stream_id, ErrorCodes.PROTOCOL_ERROR)
            if isinstance(frame, DataFrame):
                self.acknowledge_received_data(frame.flow_controlled_length, frame.stream_id)
            return [StreamReset(stream_id=frame.stream_id, error_code=ErrorCodes.PROTOCOL_ERROR, remote_reset=False)]

    def _is_of_stream(self, error: ProtocolError, stream_id: int) -> bool:
        """True for an error that leaves the rest of the connection usable.

        False for a header block that could not be decompressed (the only such error with a cause), and for a frame in
        the wrong state that closed the stream without a reset for the client.
        """
        stream = self.streams.get(stream_id)
        is_sound = error.__cause__ is None and not isinstance(error, FlowControlError)
        return is_sound and stream is not None and not stream.closed
