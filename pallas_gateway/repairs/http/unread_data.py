"""A socket with unread data answers the next request.

Symptom: the rest of an answer that is too long is read as the next answer, which may be another caller's.

Repair: a socket that has received more than the answer is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Name

_CONNECTION = "httpcore2:AsyncHTTP11Connection"
CHANGE = Change(
    "unread-data",
    REPAIR,
    ("httpcore2",),
    seen_in="2.16.2",
    replaces=(Name(f"{_CONNECTION}._response_closed", ("self",)),),
    relies_on=(Name(f"{_CONNECTION}._h11_state"), Name("h11:Connection.trailing_data")),
    gone_when="`AsyncHTTP11Connection` closes a socket with trailing data",
)


def changed(original: Callable[[Any], Awaitable[None]], holder: object) -> Callable[[Any], Awaitable[None]]:
    """Return the method that decides what becomes of a socket after an answer."""
    del holder

    @wraps(original)
    async def response_closed(self: Any) -> None:
        unread, _ = self._h11_state.trailing_data
        await (self.aclose() if unread else original(self))

    return response_closed
