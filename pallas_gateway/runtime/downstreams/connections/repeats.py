"""Tool calls that are sent once more: they have met a gateway that is stopping, where nothing has run yet."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, override

import httpx2

from pallas_gateway.errors import STOPPING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

LONGEST_WAIT_SECONDS = 5.0
"""Longest `Retry-After` that is obeyed; a longer one is shortened, because another replica may answer."""
REFUSED_WAIT_SECONDS = 1.0
"""Wait after a refused connection."""
_log = logging.getLogger("pallas.runtime")


class RepeatingAuth(httpx2.Auth):
    """Sends a request once more if a gateway that is stopping has refused it; `inner` authorises each request."""

    def __init__(self, server: str, inner: httpx2.Auth) -> None:
        self._server = server
        self._inner = inner

    @override
    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Leave it to `inner`."""
        return self._inner.sync_auth_flow(request)

    @override
    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Authorise and send the request."""
        flow = self._inner.async_auth_flow(request)
        try:
            sending, is_repeated = await anext(flow), False
            while True:
                response = yield sending
                if not is_repeated and await _is_stopping(response):
                    is_repeated = True
                    await pause(self._server, "it is stopping", _wait_of(response))
                else:
                    sending = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


async def pause(server: str, why: str, seconds: float) -> None:
    """Log that a request is sent again, and wait before that."""
    # The server refused the connection, or is a gateway that is stopping: nothing has run.
    _log.info("tool call repeated", extra={"server": server, "error": why})
    await asyncio.sleep(seconds)


async def _is_stopping(response: httpx2.Response) -> bool:
    """Return True for the answer of a gateway that drains; it has not begun the call."""
    if response.status_code != HTTPStatus.SERVICE_UNAVAILABLE or "Retry-After" not in response.headers:
        return False
    await response.aread()
    return STOPPING in response.text


def _wait_of(response: httpx2.Response) -> float:
    seconds = response.headers["Retry-After"]
    return min(float(seconds), LONGEST_WAIT_SECONDS) if seconds.isdecimal() else LONGEST_WAIT_SECONDS
