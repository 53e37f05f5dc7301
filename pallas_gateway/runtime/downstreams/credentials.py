"""Adds a call's tokens to its requests. Decided for each request, from the context of the call that sends it.

There is no table of tokens by server. The credentials of a call are in its `CallScope`; an `httpx2.Auth` on each
connection reads it for each request, and adds a header only if the request goes to the configured origin of the
downstream. A request outside of a call, or to another origin after a redirect, carries no token. If a token must be
exchanged and that fails, no request is sent.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, override

import httpx2
from fast_agent.core.exceptions import walk_exception_chain
from mcp import MCPError

from pallas_gateway.errors import TokenExchangeError
from pallas_gateway.http_answers import refusal
from pallas_gateway.identity.secret import bearer_of
from pallas_gateway.identity.token_exchange import endpoint_of
from pallas_gateway.runtime.downstreams.connections.answers import STATUS
from pallas_gateway.runtime.downstreams.listings.reading import ListingError
from pallas_gateway.runtime.protocols import CANNOT_LIST
from pallas_gateway.runtime.scope import current_scope
from pallas_gateway.telemetry import traces
from pallas_gateway.telemetry.redaction import hide_in_this_call

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from pallas_gateway.calls.call import Credentials
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.identity.token_exchange import TokenExchange
    from pallas_gateway.runtime.protocols import Downstream
    from pallas_gateway.runtime.scope import Presented

_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def token_endpoint_waited_for(server_name: str) -> str | None:
    """The token endpoint that the current call is waiting for before it reaches this server, or None."""
    presented = current_scope.get().presented
    downstream = presented.downstreams.get(server_name) if presented else None
    if presented is None or downstream is None or downstream.token_exchange is None:
        return None
    bearer, exchange = presented.credentials.bearer, downstream.token_exchange
    waits = bearer is not None and presented.exchanger.is_under_way(bearer, exchange)
    return endpoint_of(exchange) if waits else None


def why_without_token(server_name: str) -> TokenExchangeError | None:
    """The token error that kept the current call's latest request to this server from being sent, or None."""
    presented = current_scope.get().presented
    return presented.failures.get(server_name) if presented else None


def refuses_caller(server_name: str, error: BaseException) -> bool:
    """Return True if a server that receives the current call's token has refused it, or no token could be had."""
    if not _receives_token(server_name):
        return False
    is_unsent = any(isinstance(one, TokenExchangeError) for one in walk_exception_chain(error))
    return is_unsent or status_of(error) in _REFUSALS


def refusal_for_others(server_name: str, error: BaseException) -> str | None:
    """Return the refusal of a server that receives the current call's token as other callers may read it.

    Its own words are left out, because they may be about the caller. None for another error or server.
    """
    status = status_of(error) if _receives_token(server_name) else None
    if status is None:
        return None
    is_listing = isinstance(error, ListingError) and status not in _REFUSALS
    return f"{CANNOT_LIST if is_listing else ''}{refusal(status, httpx2.Headers())}"


def note_refusal(server_name: str, error: BaseException) -> None:
    """Note for the model and the progress of the current call that it has no tools of this server, and why."""
    presented = current_scope.get().presented
    if presented is None:
        return
    has_token, status = presented.credentials.bearer is not None, refusal_for_others(server_name, error)
    if status is None:
        why = f"No token could be had for the server '{server_name}'"
    elif has_token:
        why = f"The server '{server_name}' refuses the caller's token ({status})"
    else:
        why = f"The server '{server_name}' requires the token of a caller, and this call has none ({status})"
    presented.refusals[server_name] = f"{why}. Its tools are missing in this call."


def _receives_token(server_name: str) -> bool:
    presented = current_scope.get().presented
    downstream = presented.downstreams.get(server_name) if presented else None
    return downstream is not None and downstream.forwards_bearer


def status_of(error: BaseException) -> int | None:
    """The status of the HTTP refusal behind an error."""
    data = (one.error.data for one in walk_exception_chain(error) if isinstance(one, MCPError))
    return next((one[STATUS] for one in data if isinstance(one, dict) and STATUS in one), None)


async def bearer_for_peer(peer: Downstream) -> Secret | None:
    """Return the token with which the current call calls a peer: that of the peer's entry, or the caller's.

    Raises:
        TokenExchangeError: the caller's token could not be exchanged.
    """
    own = next((value for name, value in peer.headers.items() if name.lower() == "authorization"), None)
    presented = current_scope.get().presented
    bearer = _bearer_for(peer, presented.credentials) if presented else None
    if own is not None or presented is None or bearer is None:
        return bearer_of(own)
    if peer.token_exchange is None:
        return bearer
    to = peer.token_exchange
    token = _kept(presented, bearer, to) or await _exchange(presented, bearer, to)
    hide_in_this_call(token.reveal())
    return token


class CallAuth(httpx2.Auth):
    """Adds the current call's token to each request to one downstream, if the downstream may receive it."""

    def __init__(self, server_name: str, *, has_own_authorization: bool) -> None:
        self._server_name = server_name
        self._has_own_authorization = has_own_authorization

    @override
    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Refuse synchronous requests: a token may have to be fetched asynchronously."""
        raise RuntimeError("the requests of a call are sent by asynchronous clients only")
        yield request  # type: ignore[unreachable]  # pragma: no cover  makes this a generator

    @override
    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Add the token and send the request; send it again if a cached token is refused.

        Raises:
            TokenExchangeError: the caller's token could not be exchanged; nothing was sent.
        """
        self._take_off_what_was_added(request)
        traces.hand_on(request.headers)
        presented = current_scope.get().presented
        downstream = self._downstream_at(request.url, presented)
        if presented is None or downstream is None:
            yield request
            return
        bearer = None if self._has_own_authorization else _bearer_for(downstream, presented.credentials)
        if bearer is None or downstream.token_exchange is None:
            _authorise(request, bearer)
            self._note_refusal((yield request))
            return
        to = downstream.token_exchange
        await request.aread()  # so that it can be sent twice
        token = (kept := _kept(presented, bearer, to)) or await _exchange(presented, bearer, to)
        _authorise(request, token)
        response = yield request
        self._note_refusal(response)
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            presented.exchanger.forget(bearer, to, token)
            if kept is not None:  # a cached token may be revoked; a token that was just issued would be refused again
                _authorise(request, await _exchange(presented, bearer, to))
                self._note_refusal((yield request))

    def _note_refusal(self, response: httpx2.Response) -> None:
        """Have the cached listings removed that this downstream sent for the credential that it now refuses."""
        operations = current_scope.get().operations
        if response.status_code in _REFUSALS and operations is not None:
            operations.on_refused(self._server_name)

    def _take_off_what_was_added(self, request: httpx2.Request) -> None:
        """Remove our headers: a redirected request begins with those of the request before, also to another host."""
        if not self._has_own_authorization:
            request.headers.pop("Authorization", None)

    def _downstream_at(self, url: httpx2.URL, presented: Presented | None) -> Downstream | None:
        """The downstream, if the current call knows it and `url` has its origin."""
        downstream = presented.downstreams.get(self._server_name) if presented else None
        if downstream is None or downstream.url is None or _origin(url) != _origin(httpx2.URL(downstream.url)):
            return None
        return downstream


async def _exchange(presented: Presented, bearer: Secret, to: TokenExchange) -> Secret:
    try:
        return await presented.exchanger.exchange(bearer, to)
    except TokenExchangeError as error:
        # The connection ends, and its waiting requests only report that.
        presented.failures[to.server] = error
        raise


def _kept(presented: Presented, bearer: Secret, to: TokenExchange) -> Secret | None:
    """Return the token that an earlier request has got."""
    presented.failures.pop(to.server, None)
    return presented.exchanger.kept(bearer, to)


def _bearer_for(downstream: Downstream, credentials: Credentials) -> Secret | None:
    return credentials.bearer if downstream.forwards_bearer else None


def _authorise(request: httpx2.Request, token: Secret | None) -> None:
    if token is not None:
        hide_in_this_call(token.reveal())  # the server may quote it in an error
        request.headers["Authorization"] = f"Bearer {token.reveal()}"


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
