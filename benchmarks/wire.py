"""The client's end of HTTP/1.1, by hand: one request at a time, its whole response."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast, override

END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response; the body of a chunked one without its chunk sizes."""

    head: bytes
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    def header(self, name: str) -> str | None:
        """A header's value."""
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.decode().lower() == name:
                return value.decode().strip()
        return None


class Connection(asyncio.Protocol):
    """One connection to a server: one request at a time. `is_last`: the server closes or has closed it."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiting: asyncio.Future[Response] | None = None
        self._until: bytes | None = None
        self._body_begins = -1
        self._length: int | None = None
        self.is_last = False

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.is_last = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionResetError("the server closed the connection"))

    @override
    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._body_begins < 0 and not self._read_head():
            return
        if self._until is not None:
            is_whole = self._until in self._buffer
        elif self._length is not None:
            is_whole = len(self._buffer) >= self._body_begins + self._length
        else:
            is_whole = self._buffer.endswith(b"0\r\n\r\n")  # the last chunk; JSON never ends a chunk like this
        if is_whole and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(self._take())

    async def exchange(self, request: bytes, until: bytes | None = None) -> Response:
        """Send one request and return its whole response; `until`: what has come of a chunked one with these bytes."""
        self._until = until
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        self._transport.abort()

    def _read_head(self) -> bool:
        end = self._buffer.find(END_OF_HEAD)
        if end < 0:
            return False
        head = bytes(self._buffer[:end]).lower()
        self._body_begins = end + len(END_OF_HEAD)
        self.is_last = b"\r\nconnection: close" in head
        if b"\r\ntransfer-encoding: chunked" in head:
            self._length = None
        else:
            _, found, rest = head.partition(b"\r\ncontent-length:")
            self._length = int(rest.split(b"\r\n", 1)[0]) if found else 0
        return True

    def _take(self) -> Response:
        head, body = bytes(self._buffer[: self._body_begins]), bytes(self._buffer[self._body_begins :])
        response = Response(head, body if self._length is not None else _dechunked(body))
        self._buffer.clear()
        self._body_begins, self._length = -1, None
        return response


def _dechunked(body: bytes) -> bytes:
    parts, begin = [], 0
    while (end := body.find(b"\r\n", begin)) >= 0 and (size := int(body[begin:end], 16)):
        parts.append(body[end + 2 : end + 2 + size])
        begin = end + 2 + size + 2
    return b"".join(parts)
