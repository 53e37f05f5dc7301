"""RFC 8693 token exchange: the request, and the validation of the answer. Pure; `token_exchanger` does the I/O."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import quote_plus, urlsplit

import httpx

from pallas_gateway.errors import TokenExchangeError
from pallas_gateway.identity.secret import Secret

_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105  a name, not a secret
_USABLE = {_ACCESS_TOKEN, "urn:ietf:params:oauth:token-type:jwt"}
_DIGITS = re.compile(r"[0-9]+")
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")
_ERROR_CODES = {  # RFC 6749 sections 4.1.2.1 and 5.2, RFC 8693 section 2.2.2
    *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type"),
    *("invalid_scope", "invalid_target", "access_denied", "server_error", "temporarily_unavailable"),
}


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """The exchange for one downstream.

    `server` is the downstream's name; without a `client_secret` the client is public. Endpoint and resource are
    absolute URLs; `scope` is a space-separated list.
    """

    server: str
    token_endpoint: str
    resource: str
    audience: str | None = None
    scope: str | None = None
    client_id: str | None = None
    client_secret: Secret | None = None
    client_auth: Literal["basic", "post"] = "basic"


def failed(to: TokenExchange, why: str) -> TokenExchangeError:
    """The error of an exchange; `why` holds no text that was sent or received."""
    return TokenExchangeError(server=to.server, token_endpoint=endpoint_of(to), why=why)


def endpoint_of(to: TokenExchange) -> str:
    """The token endpoint without user and query, which may hold secrets."""
    parts = urlsplit(to.token_endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def request_of(subject: Secret, to: TokenExchange) -> tuple[dict[str, str], httpx.Auth]:
    """Form fields and client authentication of one request (RFC 8693 section 2.1, RFC 6749 section 2.3.1)."""
    fields = {
        "grant_type": _GRANT,
        "subject_token": subject.reveal(),
        "subject_token_type": _ACCESS_TOKEN,
        "requested_token_type": _ACCESS_TOKEN,
        "resource": to.resource,
        "audience": to.audience,
        "scope": to.scope,
    }
    body = {name: value for name, value in fields.items() if value is not None}
    if to.client_secret is not None and to.client_auth == "basic":
        return body, httpx.BasicAuth(quote_plus(to.client_id or ""), quote_plus(to.client_secret.reveal()))
    if to.client_id is not None:
        body["client_id"] = to.client_id
    if to.client_secret is not None:
        body["client_secret"] = to.client_secret.reveal()
    return body, httpx.Auth()


@dataclass(frozen=True, slots=True)
class Issued:
    """A token, and its lifetime in seconds if known."""

    token: Secret
    expires_in: float | None


def read_answer(response: httpx.Response, to: TokenExchange) -> Issued:
    """The token in an answer (RFC 8693 section 2.2.1).

    Raises:
        TokenExchangeError: the answer has no token that can be sent as a bearer (RFC 6750 section 2.1).
    """
    answer = _json_object(response)
    if response.is_redirect:
        raise failed(to, "it redirects, which is not followed")
    if response.status_code != HTTPStatus.OK:
        raise failed(to, f"HTTP {response.status_code}{_error_code(answer)}")
    if not answer:
        raise failed(to, "its answer is not a JSON object")
    if str(answer.get("token_type")).lower() != "bearer":
        raise failed(to, "its answer has another token_type than Bearer")
    if str(answer.get("issued_token_type", _ACCESS_TOKEN)) not in _USABLE:
        raise failed(to, "its answer has another issued_token_type than an access token's")
    token = answer.get("access_token")
    if not isinstance(token, str) or not _HEADER_SAFE.fullmatch(token):
        raise failed(to, "its answer has no access_token that a header could carry")
    return Issued(Secret(token), _seconds(answer.get("expires_in")))


def end_of(subject: Secret) -> float | None:
    """The `exp` (Unix time) of a token that is a JWT. Not verified: it only shortens the time in the cache."""
    from pallas_gateway.identity.jwt_tokens import unverified_claims  # noqa: PLC0415  joserfc has 50 modules

    claims = unverified_claims(subject.reveal())
    return _number(claims.get("exp")) if isinstance(claims, dict) else None


def _json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _error_code(answer: dict[str, Any]) -> str:
    """A code of the RFCs, or nothing: other text may quote the request."""
    code = answer.get("error")
    return f", {code}" if isinstance(code, str) and code in _ERROR_CODES else ""


def _seconds(value: object) -> float | None:
    """`expires_in`, which some servers send as a string."""
    return _number(float(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value)


def _number(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
