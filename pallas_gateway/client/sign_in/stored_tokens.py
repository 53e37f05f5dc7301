"""The token of a sign-in for a request to its gateway, renewed before it ends.

A token is sent to the gateway alone for which it was stored.
"""

from __future__ import annotations

from pallas_gateway.client.sign_in.logins import Logins


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
    if login.is_due:
        from pallas_gateway.client.sign_in.renewal import renewed  # noqa: PLC0415  most requests need none

        login = await renewed(logins, base_url, login)
    return login.access_token
