"""WebSockets with limits. Imported with their library."""

from __future__ import annotations

from typing import TYPE_CHECKING, override

from websockets.asyncio import client
from websockets.frames import CTRL_OPCODES, Frame

from pallas_gateway.limits import LARGEST_ANSWER_BYTES

if TYPE_CHECKING:
    from websockets.protocol import Event


MOST_UNSENT_BYTES = 2**24
"""Most unsent bytes of requests and answers to pings; a request with images has some MB."""
MOST_CONTROL_FRAMES = 10_000
"""Most control frames of one connection; servers ping every few seconds."""


class LimitedConnection(client.ClientConnection):
    """A connection that ends if its server sends more than an answer, or does not read."""

    most_bytes = LARGEST_ANSWER_BYTES
    most_unsent_bytes = MOST_UNSENT_BYTES
    most_control_frames = MOST_CONTROL_FRAMES
    _received = 0
    _control_frames = 0

    @override
    def data_received(self, data: bytes) -> None:
        """Process data from the server, or end the connection."""
        self._received += len(data)
        if self._received > self.most_bytes or self.transport.get_write_buffer_size() > self.most_unsent_bytes:
            self.transport.abort()
        else:
            super().data_received(data)

    @override
    def process_event(self, event: Event) -> None:
        """Process a frame of a message or a control frame, such as a ping."""
        self._control_frames += isinstance(event, Frame) and event.opcode in CTRL_OPCODES
        if self._control_frames > self.most_control_frames:
            self.transport.abort()
        else:
            super().process_event(event)
