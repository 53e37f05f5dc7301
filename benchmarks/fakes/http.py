"""A raw HTTP/1.1 server: one request at a time per connection, answers written as they are.

Not a server to copy: it trusts its clients, which are the programs measured. Frameworks cost a millisecond per request;
this costs some twenty microseconds, so that the two cores of a small machine are left to what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, override

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HOST = "127.0.0.1"
_END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `path` is without the query, `connection` the number of the connection it came on."""

    method: str
    path: str
    head: bytes
    body: bytes
    connection: int


type Answer = Callable[[Request, asyncio.Transport], None]
"""Writes a whole HTTP response to the transport, now or later."""


def whole(body: bytes, *, content_type: str = "application/json", status: str = "200 OK") -> bytes:
    """A response of known length."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def chunk(data: bytes) -> bytes:
    """One chunk of a response of unknown length."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


def as_json(value: Mapping[str, Any]) -> bytes:
    """The response to a request for JSON."""
    return whole(json.dumps(value).encode())


class Connection(asyncio.Protocol):
    """Reads requests off one connection and hands each to `answer`."""

    _numbers = itertools.count()

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._buffer = bytearray()
        self._number = next(self._numbers)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (request := self._next_request()) is not None:
            self._answer(request, self._transport)

    def _next_request(self) -> Request | None:
        end = self._buffer.find(_END_OF_HEAD)
        if end < 0:
            return None
        head = bytes(self._buffer[:end])
        begin = end + len(_END_OF_HEAD)
        length = content_length(head)
        if len(self._buffer) < begin + length:
            return None
        body = bytes(self._buffer[begin : begin + length])
        del self._buffer[: begin + length]
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        return Request(method, path.partition("?")[0], head, body, self._number)


def content_length(head: bytes) -> int:
    """The length a head announces, 0 if it announces none."""
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


def main(answer: Answer) -> None:
    """Serve on a free port until killed; the port is the first line on stdout."""
    argparse.ArgumentParser(description="A stand-in of the benchmarks").parse_args()
    uvloop.run(_serve(answer))


async def _serve(answer: Answer) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answer), HOST, 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()
