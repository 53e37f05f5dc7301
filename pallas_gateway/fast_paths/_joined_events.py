"""Events that are joined before a provider's library parses them."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Protocol, override

import httpx2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    class Joiner(Protocol):
        """Joins the events of one answer."""

        def joined(self, data: bytes) -> bytes:
            """Return the bytes of one read, with fewer events; those of an event without its end may be held back."""

        def left(self) -> bytes:
            """Return what was held back."""


_EVENTS = "text/event-stream"
INSIDE_OF_STRING = (
    rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})'
    rb'|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})[^"\\\x00-\x1f]*+)*+'
)
"""A pattern of what is between the quotes of a string in JSON, without half a pair of surrogates."""


def joining(make: Callable[..., Any], make_joiner: Callable[[], Joiner]) -> Callable[..., Any]:
    """`make` for clients of a provider that join the events of their answers, after these were limited."""

    @wraps(make, updated=())
    def client(**settings: Any) -> Any:
        made = make(**settings)
        hooks = made._client.event_hooks["response"]
        if not any(getattr(hook, "args", None) == (make_joiner,) for hook in hooks):
            hooks.append(partial(join, make_joiner))
        return made

    return client


async def join(make_joiner: Callable[[], Joiner], response: httpx2.Response) -> None:
    """A hook of HTTP clients: join the events of a response."""
    if response.headers.get("Content-Type", "").lower().startswith(_EVENTS):
        response.stream = JoinedEvents(response.stream, make_joiner())


class JoinedEvents(httpx2.AsyncByteStream):
    """A body with fewer events."""

    def __init__(self, stream: Any, joiner: Joiner) -> None:
        self._stream = stream
        self._joiner = joiner

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(aiter(self._stream)) as stream:  # left open, asyncio would close it in a task of its own
            async for piece in stream:
                if joined := self._joiner.joined(piece):
                    yield joined
            if left := self._joiner.left():
                yield left

    @override
    async def aclose(self) -> None:
        """Close the connection's stream."""
        await self._stream.aclose()
