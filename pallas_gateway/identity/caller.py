"""The identity behind one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_gateway.identity.grants import EVERYTHING, Grants

if TYPE_CHECKING:
    from pallas_gateway.identity.secret import Secret

ANONYMOUS_NAME = "anonymous"
CALLER_KEY = "pallas.caller"
"""Key of a request's ASGI scope under which its `Caller` stands, once it was let in."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what they may.

    `bearer` is the token that may be handed on to servers that opted in, never shown: what the request brought, but
    None for one of the gateway's own static keys. `name` is the key's name or the token's subject. Without
    authentication everybody is anonymous and has every grant. `owner` is whose it is what this caller leaves behind:
    names may be chosen or be given twice, an owner is one only. None where the token does not tell.
    """

    name: str = ANONYMOUS_NAME
    bearer: Secret | None = None
    grants: Grants = EVERYTHING
    authenticated: bool = False
    owner: str | None = ANONYMOUS_NAME


ANONYMOUS = Caller()
