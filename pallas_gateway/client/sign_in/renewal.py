"""Renews the token of a sign-in by its refresh token, once for all processes that need it."""

from __future__ import annotations

import logging
from time import time
from typing import TYPE_CHECKING

from pallas_gateway.client.gateway_client import RefusedError, UnreachableError
from pallas_gateway.client.sign_in.authorization_server import AuthorizationServer, OAuthError, http_client
from pallas_gateway.client.sign_in.logins import LoginsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.client.sign_in.logins import Login, Logins

_log = logging.getLogger("pallas.cli")


async def renewed(logins: Logins, base_url: str, *, is_due: Callable[[Login], bool]) -> Login:
    """Renew the sign-in at a gateway, unless another process or task has done so meanwhile.

    A token that has not ended yet is used on if it cannot be renewed now.

    Raises:
        LoginsError: the file of sign-ins cannot be used, and the token has ended.
        RefusedError: the sign-in has ended.
        UnreachableError: the token has ended, and the authorization server does not answer.
    """
    before = logins.find(base_url)
    try:
        async with logins.locked():
            login = logins.find(base_url)
            if login is None:
                raise _ended(base_url, "it was removed meanwhile")
            if not is_due(login):
                return login
            if login.refresh_token is None:
                raise _ended(base_url, f"{login.issuer} gave no token to renew it")
            after = await _renewed(login, login.refresh_token)
            logins.put(base_url, after)
            return after
    except OAuthError as error:
        raise _ended(base_url, str(error)) from error
    except (UnreachableError, LoginsError) as error:
        if before is None or before.expires_at is None or before.expires_at <= time():
            raise
        _log.debug("token not renewed", extra={"error": str(error)})
        return before


async def _renewed(login: Login, refresh_token: str) -> Login:
    async with http_client() as http:
        server = await AuthorizationServer.discover(login.issuer, http)
        return await server.renew(login, refresh_token)


def _ended(base_url: str, why: str) -> RefusedError:
    return RefusedError(f"The sign-in has ended ({why}). Sign in again: pallas-gateway login --url {base_url}")
