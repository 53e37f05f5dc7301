"""The body of a request: its type, and reading it within a limit."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from pallas_gateway.tasks import give_way

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.requests import Request


def is_json(headers: Headers) -> bool:
    """Return true if a body is sent as JSON; a page of another origin needs a preflight to send that (CORS)."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


async def read(request: Request, limit: int) -> bytes | None:
    """Return the body; None if it is larger than `limit` bytes.

    Raises:
        ClientDisconnect: the client disconnected before its request was complete; `AnswerAfterBody` ends the request.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > len(str(limit)) or int(declared) > limit):
        return None
    pieces, left = [], limit
    async for piece in request.stream():
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            return None
    began, body = perf_counter(), b"".join(pieces)
    await give_way(began)
    return body
