"""The token of a sign-in for a request to its gateway, renewed before it ends.

Every client command imports this module. A token is sent to the gateway alone for which it was stored.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING

from pallas_gateway.client.sign_in.logins import Logins

if TYPE_CHECKING:
    from pallas_gateway.client.sign_in.logins import Login

RENEWAL_SECONDS = 60.0
"""A token that ends sooner is renewed."""


def is_signed_in(base_url: str) -> bool:
    """Return True if a sign-in at the gateway is stored. Raises as `Logins.find`."""
    return Logins.of_user().find(base_url) is not None


async def stored_token(base_url: str) -> str | None:
    """Return the token to send to a gateway; None if nobody signed in there.

    Raises:
        LoginsError: the file of sign-ins cannot be used.
        RefusedError: the sign-in has ended.
        UnreachableError: the token has expired, and the authorization server does not answer.
    """
    logins = Logins.of_user()
    login = logins.find(base_url)
    if login is None:
        return None
    if _ends_within(login, RENEWAL_SECONDS):
        from pallas_gateway.client.sign_in.renewal import renewed  # noqa: PLC0415  most requests need none

        login = await renewed(logins, base_url, is_due=lambda one: _ends_within(one, RENEWAL_SECONDS))
    return login.access_token


def _ends_within(login: Login, seconds: float) -> bool:
    return login.expires_at is not None and login.expires_at - time() < seconds
