"""Which request of a call carries which token: decided per request, from the context of the call that sends it.

There is no table of tokens. The credentials of a call are a ContextVar of the task that runs it; an `httpx2.Auth` on
each connection reads it when a request leaves, and adds a header only if the request goes to the very origin that the
downstream was configured with. A request without a call in its context, or to another origin, gets nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2

from pallas_gateway.calls.credentials import NESTED_CALL_HEADER, Credentials
from pallas_gateway.telemetry import traces

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from pallas_gateway.runtime.ports import Downstream


@dataclass(frozen=True, slots=True)
class _Presented:
    credentials: Credentials
    downstreams: Mapping[str, Downstream]


_presented: ContextVar[_Presented | None] = ContextVar("pallas_presented_credentials", default=None)


@contextmanager
def presenting(credentials: Credentials, downstreams: Mapping[str, Downstream]) -> Iterator[None]:
    """Requests sent inside the block may carry `credentials`, each as its downstream allows."""
    token = _presented.set(_Presented(credentials, downstreams))
    try:
        yield
    finally:
        _presented.reset(token)


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


class CallAuth(httpx2.Auth):
    """Adds the current call's tokens to requests of one downstream."""

    def __init__(self, server_name: str, *, has_own_authorization: bool) -> None:
        self._server_name = server_name
        self._has_own_authorization = has_own_authorization

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Add what this request may carry, then send it."""
        for name, value in self._headers_for(request.url).items():
            request.headers[name] = value
        traces.hand_on(request.headers)
        yield request

    def _headers_for(self, url: httpx2.URL) -> dict[str, str]:
        presented = _presented.get()
        downstream = presented.downstreams.get(self._server_name) if presented else None
        if presented is None or downstream is None or downstream.url is None:
            return {}
        if _origin(url) != _origin(httpx2.URL(downstream.url)):
            return {}
        headers: dict[str, str] = {}
        credentials = presented.credentials
        if downstream.peer and credentials.nested_call_token:
            headers[NESTED_CALL_HEADER] = credentials.nested_call_token.reveal()
        if downstream.forwards_bearer and not self._has_own_authorization and credentials.bearer:
            headers["Authorization"] = f"Bearer {credentials.bearer.reveal()}"
        return headers
