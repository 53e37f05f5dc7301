"""Time-outs of requests to downstreams, and of agents used as tools: asking the caller does not count.

A downstream of the initialize era asks while its tool call is under way, so without this a question that stays open for
longer than `read_timeout_seconds`, or than HTTP may be silent (`http_read_timeout_seconds`), would fail the tool call.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.asking.pauses import PausableDeadline
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    import httpx2


async def allow_silence(request: httpx2.Request) -> None:
    """Lengthen the read time-out of an HTTP request by the time for which a question of its call can be open.

    As the request hook of an HTTP client: the time-out of a request that waits cannot be changed any more.
    """
    seconds: Mapping[str, float | None] = request.extensions.get("timeout", {})
    if (read := seconds.get("read")) is not None:
        request.extensions = {**request.extensions, "timeout": {**seconds, "read": longest_silence(read)}}


def longest_silence(seconds: float) -> float:
    """`seconds`, lengthened by the time for which a question of the call can be open."""
    return seconds + current_scope.get().questions.longest_wait


class PausableAsyncio:
    """The module `asyncio`, with deadlines that pause while the caller is asked."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def wait_for[T](self, awaitable: Awaitable[T], timeout: float) -> T:  # noqa: ASYNC109  as in asyncio
        async with asyncio.timeout(timeout) as deadline:
            with current_scope.get().questions.pauses.including(PausableDeadline(deadline)):
                return await awaitable
