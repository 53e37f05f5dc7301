"""Exchanges callers' tokens for tokens of one downstream each (RFC 8693), and caches them while both are valid.

Issued tokens are cached in memory only, by the SHA-256 hash of the caller's token and the whole request, so one
caller's token is never used for another caller or another server. Failures are not cached.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Literal, Self
from urllib.parse import quote_plus, urlsplit

import httpx

from pallas_gateway.errors import TokenExchangeError
from pallas_gateway.http_answers import AnswerError, limited
from pallas_gateway.identity.secret import Secret
from pallas_gateway.tasks import TaskOwner

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


_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105  a name, not a secret
_USABLE = {_ACCESS_TOKEN, "urn:ietf:params:oauth:token-type:jwt"}
_DIGITS = re.compile(r"[0-9]+")
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")
_ERROR_CODES = {  # RFC 6749 sections 4.1.2.1 and 5.2, RFC 8693 section 2.2.2
    *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type"),
    *("invalid_scope", "invalid_target", "access_denied", "server_error", "temporarily_unavailable"),
}


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """The exchange for one downstream.

    `server` is the downstream's name; without a `client_secret` the client is public. Endpoint and resource are
    absolute URLs; `scope` is a space-separated list.
    """

    server: str
    token_endpoint: str
    resource: str
    audience: str | None = None
    scope: str | None = None
    client_id: str | None = None
    client_secret: Secret | None = None
    client_auth: Literal["basic", "post"] = "basic"


def failed(to: TokenExchange, why: str) -> TokenExchangeError:
    """The error of an exchange; `why` holds no text that was sent or received."""
    return TokenExchangeError(server=to.server, token_endpoint=endpoint_of(to), why=why)


def endpoint_of(to: TokenExchange) -> str:
    """The token endpoint without user and query, which may hold secrets."""
    parts = urlsplit(to.token_endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def request_of(subject: Secret, to: TokenExchange) -> tuple[dict[str, str], httpx.Auth]:
    """Form fields and client authentication of one request (RFC 8693 section 2.1, RFC 6749 section 2.3.1)."""
    fields = {
        "grant_type": _GRANT,
        "subject_token": subject.reveal(),
        "subject_token_type": _ACCESS_TOKEN,
        "requested_token_type": _ACCESS_TOKEN,
        "resource": to.resource,
        "audience": to.audience,
        "scope": to.scope,
    }
    body = {name: value for name, value in fields.items() if value is not None}
    if to.client_secret is not None and to.client_auth == "basic":
        return body, httpx.BasicAuth(quote_plus(to.client_id or ""), quote_plus(to.client_secret.reveal()))
    if to.client_id is not None:
        body["client_id"] = to.client_id
    if to.client_secret is not None:
        body["client_secret"] = to.client_secret.reveal()
    return body, httpx.Auth()


@dataclass(frozen=True, slots=True)
class Issued:
    """A token, and its lifetime in seconds if known."""

    token: Secret
    expires_in: float | None


def read_answer(response: httpx.Response, to: TokenExchange) -> Issued:
    """The token in an answer (RFC 8693 section 2.2.1).

    Raises:
        TokenExchangeError: the answer has no token that can be sent as a bearer (RFC 6750 section 2.1).
    """
    answer = _json_object(response)
    if response.is_redirect:
        raise failed(to, "it redirects, which is not followed")
    if response.status_code != HTTPStatus.OK:
        raise failed(to, f"HTTP {response.status_code}{_error_code(answer)}")
    if not answer:
        raise failed(to, "its answer is not a JSON object")
    if str(answer.get("token_type")).lower() != "bearer":
        raise failed(to, "its answer has another token_type than Bearer")
    if str(answer.get("issued_token_type", _ACCESS_TOKEN)) not in _USABLE:
        raise failed(to, "its answer has another issued_token_type than an access token's")
    token = answer.get("access_token")
    if not isinstance(token, str) or not _HEADER_SAFE.fullmatch(token):
        raise failed(to, "its answer has no access_token that a header could carry")
    return Issued(Secret(token), _seconds(answer.get("expires_in")))


def end_of(subject: Secret) -> float | None:
    """The `exp` (Unix time) of a token that is a JWT. Not verified: it only shortens the time in the cache."""
    from pallas_gateway.identity.jwt_tokens import unverified_claims  # noqa: PLC0415  joserfc has 50 modules

    claims = unverified_claims(subject.reveal())
    return _number(claims.get("exp")) if isinstance(claims, dict) else None


def _json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _error_code(answer: dict[str, Any]) -> str:
    """A code of the RFCs, or nothing: other text may quote the request."""
    code = answer.get("error")
    return f", {code}" if isinstance(code, str) and code in _ERROR_CODES else ""


def _seconds(value: object) -> float | None:
    """`expires_in`, which some servers send as a string."""
    return _number(float(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value)


def _number(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
