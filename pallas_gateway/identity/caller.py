"""The identity behind one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_gateway.identity.grants import EVERYTHING, Grants

if TYPE_CHECKING:
    from pallas_gateway.identity.secret import Secret

ANONYMOUS_NAME = "anonymous"
CALLER_KEY = "pallas.caller"
"""Key of the `Caller` in the ASGI scope of an authenticated request."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity and the grants of a caller.

    `name` is the static key's name or the token's subject. `bearer` is the request's token, for servers that opted in;
    None for a static key, which is the gateway's own. `owner` identifies the owner of stored threads: unlike a name it
    is unique; None if the token has no subject. Without authentication every caller is anonymous and has all grants.
    """

    name: str = ANONYMOUS_NAME
    bearer: Secret | None = None
    grants: Grants = EVERYTHING
    authenticated: bool = False
    owner: str | None = ANONYMOUS_NAME


ANONYMOUS = Caller()
