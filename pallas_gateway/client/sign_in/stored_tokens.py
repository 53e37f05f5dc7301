"""The token of a sign-in for a request to its gateway, renewed before it ends.

A token is sent to the gateway alone for which it was stored.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING

from pallas_gateway.client.sign_in.logins import Logins

if TYPE_CHECKING:
    from pallas_gateway.client.sign_in.logins import Login


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
    if _is_due(login):
        from pallas_gateway.client.sign_in.renewal import renewed  # noqa: PLC0415  most requests need none

        login = await renewed(logins, base_url, is_due=_is_due)
    return login.access_token


def _is_due(login: Login) -> bool:
    return login.renew_at is not None and login.renew_at <= time()
