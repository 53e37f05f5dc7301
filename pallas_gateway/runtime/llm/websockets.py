"""Limits on WebSockets to providers. Imported when an agent uses the Responses API.

Their library sends the key along redirects to any host, and answers each ping at once, also if the server does not read
the answers, which stay in memory. fast-agent limits messages to 4 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from websockets.asyncio import client
from websockets.frames import CTRL_OPCODES, Frame

from pallas_gateway.limits import LARGEST_ANSWER_BYTES
from pallas_gateway.runtime.compat.requirements import check_names

if TYPE_CHECKING:
    from websockets.protocol import Event

    from pallas_gateway.runtime.compat.requirements import ReliedOn

MOST_UNSENT_BYTES = 2**24
"""Most unsent bytes of requests and answers to pings; a request with images has some MB."""
MOST_CONTROL_FRAMES = 10_000
"""Most control frames of one connection; servers ping every few seconds."""
RELIED_ON: ReliedOn = (
    (client.connect, "process_redirect", ("self", "exc")),
    (client, "ClientConnection", ()),
    (client.ClientConnection, "data_received", ("self", "data")),
    (client.ClientConnection, "process_event", ("self", "event")),
)


def prepare() -> None:
    """Make the library connect with limits; safe to call again."""
    if client.ClientConnection is not LimitedConnection:
        check_names(RELIED_ON)
        client.ClientConnection = LimitedConnection  # type: ignore[misc]
        client.connect.process_redirect = _refused  # type: ignore[method-assign]


class LimitedConnection(client.ClientConnection):
    """A connection that ends if its server sends more than an answer, or does not read."""

    most_bytes = LARGEST_ANSWER_BYTES
    most_unsent_bytes = MOST_UNSENT_BYTES
    most_control_frames = MOST_CONTROL_FRAMES
    _received = 0
    _control_frames = 0

    def data_received(self, data: bytes) -> None:
        """Process data from the server, or end the connection."""
        self._received += len(data)
        if self._received > self.most_bytes or self.transport.get_write_buffer_size() > self.most_unsent_bytes:
            self.transport.abort()
        else:
            super().data_received(data)

    def process_event(self, event: Event) -> None:
        """Process a frame of a message or a control frame, such as a ping."""
        self._control_frames += isinstance(event, Frame) and event.opcode in CTRL_OPCODES
        if self._control_frames > self.most_control_frames:
            self.transport.abort()
        else:
            super().process_event(event)


def _refused(self: client.connect, exc: Exception) -> Exception:
    """The error of a connection that was redirected."""
    del self
    return exc
