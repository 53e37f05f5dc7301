"""Which request of a call carries which token: decided per request, from the context of the call that sends it.

There is no table of tokens by server. The credentials of a call are in its `CallScope`; an
`httpx2.Auth` on each connection reads it when a request leaves, and adds a header only if the request goes to the very
origin that the downstream was configured with. A request without a call in its context, or to another origin, gets
nothing, and what an earlier hop of it was given is taken off. Where a token has to be exchanged first and that fails,
no request leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx2

from pallas_gateway.errors import TokenExchangeError
from pallas_gateway.identity.secret import bearer_of
from pallas_gateway.identity.token_exchange import endpoint_of
from pallas_gateway.runtime.call_scope import current_scope
from pallas_gateway.telemetry import traces
from pallas_gateway.telemetry.redaction import hide_in_this_call

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from pallas_gateway.calls.credentials import Credentials
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.identity.token_exchange import TokenExchange
    from pallas_gateway.runtime.call_scope import Presented
    from pallas_gateway.runtime.protocols import Downstream


def token_endpoint_waited_for(server_name: str) -> str | None:
    """The token endpoint that the current call is waiting for to reach this server, if it is."""
    presented = current_scope.get().presented
    downstream = presented.downstreams.get(server_name) if presented else None
    if presented is None or downstream is None or downstream.token_exchange is None:
        return None
    bearer, exchange = presented.credentials.bearer, downstream.token_exchange
    waits = bearer is not None and presented.exchanger.is_under_way(bearer, exchange)
    return endpoint_of(exchange) if waits else None


def why_without_token(server_name: str) -> TokenExchangeError | None:
    """Why the latest request of the current call to this server was not sent, if for want of a token."""
    presented = current_scope.get().presented
    return presented.failures.get(server_name) if presented else None


async def bearer_for_peer(peer: Downstream) -> Secret | None:
    """Return the token with which the current call calls a peer: that of the peer's entry, or what it may carry.

    Raises:
        TokenExchangeError: no token could be had in exchange for the caller's.
    """
    own = next((value for name, value in peer.headers.items() if name.lower() == "authorization"), None)
    presented = current_scope.get().presented
    bearer = _bearer_for(peer, presented.credentials) if presented else None
    if own is not None or presented is None or bearer is None:
        return bearer_of(own)
    if peer.token_exchange is None:
        return bearer
    _, token = await _Exchanging(bearer, peer.token_exchange, presented).begin()
    hide_in_this_call(token.reveal())
    return token


class CallAuth(httpx2.Auth):
    """Gives each request of one downstream the current call's tokens, as far as it may carry them."""

    def __init__(self, server_name: str, *, has_own_authorization: bool) -> None:
        self._server_name = server_name
        self._has_own_authorization = has_own_authorization

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Refuse: calls run in tasks, and a token may have to be fetched first."""
        raise RuntimeError("the requests of a call are sent by asynchronous clients only")
        yield request  # pragma: no cover  makes it the generator that its caller expects

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Add what this request may carry, then send it; with a token that is no longer taken, once more.

        Raises:
            TokenExchangeError: no token could be had in exchange for the caller's; nothing was sent.
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
            yield request
            return
        exchanging = _Exchanging(bearer, downstream.token_exchange, presented)
        await request.aread()  # so that it can be sent twice
        kept, token = await exchanging.begin()
        _authorise(request, token)
        response = yield request
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            exchanging.forget(token)
            if kept:  # taken before, so revoked meanwhile; one that was issued just now is simply not wanted
                _authorise(request, await exchanging.exchange())
                yield request

    def _take_off_what_was_added(self, request: httpx2.Request) -> None:
        """A request that follows a redirect begins with the headers of the one before, wherever it goes now."""
        if not self._has_own_authorization:
            request.headers.pop("Authorization", None)

    def _downstream_at(self, url: httpx2.URL, presented: Presented | None) -> Downstream | None:
        """The downstream, if the current call knows it and `url` is of its origin."""
        downstream = presented.downstreams.get(self._server_name) if presented else None
        if downstream is None or downstream.url is None or _origin(url) != _origin(httpx2.URL(downstream.url)):
            return None
        return downstream


@dataclass(frozen=True, slots=True)
class _Exchanging:
    """One request's dealings with the authorization server."""

    bearer: Secret
    to: TokenExchange
    presented: Presented

    async def begin(self) -> tuple[bool, Secret]:
        """True if the token was kept from an earlier request, and the token."""
        self.presented.failures.pop(self.to.server, None)
        kept = self.presented.exchanger.kept(self.bearer, self.to)
        return kept is not None, kept or await self.exchange()

    def forget(self, refused: Secret) -> None:
        """Do not use this token again."""
        self.presented.exchanger.forget(self.bearer, self.to, refused)

    async def exchange(self) -> Secret:
        """A token in exchange for the caller's."""
        try:
            return await self.presented.exchanger.exchange(self.bearer, self.to)
        except TokenExchangeError as error:
            # The connection ends of it, and whoever waits for an answer hears no more than that.
            self.presented.failures[self.to.server] = error
            raise


def _bearer_for(downstream: Downstream, credentials: Credentials) -> Secret | None:
    return credentials.bearer if downstream.forwards_bearer else None


def _authorise(request: httpx2.Request, token: Secret | None) -> None:
    if token is not None:
        hide_in_this_call(token.reveal())  # the server may quote it in an error
        request.headers["Authorization"] = f"Bearer {token.reveal()}"


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
