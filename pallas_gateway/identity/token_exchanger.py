"""Exchanges callers' tokens for tokens of one downstream each, and caches them while both are valid.

Issued tokens are cached in memory only, by the SHA-256 hash of the caller's token and the whole request, so one
caller's token is never used for another caller or another server. Failures are not cached.
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

from pallas_gateway.http_answers import AnswerError, limited
from pallas_gateway.identity.token_exchange import TokenExchange, end_of, failed, read_answer, request_of
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.identity.token_exchange import Issued

EXCHANGE_SECONDS = 5.0
MARGIN_SECONDS = 10.0  # before its end a token is replaced, because its request takes time too
UNSTATED_SECONDS = 60.0  # in the cache for a token without `expires_in`
LARGEST_ANSWER_BYTES = 2**20
MOST_KEPT = 10_000  # tokens; beyond that the oldest is dropped

type _Key = tuple[bytes, TokenExchange]


@dataclass(frozen=True, slots=True)
class _Kept:
    token: Secret
    until: float  # by the monotonic clock


class TokenExchanger:
    """Exchanges tokens and caches them; an async context manager around its connections and its cache.

    A token is cached for `MARGIN_SECONDS` less than its `expires_in`, and never beyond the `exp` of a caller's JWT: a
    caller who loses access to the gateway loses access to its downstreams. Without `expires_in` it is cached for
    `UNSTATED_SECONDS` at most, for the requests of one call.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        exchange_seconds: float = EXCHANGE_SECONDS,
        most_kept: int = MOST_KEPT,
    ) -> None:
        self._exchange_seconds = exchange_seconds
        self._most_kept = most_kept
        self._monotonic = monotonic
        self._wall = wall
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._under_way: dict[_Key, asyncio.Task[Secret]] = {}
        self._tasks = TaskOwner(close_seconds=exchange_seconds)
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        """Open the HTTP client."""
        # Without cookies: all callers share the client, and one caller's session must not be sent with another's token.
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        client = httpx.AsyncClient(timeout=None, cookies=no_cookies)  # noqa: S113  each exchange has a deadline
        self._client = limited(client, most_bytes=LARGEST_ANSWER_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Drop every token; waiting callers get an error."""
        client, self._client = self._client, None
        await self._tasks.cancel_all()
        self._kept.clear()
        if client is not None:
            await client.aclose()

    def __len__(self) -> int:
        """The number of cached tokens."""
        return len(self._kept)

    async def exchange(self, subject: Secret, to: TokenExchange) -> Secret:
        """The token for `to` in exchange for the caller's; calls with the same one share one request.

        Raises:
            TokenExchangeError: the authorization server refused, did not answer, or its answer has no usable token.
        """
        key = _key(subject, to)
        if (kept := self.kept(subject, to)) is not None:
            return kept
        task = self._under_way.get(key)
        if task is None:
            task = self._tasks.spawn(self._issue(key, subject, to), name=f"exchange a token for {to.server}")
            self._under_way[key] = task
        await asyncio.wait({task})  # not `await task`: a cancelled waiter must not cancel it for the others
        if task.cancelled():
            raise failed(to, "the gateway is stopping")
        return task.result()

    def kept(self, subject: Secret, to: TokenExchange) -> Secret | None:
        """The cached token, None if there is none that is still valid."""
        key = _key(subject, to)
        kept = self._kept.get(key)
        if kept is None or self._monotonic() < kept.until:
            return kept.token if kept else None
        del self._kept[key]
        return None

    def forget(self, subject: Secret, to: TokenExchange, refused: Secret) -> None:
        """Drop a token that the downstream has refused, unless it was replaced meanwhile."""
        key = _key(subject, to)
        if (kept := self._kept.get(key)) is not None and kept.token == refused:
            del self._kept[key]

    def is_under_way(self, subject: Secret, to: TokenExchange) -> bool:
        return _key(subject, to) in self._under_way

    async def _issue(self, key: _Key, subject: Secret, to: TokenExchange) -> Secret:
        try:
            issued = read_answer(await self._ask(subject, to), to)
            self._keep(key, issued, subject)
            return issued.token
        finally:
            self._under_way.pop(key, None)

    async def _ask(self, subject: Secret, to: TokenExchange) -> httpx.Response:
        """The authorization server's answer. Errors have no cause, whose text may quote the request."""
        if self._client is None:
            raise failed(to, "the gateway is stopping")
        body, auth = request_of(subject, to)
        try:
            async with asyncio.timeout(self._exchange_seconds):
                return await self._client.post(
                    to.token_endpoint, data=body, auth=auth, headers={"Accept": "application/json"}
                )
        except TimeoutError:
            why = f"no answer within {self._exchange_seconds:g} s"
        except httpx.ConnectError:
            why = "it cannot be reached"
        except AnswerError as error:
            why = str(error)
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
        while len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)


def _key(subject: Secret, to: TokenExchange) -> _Key:
    return sha256(subject.reveal().encode()).digest(), to
