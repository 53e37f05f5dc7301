"""An authorization server as a public client uses it: its metadata, its tokens, and the check of ID tokens.

Sources: RFC 8414 and OpenID Connect Discovery (metadata), RFC 6749 (tokens), RFC 8707 (`resource`), RFC 7009
(revocation), OpenID Connect Core (ID tokens). All of its endpoints are HTTPS, or on this machine.

It renews the token of a sign-in by its refresh token, once for all processes that need it. A token that has not ended
is used on where a renewal takes long or fails. The renewal itself runs to its end, in a thread that Ctrl-C does not
end: the authorization server may have replaced the refresh token.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import time
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from pallas_gateway.client.gateway_client import REGISTRY_SECONDS, GatewayRefusedError, UnreachableError
from pallas_gateway.client.sign_in.logins import Login, Logins, LoginsError
from pallas_gateway.config.model.auth import JwtSettings
from pallas_gateway.config.model.values import ALGORITHMS, AuthorizationUrl, Scope, Text
from pallas_gateway.errors import GatewayError, TokenError
from pallas_gateway.http_answers import decoded, limited
from pallas_gateway.identity.jwt_tokens import JwtVerifier, unverified_claims
from pallas_gateway.identity.secret import Secret
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.redaction import cleaned, shortened
from pallas_gateway.urls import bypass_proxies

LARGEST_ANSWER_BYTES = 2**19
_LONGEST_WORDS = 300
_RENEWAL_SECONDS = 60.0
"""A token is renewed so long before its end, and within the last quarter of its time."""
_OPENID = "openid"
WAIT_SECONDS = 2.0
"""Longest wait of a request whose token has not ended."""
PAUSE_SECONDS = 30.0
"""Time without a further attempt after a failed one, for all processes, while the token has not ended."""
_log = logging.getLogger("pallas.cli")


class OAuthError(GatewayError):
    """The authorization server refuses, or what it answers is not accepted.

    Attributes:
        code: its error code (RFC 6749, section 5.2); empty if it gave none.
    """

    reason = "sign_in_refused"

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Offer(BaseModel):
    """What a gateway says about signing in (`GET /api/sign-in`)."""

    model_config = ConfigDict(frozen=True)

    issuer: AuthorizationUrl
    client_id: Text
    scopes: tuple[Scope, ...]
    resource: AuthorizationUrl | None

    @property
    def expects_id_token(self) -> bool:
        """True if the request is one of OpenID Connect."""
        return _OPENID in self.scopes


class Metadata(BaseModel):
    """The metadata of an authorization server, as far as a sign-in needs it."""

    model_config = ConfigDict(frozen=True)

    issuer: str
    authorization_endpoint: AuthorizationUrl
    token_endpoint: AuthorizationUrl
    jwks_uri: AuthorizationUrl | None = None
    device_authorization_endpoint: AuthorizationUrl | None = None
    revocation_endpoint: AuthorizationUrl | None = None
    authorization_response_iss_parameter_supported: bool = False


def http_client() -> httpx.AsyncClient:
    """Return a client for requests to authorization servers; it follows no redirects."""
    bypass_proxies()
    return limited(httpx.AsyncClient(timeout=REGISTRY_SECONDS), most_bytes=LARGEST_ANSWER_BYTES)


@dataclass(frozen=True, slots=True)
class AuthorizationServer:
    """One authorization server."""

    metadata: Metadata
    http: httpx.AsyncClient

    @classmethod
    async def discover(cls, issuer: str, http: httpx.AsyncClient) -> AuthorizationServer:
        """Fetch and check the metadata of an issuer.

        Raises:
            OAuthError: it has none, or none that may be used.
            UnreachableError: it does not answer.
        """
        status = 0
        for url in _metadata_urls(issuer):
            response = await _sent(http, issuer, "GET", url)
            status = response.status_code
            if response.is_success and isinstance(document := decoded(response.content), dict):
                return cls(_checked(issuer, url, document), http)
        raise OAuthError(f"{issuer} has no metadata of an authorization server (HTTP {status}).")

    async def token(self, grant_type: str, offer: Offer, **form: str) -> dict[str, Any]:
        """Ask the token endpoint; `form` has the parameters of the grant.

        Raises:
            OAuthError: it refuses, or answers without a bearer token.
            UnreachableError: it does not answer.
        """
        resource = {"resource": offer.resource} if offer.resource is not None else {}
        fields = {"grant_type": grant_type, "client_id": offer.client_id, **resource, **form}
        answer = await self.post(self.metadata.token_endpoint, fields)
        token, kind = answer.get("access_token"), answer.get("token_type")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
            raise OAuthError(f"{self.metadata.issuer} answered without a token.")
        if not isinstance(kind, str) or kind.lower() != "bearer":
            raise OAuthError(f"{self.metadata.issuer} answered with a token that is no bearer token.")
        return answer

    async def renew(self, login: Login, refresh_token: str) -> Login:
        """Return a sign-in with a new token. Raises as `token`."""
        offer = Offer.model_construct(
            issuer=login.issuer, client_id=login.client_id, scopes=(), resource=login.resource
        )
        answer = await self.token("refresh_token", offer, refresh_token=refresh_token)
        return login_of(answer, offer, refresh_token)

    async def check_id_token(self, answer: Mapping[str, Any], offer: Offer, nonce: str | None) -> str:
        """Verify the ID token of an answer, and return the name of the person; `nonce` is that of the request.

        Raises:
            OAuthError: there is none, or it is not valid here.
        """
        token, issuer = answer.get("id_token"), self.metadata.issuer
        if not isinstance(token, str) or self.metadata.jwks_uri is None:
            raise OAuthError(f"{issuer} answered without an ID token that can be verified.")
        settings = JwtSettings(
            issuer=issuer, jwks_uri=self.metadata.jwks_uri, audience=(offer.client_id,), algorithms=ALGORITHMS
        )
        try:
            async with TaskOwner() as tasks:
                verifier = JwtVerifier(settings, client=self.http, tasks=tasks)
                await verifier.identify(Secret(token), audiences=())
        except TokenError as error:
            raise OAuthError(f"The ID token of {issuer} is not accepted: {error}.") from error
        claims = unverified_claims(token)
        if nonce is not None and claims.get("nonce") != nonce:
            raise OAuthError(f"The ID token of {issuer} is not accepted: it is of another sign-in (nonce).")
        if claims.get("azp", offer.client_id) != offer.client_id:
            raise OAuthError(f"The ID token of {issuer} is not accepted: it was issued to another client (azp).")
        names = (claims.get(name) for name in ("preferred_username", "email", "name", "sub"))
        return next((shortened(one, _LONGEST_WORDS) for one in names if isinstance(one, str) and one), "unknown")

    async def revoke(self, login: Login) -> bool:
        """Have the server end a sign-in; return False if it offers that not. Raises as `token`."""
        url = self.metadata.revocation_endpoint
        if url is None:
            return False
        token, kind = (
            (login.refresh_token, "refresh_token") if login.refresh_token else (login.access_token, "access_token")
        )
        await self.post(url, {"token": token, "token_type_hint": kind, "client_id": login.client_id}, is_empty=True)
        return True

    async def post(self, url: str, fields: Mapping[str, str], *, is_empty: bool = False) -> dict[str, Any]:
        """Send a form and return the JSON of the answer; `is_empty`: it has none. Raises as `token`."""
        response = await _sent(self.http, self.metadata.issuer, "POST", url, data=dict(fields))
        document = decoded(response.content)
        if response.is_success and is_empty:
            return {}
        if not response.is_success or not isinstance(document, dict):
            if isinstance(document, dict) and isinstance(document.get("error"), str):
                raise refusal(self.metadata.issuer, document["error"], document.get("error_description"))
            raise OAuthError(
                f"{self.metadata.issuer} did not answer as an authorization server (HTTP {response.status_code})."
            )
        return document


def login_of(answer: Mapping[str, Any], offer: Offer, refresh_token: str | None = None) -> Login:
    """Return the sign-in of an answer of the token endpoint; `refresh_token` is used on if it has no other."""
    token, now = str(answer["access_token"]), time()
    newer, end = answer.get("refresh_token"), _end_of(token, answer.get("expires_in"), now)
    return Login(
        offer.issuer,
        offer.client_id,
        offer.resource,
        token,
        expires_at=end,
        renew_at=None if end is None else end - min(_RENEWAL_SECONDS, (end - now) / 4),
        refresh_token=newer if isinstance(newer, str) and newer else refresh_token,
    )


def first_mistake(error: ValidationError) -> str:
    """Return the first mistake of a document as `KEY: REASON`, without its values."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first.get('ctx', {}).get('error', first['msg'])}"


def refusal(issuer: str, code: object, description: object = None) -> OAuthError:
    """Return the error for an error code of an authorization server."""
    words = (str(one) for one in (code, description) if isinstance(one, str) and one)
    said = shortened(cleaned(": ".join(words)), _LONGEST_WORDS) or "no reason"
    return OAuthError(f"{issuer} refused: {said}", code if isinstance(code, str) else "")


def _end_of(token: str, expires_in: object, now: float) -> float | None:
    if isinstance(expires_in, (int, float, str)) and not isinstance(expires_in, bool):
        try:
            return now + float(expires_in)
        except (ValueError, OverflowError):
            pass
    claims = unverified_claims(token)
    end = claims.get("exp") if isinstance(claims, dict) else None
    try:
        return float(end) if isinstance(end, (int, float)) else None
    except OverflowError:
        return None


def _metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return where the metadata may be: OpenID Connect appends its path, RFC 8414 inserts one before the issuer's."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return (
        f"{origin}{path}/.well-known/openid-configuration",
        f"{origin}/.well-known/oauth-authorization-server{path}",
    )


def _checked(issuer: str, url: str, document: dict[str, Any]) -> Metadata:
    if document.get("issuer") != issuer:
        other = shortened(str(document.get("issuer")), _LONGEST_WORDS)
        raise OAuthError(f"{url} is the metadata of another issuer ('{other}'), so it is not used.")
    try:
        return Metadata.model_validate(document)
    except ValidationError as error:
        raise OAuthError(f"The metadata of {issuer} cannot be used: {first_mistake(error)}.") from None


async def _sent(http: httpx.AsyncClient, issuer: str, method: str, url: str, **request: Any) -> httpx.Response:
    try:
        return await http.request(method, url, headers={"Accept": "application/json"}, **request)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = str(error) or type(error).__name__
        raise UnreachableError(f"The authorization server {issuer} does not answer ({why}).") from error


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
