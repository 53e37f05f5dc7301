"""Renews the token of a sign-in by its refresh token, once for all processes that need it.

A token that has not ended is used on where a renewal takes long or fails. The renewal itself runs to its end, in a
thread that Ctrl-C does not end: the authorization server may have replaced the refresh token.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING

from pallas_gateway.client.gateway_client import GatewayRefusedError, UnreachableError
from pallas_gateway.client.sign_in.authorization_server import AuthorizationServer, OAuthError, http_client
from pallas_gateway.client.sign_in.logins import LoginsError

if TYPE_CHECKING:
    from pallas_gateway.client.sign_in.logins import Login, Logins

WAIT_SECONDS = 2.0
"""Longest wait of a request whose token has not ended."""
PAUSE_SECONDS = 30.0
"""Time without a further attempt after a failed one, for all processes, while the token has not ended."""
_log = logging.getLogger("pallas.cli")


async def renewed(logins: Logins, base_url: str, before: Login) -> Login:
    """Renew the sign-in at a gateway, unless another process or task has done so meanwhile.

    Returns `before` if its token has not ended, and it cannot be renewed now.

    Raises:
        LoginsError: the file of sign-ins cannot be used, and the token has ended.
        RefusedError: the sign-in has ended.
        UnreachableError: the token has ended, and the authorization server does not answer.
    """
    try:
        lock = await logins.lock(waits=not before.is_valid)
        attempt = asyncio.get_running_loop().run_in_executor(None, _run, lock, logins, base_url)
        await asyncio.wait({attempt}, timeout=WAIT_SECONDS if before.is_valid else None)
        if attempt.done():
            return attempt.result()
        attempt.add_done_callback(_note)
    except OAuthError as error:
        raise _ended(base_url, str(error)) from error
    except LoginsError as error:
        if not before.is_valid:
            raise
        _not_renewed(error)
    return before


def _run(lock: int, logins: Logins, base_url: str) -> Login:
    try:
        return asyncio.run(_attempt(logins, base_url))
    finally:
        os.close(lock)


async def _attempt(logins: Logins, base_url: str) -> Login:
    """Renew the sign-in, and store it; if the server does not answer, store a pause. The file is locked."""
    login = logins.find(base_url)
    if login is None:
        raise _ended(base_url, "it was removed meanwhile")
    if not login.is_due:
        return login
    if login.refresh_token is None:
        raise _ended(base_url, f"{login.issuer} gave no token to renew it")
    try:
        after = await _renewed(login, login.refresh_token)
    except (UnreachableError, OAuthError) as error:
        if (isinstance(error, OAuthError) and error.code) or not login.is_valid:
            raise
        _not_renewed(error)
        after = replace(login, renew_at=time() + PAUSE_SECONDS)
    logins.put(base_url, after)
    return after


async def _renewed(login: Login, refresh_token: str) -> Login:
    async with http_client() as http:
        try:
            async with asyncio.timeout(WAIT_SECONDS if login.is_valid else None):
                server = await AuthorizationServer.discover(login.issuer, http)
        except TimeoutError as error:
            raise UnreachableError(f"The authorization server {login.issuer} does not answer.") from error
        return await server.renew(login, refresh_token)


def _note(attempt: asyncio.Future[Login]) -> None:
    """Log the failure of an attempt for which the request does not wait any more."""
    if not attempt.cancelled() and (error := attempt.exception()) is not None:
        _not_renewed(error)


def _not_renewed(error: BaseException) -> None:
    _log.debug("token not renewed", extra={"error": str(error)})


def _ended(base_url: str, why: str) -> GatewayRefusedError:
    return GatewayRefusedError(f"The sign-in has ended ({why}). Sign in again: pallas-gateway login --url {base_url}")
