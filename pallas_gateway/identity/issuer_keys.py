"""The public keys of an authorization server (RFC 7517), cached and fetched again when a token names a new key.

Cached keys are used until a fetch succeeds, so tokens stay valid while the authorization server is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, import_key

from pallas_gateway.http_answers import AnswerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from joserfc.jwk import Key

    from pallas_gateway.tasks import TaskOwner

FETCH_SECONDS = 5.0
FRESH_SECONDS = 3600.0  # between two fetches, so that a withdrawn key is noticed
RETRY_SECONDS = 60.0  # after a failed fetch, because a fetch may delay a caller
MOST_FETCHES = 5  # within `PER_SECONDS`: tokens with invented key ids must not flood the authorization server
PER_SECONDS = 30.0
_PUBLIC_KEY_TYPES = ("RSA", "EC", "OKP")

_log = logging.getLogger("pallas.identity")


class IssuerKeys:
    """The key set behind one `jwks_uri`."""

    def __init__(
        self,
        jwks_uri: str,
        *,
        client: httpx.AsyncClient,
        tasks: TaskOwner,
        clock: Callable[[], float] = monotonic,
        fetch_seconds: float = FETCH_SECONDS,
    ) -> None:
        self._fetch_seconds = fetch_seconds
        self._uri = jwks_uri
        self._client = client
        self._tasks = tasks
        self._clock = clock
        self._keys: KeySet | None = None
        self._look_again_at = float("-inf")
        self._began: deque[float] = deque(maxlen=MOST_FETCHES)
        self._fetching: asyncio.Task[None] | None = None
        self._failure: str | None = None

    async def current(self) -> KeySet | None:
        """The cached keys, fetched again first if they are stale; None if no fetch has succeeded."""
        if self._keys is None or self._clock() >= self._look_again_at:
            return await self.newer()
        return self._keys

    async def newer(self) -> KeySet | None:
        """The keys after another fetch, or the cached ones if there were too many fetches lately."""
        self.refresh_soon()
        if self._fetching is not None:
            await asyncio.wait({self._fetching})  # shared by all waiting callers
        return self._keys

    def refresh_soon(self) -> None:
        """Begin a fetch, unless one is running or there were too many lately."""
        if self._fetching is not None and not self._fetching.done():
            return
        self._fetching = None
        if len(self._began) < MOST_FETCHES or self._clock() - self._began[0] >= PER_SECONDS:
            self._began.append(self._clock())
            self._fetching = self._tasks.spawn(self._fetch(), name="fetch issuer keys", report=True)

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self._fetch_seconds):
                response = await self._client.get(self._uri, headers={"Accept": "application/json"})
            response.raise_for_status()
            keys = _public_keys(response.json())
        except httpx.HTTPStatusError as error:
            self._failed(f"HTTP {error.response.status_code}")
        except TimeoutError:
            self._failed(f"no answer within {self._fetch_seconds:g} s")
        except AnswerError as error:
            self._failed(str(error))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._failed(type(error).__name__)
        except (ValueError, RecursionError):
            self._failed("not a set of public keys")
        else:
            self._keys, self._look_again_at = KeySet(keys), self._clock() + FRESH_SECONDS
            if self._failure is not None:
                self._failure = None
                _log.info("authorization server keys available again", extra={"jwks_uri": self._uri})

    def _failed(self, why: str) -> None:
        if why != self._failure:
            effect = "tokens cannot be verified" if self._keys is None else "the last known keys are used"
            extra = {"jwks_uri": self._uri, "error": why, "effect": effect}
            _log.warning("authorization server keys unavailable", extra=extra)
        self._failure = why
        self._look_again_at = self._clock() + RETRY_SECONDS


def _public_keys(document: Any) -> list[Key]:
    """The usable keys of a JWK Set; others are skipped (RFC 7517, section 5), symmetric ones always.

    An empty set is valid: all keys were withdrawn.

    Raises:
        ValueError: the document is not a JWK Set, or none of its keys is usable.
    """
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("no JWK Set")
    keys = [key for entry in entries if (key := _public_key(entry)) is not None]
    if entries and not keys:
        raise ValueError("no usable key")
    return keys


def _public_key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("kty") not in _PUBLIC_KEY_TYPES or entry.get("use", "sig") != "sig":
        return None
    try:
        return import_key(entry)
    except (JoseError, ValueError, TypeError, KeyError) as error:
        _log.debug("unusable authorization server key", extra={"error": type(error).__name__})
        return None
