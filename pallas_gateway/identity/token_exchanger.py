"""Exchanges callers' tokens for tokens of one downstream each, and remembers those no longer than both live.

What is issued is kept in memory only, under the SHA-256 hash of the caller's token together with everything that was
asked for, so one caller's token is never found by another caller or for another server. Nothing is written, and a
failure is not remembered.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Self

import httpx

from pallas_gateway.identity.token_exchange import TokenExchange, end_of, failed, read_answer, request_of
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.identity.token_exchange import Issued

EXCHANGE_SECONDS = 5.0
"""How long an authorization server may take to answer."""
MARGIN_SECONDS = 10.0
"""An issued token is not used for its last moments: the request that carries it takes its time too."""
UNSTATED_SECONDS = 60.0
"""How long a token without `expires_in` is kept; see `TokenExchanger`."""
MOST_KEPT = 10_000
"""Tokens kept at once; beyond that the oldest is forgotten and asked for again when it is needed."""

type _Key = tuple[bytes, TokenExchange]


@dataclass(frozen=True, slots=True)
class _Kept:
    token: Secret
    until: float  # by the monotonic clock


class TokenExchanger:
    """Exchanges tokens and keeps what was issued; an async context manager around its connections and its memory.

    A token is kept `MARGIN_SECONDS` less than its `expires_in`, and never beyond the `exp` of the caller's token if
    that is a JWT: who is locked out at the front is not let in at the back. Without `expires_in` it is kept for at
    most `UNSTATED_SECONDS`: nobody said how long it lives, so that saves the requests of one call and little more.
    """

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._under_way: dict[_Key, asyncio.Task[Secret]] = {}
        self._tasks = TaskOwner(close_seconds=EXCHANGE_SECONDS)
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        """Be able to exchange."""
        # One cookie jar for all callers: a session of one must not come along with the next one's token.
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        self._client = httpx.AsyncClient(timeout=None, cookies=no_cookies)  # noqa: S113  each exchange has a deadline
        return self

    async def __aexit__(self, *_: object) -> None:
        """Forget every token; whoever still waits for one is told that there is none."""
        client, self._client = self._client, None
        await self._tasks.cancel_all()
        self._kept.clear()
        if client is not None:
            await client.aclose()

    def __len__(self) -> int:
        """How many tokens are kept."""
        return len(self._kept)

    async def exchange(self, subject: Secret, to: TokenExchange) -> Secret:
        """The token for `to` in exchange for the caller's; calls with the same one share one request.

        Raises:
            TokenExchangeError: the authorization server refused, did not answer, or answered nothing usable; says
                which one, for which downstream, and why.
        """
        key = _key(subject, to)
        if (kept := self.kept(subject, to)) is not None:
            return kept
        task = self._under_way.get(key)
        if task is None:
            task = self._tasks.spawn(self._issue(key, subject, to), name=f"exchange a token for {to.server}")
            self._under_way[key] = task
        await asyncio.wait({task})  # not the task itself: a waiter that is cancelled must not end it for the others
        if task.cancelled():
            raise failed(to, "the gateway is stopping")
        return task.result()

    def kept(self, subject: Secret, to: TokenExchange) -> Secret | None:
        """The token that is kept for these two, if there is one and it is still good."""
        key = _key(subject, to)
        kept = self._kept.get(key)
        if kept is None or self._monotonic() < kept.until:
            return kept.token if kept else None
        del self._kept[key]
        return None

    def forget(self, subject: Secret, to: TokenExchange, refused: Secret) -> None:
        """Forget a token that the downstream has refused, unless another one has taken its place meanwhile."""
        key = _key(subject, to)
        if (kept := self._kept.get(key)) is not None and kept.token == refused:
            del self._kept[key]

    def is_under_way(self, subject: Secret, to: TokenExchange) -> bool:
        """Whether the authorization server is being asked for this very token."""
        return _key(subject, to) in self._under_way

    async def _issue(self, key: _Key, subject: Secret, to: TokenExchange) -> Secret:
        try:
            issued = read_answer(await self._ask(subject, to), to)
            self._keep(key, issued, subject)
            return issued.token
        finally:
            self._under_way.pop(key, None)

    async def _ask(self, subject: Secret, to: TokenExchange) -> httpx.Response:
        """The authorization server's answer. Causes are left out: their texts may show what was sent."""
        if self._client is None:
            raise failed(to, "the gateway is stopping")
        body, auth = request_of(subject, to)
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS):
                return await self._client.post(
                    to.token_endpoint, data=body, auth=auth, headers={"Accept": "application/json"}
                )
        except TimeoutError:
            why = f"no answer within {EXCHANGE_SECONDS:g} s"
        except httpx.ConnectError:
            why = "it cannot be reached"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = type(error).__name__
        raise failed(to, why)

    def _keep(self, key: _Key, issued: Issued, subject: Secret) -> None:
        seconds = UNSTATED_SECONDS if issued.expires_in is None else issued.expires_in - MARGIN_SECONDS
        for end in (end_of(subject), end_of(issued.token)):
            if end is not None:
                seconds = min(seconds, end - self._wall())
        now = self._monotonic()
        for stale in [key for key, kept in self._kept.items() if kept.until <= now]:
            del self._kept[stale]
        if seconds <= 0:
            return
        self._kept[key] = _Kept(issued.token, now + seconds)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)


def _key(subject: Secret, to: TokenExchange) -> _Key:
    return sha256(subject.reveal().encode()).digest(), to
