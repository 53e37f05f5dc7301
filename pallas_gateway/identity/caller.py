"""The identity behind one request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Literal

from pallas_gateway.identity.grants import CREATE_AGENTS, EVERYTHING, Grants

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.identity.secret import Secret

ANONYMOUS_NAME = "anonymous"
LONGEST_NAME = 200  # characters
_OF_ADDRESS = f"{ANONYMOUS_NAME}:"
CALLER_KEY = "pallas.caller"
"""Key of the `Caller` in the ASGI scope of an authenticated request."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity and the grants of a caller.

    `name` is the static key's name or the token's subject. `bearer` is the request's token, for servers that opted in;
    None for a static key, which is the gateway's own. `owner` identifies the owner of stored threads and agents: unlike
    a name it is unique; None if the token has no subject. Without authentication every caller is anonymous and has all
    grants. `kind` is what has identified the caller. `address` is that of the client, as `trusted_proxies` give it.
    """

    name: str = ANONYMOUS_NAME
    bearer: Secret | None = None
    grants: Grants = EVERYTHING
    authenticated: bool = False
    owner: str | None = ANONYMOUS_NAME
    kind: Literal["anonymous", "key", "token"] = "anonymous"
    address: str | None = field(default=None, compare=False)

    @property
    def principal(self) -> str:
        """The name with its kind: `key:NAME`, `token:NAME`, `anonymous`. No token can take the name of a key."""
        return self.name if self.kind == "anonymous" else f"{self.kind}:{self.name}"

    @property
    def account(self) -> str:
        """The holder of counters: the owner; for anonymous callers the client's address, IPv6 by /64."""
        if self.kind != "anonymous":
            return self.owner or f"name {self.principal}"  # a name may look like the owner of another token
        return f"{_OF_ADDRESS}{_network_of(self.address)}"

    def among(self, owners: Mapping[str, str]) -> Caller:
        """Return the caller with its rights on the agents of the database, given the owner of each.

        With `auth`, callers without a token own agents only if they may create some: otherwise agents that were made
        before `auth` was set would belong to everybody.
        """
        if self.grants.everything or not (owners or self.grants.stored):
            return self
        may_own = self.authenticated or self.grants.has(CREATE_AGENTS)
        owned = [name for name, owner in owners.items() if may_own and owner == self.owner]
        return replace(self, grants=self.grants.with_own(owned, owners))


def is_of_address(account: str) -> bool:
    """Return True for the account of a caller without a token."""
    return account.startswith(_OF_ADDRESS)


def address_of(account: str) -> str:
    """Return an address of the account of a caller without a token."""
    return account.removeprefix(_OF_ADDRESS).removesuffix("/64")


def site_of(account: str) -> str | None:
    """Return the account that stands for the site of an IPv6 address, a /48; None for all other accounts."""
    network = account.removeprefix(_OF_ADDRESS) if is_of_address(account) else ""
    return f"{_OF_ADDRESS}{IPv6Network(network).supernet(new_prefix=48)}" if network.endswith("/64") else None


@lru_cache(maxsize=1024)  # each call asks several times
def _network_of(address: str | None) -> str:
    try:
        known = ip_address(address or "")
    except ValueError:  # a Unix socket has none
        return "unknown"
    if not isinstance(known, IPv6Address):
        return str(known)
    return str(known.ipv4_mapped or IPv6Network((known.packed[:8] + bytes(8), 64)))


ANONYMOUS = Caller()


def owner_of_token(issuer: str, claim: str, value: str) -> str:
    """Return the `Caller.owner` of tokens of an issuer that have this value in the claim for their subject."""
    named = f"{claim} {value}"
    if len(named) > LONGEST_NAME or not named.isprintable():
        named = f"sha256 {sha256(named.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return f"token:{issuer} {named}"
