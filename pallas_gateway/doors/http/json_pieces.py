"""A response of JSON in pieces: what a slow client has not read yet is a piece, and not the whole document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from starlette.types import Receive, Scope, Send

PIECE = 64 * 1024
_HEADERS = [(b"content-type", b"application/json")]
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class JsonInPieces:
    """The response with a document, whose lists are emptied as they are sent."""

    def __init__(self, document: Any) -> None:
        self._document = document

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Send the document; the next piece is made when the one before was taken."""
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        for piece in pieces(self._document):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def pieces(document: Any) -> Iterator[bytes]:
    """Encode a document in pieces of `PIECE` characters or somewhat more; the entries of its lists become None."""
    gathered: list[str] = []
    size = 0
    for part in _parts(document):
        gathered.append(part)
        size += len(part)
        if size >= PIECE:
            yield "".join(gathered).encode()
            gathered, size = [], 0
    yield "".join(gathered).encode()


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for number, (key, one) in enumerate(value.items()):
            yield f"{',' if number else '{'}{_encode(key)}:"
            yield from _parts(one)
        yield "}" if value else "{}"
    elif isinstance(value, list):
        yield "["
        for number, one in enumerate(value):
            value[number] = None
            yield "," if number else ""
            yield from _parts(one)
        yield "]"
    elif isinstance(value, str):
        yield '"'
        for start in range(0, len(value), PIECE):
            yield _encode(value[start : start + PIECE])[1:-1]
        yield '"'
    else:
        yield _encode(value)
