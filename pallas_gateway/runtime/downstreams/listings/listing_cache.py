"""Cached listings of downstreams, each under the agent, the server and the credential that it was received with.

One cache for all agents of a process, in memory only. A credential is kept as a keyed digest whose key is random for
each process, never as a token. A listing received with one credential is returned for no other one, also if the server
declares it `public`. `NO_CREDENTIAL` stands for requests without a caller's token: of a downstream that answers all
callers alike, and of anonymous callers.

Equal listings of several credentials are stored once. The least recently used credentials are evicted.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from pallas_gateway.limits import ListingLimits

if TYPE_CHECKING:
    from pallas_gateway.calls.questions import Mode
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.runtime.downstreams.listings.server_listing import ServerListing

NO_CREDENTIAL = b""


class ListingKey(NamedTuple):
    """Identifies a listing. `agent` is one start of an agent, whose settings do not change.

    `modes` are those in which its callers can be asked: servers may offer some tools only to clients that declare them.
    """

    agent: object
    server: str
    credential: bytes
    modes: frozenset[Mode] = frozenset()


@dataclass(slots=True, weakref_slot=True, eq=False)
class ListingRequest:
    """A running request for the listing of `key`; void after an event that its answer may not reflect."""

    key: ListingKey
    sent_at: float
    is_void: bool = False


@dataclass(slots=True, eq=False)
class _Stored:
    """A listing, the number of its bytes and of the entries that have it."""

    content: tuple[object, str, bytes]
    listing: ServerListing
    size: int
    holders: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    stored: _Stored
    expires_at: float


class ListingCache:
    """See the module."""

    def __init__(self, limits: ListingLimits | None = None) -> None:
        self._limits = limits or ListingLimits()
        self._secret = secrets.token_bytes(32)
        self._entries: dict[bytes, dict[ListingKey, _Entry]] = {}  # by credential, the least recently used first
        self._stored: dict[tuple[object, str, bytes], _Stored] = {}
        self._requests: WeakSet[ListingRequest] = WeakSet()
        self._bytes = 0

    def credential(self, bearer: Secret | None) -> bytes:
        """Return the credential part of a key for a caller's token."""
        return NO_CREDENTIAL if bearer is None else blake2b(bearer.reveal().encode(), key=self._secret).digest()

    def get(self, key: ListingKey) -> ServerListing | None:
        """Return the listing of `key` unless it has expired."""
        entry = self._entries.get(key.credential, {}).get(key)
        if entry is None:
            return None
        if self._limits.clock() >= entry.expires_at:
            self._remove(key)
            return None
        self._entries[key.credential] = self._entries.pop(key.credential)
        return entry.stored.listing

    def begin(self, key: ListingKey) -> ListingRequest:
        """Note that a listing is being requested; hold the result until `store`."""
        request = ListingRequest(key, self._limits.clock())
        self._requests.add(request)
        return request

    def store(self, request: ListingRequest, listing: ServerListing, seconds: float) -> bool:
        """Store the answer to `request` for `seconds` from its begin. Return False if it is void.

        A caller's listing that would evict many others is not stored.
        """
        if request.is_void:
            return False
        key, encoded = request.key, listing.encoded()
        self._remove(key)
        if key.credential != NO_CREDENTIAL and len(encoded) > self._limits.kept_bytes // 2:
            return True
        content = (key.agent, key.server, blake2b(encoded).digest())
        stored = self._stored.setdefault(content, _Stored(content, listing, len(encoded)))
        self._bytes += 0 if stored.holders else stored.size
        stored.holders += 1
        entry = _Entry(stored, request.sent_at + seconds)
        self._entries[key.credential] = {**self._entries.pop(key.credential, {}), key: entry}
        self._evict()
        return True

    def drop(self, key: ListingKey) -> None:
        """Remove the listing of `key`; answers to running requests are void."""
        for request in self._requests:
            request.is_void |= request.key == key
        self._remove(key)

    def refuse(self, server: str, credential: bytes) -> None:
        """Remove what all agents have stored of `server` for a credential that it has refused."""
        for request in self._requests:
            request.is_void |= (request.key.server, request.key.credential) == (server, credential)
        for key in [one for one in self._entries.get(credential, ()) if one.server == server]:
            self._remove(key)

    def forget(self, agent: object) -> None:
        """Remove all listings of an agent that has ended."""
        for request in self._requests:
            request.is_void |= request.key.agent is agent
        for key in [key for keys in self._entries.values() for key in keys if key.agent is agent]:
            self._remove(key)

    @property
    def size(self) -> tuple[int, int]:
        """The number of credentials, and of bytes of their listings in JSON."""
        return len(self._entries), self._bytes

    def _evict(self) -> None:
        while len(self._entries) > self._limits.credentials or self._bytes > self._limits.kept_bytes:
            # Requests without a token are as many as the configuration has servers.
            oldest = next((one for one in self._entries if one != NO_CREDENTIAL), None)
            if oldest is None:
                return
            for key in list(self._entries[oldest]):
                self._remove(key)

    def _remove(self, key: ListingKey) -> None:
        entries = self._entries.get(key.credential)
        entry = entries.pop(key, None) if entries else None
        if entries is None or entry is None:
            return
        if not entries:
            del self._entries[key.credential]
        entry.stored.holders -= 1
        if entry.stored.holders == 0:
            del self._stored[entry.stored.content]
            self._bytes -= entry.stored.size
