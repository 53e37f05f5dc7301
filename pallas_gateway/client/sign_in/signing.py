"""What `pallas-gateway login` and `logout` do, and a sign-in by a device code (RFC 8628)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pallas_gateway.client.arguments import CommandError, UsageError
from pallas_gateway.client.gateway_client import UnreachableError, fetch_sign_in, is_same_place
from pallas_gateway.client.output import problem, result
from pallas_gateway.client.sign_in import browser
from pallas_gateway.client.sign_in.authorization_server import (
    AuthorizationServer,
    OAuthError,
    Offer,
    first_mistake,
    http_client,
    login_of,
)
from pallas_gateway.client.sign_in.logins import Login, Logins, gateway_key
from pallas_gateway.config.model.values import AuthorizationUrl, Text, is_loopback


async def sign_in(base_url: str, *, by_code: bool, no_browser: bool) -> None:
    """Sign in at the authorization server of a gateway, and store the tokens.

    Raises:
        GatewayError: the gateway or the authorization server does not answer or refuses, or the file of sign-ins cannot
            be used.
    """
    parts = urlsplit(base_url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise UsageError(f"{base_url} is not HTTPS: others could read the token on the way. Give an https:// URL.")
    offer = _offer(base_url, await fetch_sign_in(base_url))
    logins = Logins.of_user()
    async with logins.locked():
        logins.all()  # a file that cannot be used is reported before the person signs in
    async with http_client() as http:
        server = await AuthorizationServer.discover(offer.issuer, http)
        problem(f"{base_url} has people sign in at {offer.issuer}.")
        answer, nonce = await _answer(server, offer, by_code=by_code, no_browser=no_browser)
        name = await server.check_id_token(answer, offer, nonce) if offer.expects_id_token else ""
    async with logins.locked():
        logins.put(base_url, login_of(answer, offer))
    result(f"Signed in at {base_url}{f' as {name}' if name else ''}.")


async def sign_out(base_url: str | None) -> None:
    """Delete the sign-in at a gateway, or all for None, and have their authorization servers end them.

    Raises:
        LoginsError: the file of sign-ins cannot be used.
    """
    logins = Logins.of_user()
    known = logins.all()
    ended = known if base_url is None else {key: known[key] for key in (gateway_key(base_url),) if key in known}
    if not ended:
        result("You are not signed in at any gateway." if base_url is None else f"You are not signed in at {base_url}.")
        return
    for key in ended:
        async with logins.locked():  # no process renews a token that is about to be revoked
            login = logins.find(key)
            logins.remove(key)
        if login is not None:
            await _revoke(key, login)
        result(f"Signed out at {key}.")


async def _revoke(base_url: str, login: Login) -> None:
    try:
        async with http_client() as http:
            server = await AuthorizationServer.discover(login.issuer, http)
            if not await server.revoke(login):
                problem(f"{login.issuer} revokes no tokens: those of {base_url} are valid until their end.")
    except (OAuthError, UnreachableError) as error:
        problem(f"The tokens of {base_url} were deleted here, and not revoked: {error}")


async def _answer(
    server: AuthorizationServer, offer: Offer, *, by_code: bool, no_browser: bool
) -> tuple[dict[str, Any], str | None]:
    """Sign in by a browser, or by a device code where it is wanted or nothing else works."""
    opens = not no_browser and browser.opens_a_browser(os.environ)
    has_codes = server.metadata.device_authorization_endpoint is not None
    if by_code or (has_codes and not opens and not no_browser):
        return await sign_in_by_code(server, offer), None
    return await browser.sign_in(server, offer, opens=opens)


def _offer(base_url: str, document: dict[str, Any] | None) -> Offer:
    if document is None:
        setting = "`gateway.auth.console_client_id` in its agents.yaml enables it (docs/use/sign-in.md)"
        raise CommandError(
            f"{base_url} offers no sign-in: {setting}. Else give a token with --bearer or PALLAS_BEARER."
        )
    try:
        offer = Offer.model_validate(document)
    except ValidationError as error:
        raise CommandError(f"What {base_url} says about signing in cannot be used: {first_mistake(error)}.") from None
    # Else a gateway could get tokens that other gateways accept, by naming theirs.
    if offer.resource is not None and not is_same_gateway(offer.resource, base_url):
        use = f"sign in with --url {offer.resource}, or mend `gateway.public_url` in its agents.yaml"
        raise CommandError(f"The gateway at {base_url} wants a token for {offer.resource}: {use}.")
    return offer


def is_same_gateway(resource: str, base_url: str) -> bool:
    """Return True if a gateway at `base_url` may request tokens for a resource: one place, port and path."""
    one, other = (urlsplit(gateway_key(url)) for url in (resource, base_url))
    return is_same_place(resource, base_url) and (one.port, one.path) == (other.port, other.path)


_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_SLOWER_SECONDS = 5.0
_MOST_SECONDS = 1800.0


class _Code(BaseModel):
    model_config = ConfigDict(frozen=True)

    device_code: str = Field(min_length=1, repr=False)
    user_code: Text
    verification_uri: AuthorizationUrl
    verification_uri_complete: AuthorizationUrl | None = None
    expires_in: float = Field(gt=0, allow_inf_nan=False)
    interval: float = Field(default=5.0, ge=0, le=300)


async def sign_in_by_code(
    server: AuthorizationServer, offer: Offer, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> dict[str, Any]:
    """Show a code, and wait until the person has signed in with it; return the answer of the token endpoint.

    Raises:
        OAuthError: the server has no device codes, the person refused, or the code has expired.
        UnreachableError: the authorization server does not answer.
    """
    code = await _code(server, offer)
    problem(f"To sign in, open this page in any browser and enter the code {code.user_code}:\n")
    problem(f"  {code.verification_uri}\n")
    if code.verification_uri_complete is not None:
        problem(f"The same with the code in it: {code.verification_uri_complete}")
    interval, until = code.interval, monotonic() + min(code.expires_in, _MOST_SECONDS)
    while monotonic() < until:
        await pause(interval)
        try:
            return await server.token(_GRANT, offer, device_code=code.device_code)
        except UnreachableError:  # it is asked again, less often (RFC 8628, section 3.5)
            interval *= 2
        except OAuthError as error:
            if error.code == "slow_down":
                interval += _SLOWER_SECONDS
            elif error.code != "authorization_pending":
                raise
    raise OAuthError("The code has expired before anybody signed in with it. Start again.", "expired_token")


async def _code(server: AuthorizationServer, offer: Offer) -> _Code:
    endpoint, issuer = server.metadata.device_authorization_endpoint, server.metadata.issuer
    if endpoint is None:
        raise OAuthError(f"{issuer} offers no sign-in by a code. Start again without --device.")
    form = {"client_id": offer.client_id, "scope": " ".join(offer.scopes)}
    resource = {"resource": offer.resource} if offer.resource is not None else {}
    answer = await server.post(endpoint, {**form, **resource})
    try:
        return _Code.model_validate(answer)
    except ValidationError as error:
        raise OAuthError(f"{issuer} gave a code that cannot be used: {first_mistake(error)}.") from None
