"""Verifies the JWTs of one authorization server: signature, issuer, audience and time.

It uses joserfc, as FastMCP's verifier does. FastMCP's is not used: it accepts tokens without `exp`, ignores `nbf`,
supports one algorithm, loses its keys when their address returns invalid data, and gives no reason for a rejection.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, override

from joserfc import jwt
from joserfc.errors import (
    BadSignatureError,
    ExpiredTokenError,
    InvalidClaimError,
    InvalidKeyIdError,
    JoseError,
    MissingClaimError,
    UnsupportedAlgorithmError,
)
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry, extract_compact

from pallas_gateway.errors import TokenRejectedError, VerificationUnavailableError
from pallas_gateway.identity.caller import LONGEST_NAME, Caller, owner_of_token
from pallas_gateway.identity.grants import Grants
from pallas_gateway.identity.issuer_keys import IssuerKeys

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx

    from pallas_gateway.config.model.auth import JwtSettings
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.tasks import TaskOwner

_NO_KEYS = KeySet([])
_CLIENT_CLAIMS = ("client_id", "azp")
_NOT_A_JWT = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


class _Headers(JWSRegistry):
    max_header_length = 4096  # joserfc's 512 bytes are too few for headers with certificates

    @override
    def get_alg(self, name: str) -> Any:
        """An accepted algorithm, without joserfc's warning about `EdDSA`, which most servers use."""
        if name not in (self.allowed or ()):
            raise UnsupportedAlgorithmError
        return self.algorithms[name]


class _AnySize(JWSRegistry):
    """Without joserfc's limits: an exchange of a token too large to be read would be cached beyond its `exp`."""

    max_header_length = max_payload_length = max_signature_length = 1_000_000


def unverified_claims(token: str) -> Any:
    """The JSON in a token, None if it is no JWT."""
    try:
        return json.loads(extract_compact(token.encode(), registry=_AnySize()).payload)
    except (JoseError, *_NOT_A_JWT):  # the caller may send any token
        return None


class JwtVerifier:
    """Identifies callers by one authorization server's tokens."""

    def __init__(self, settings: JwtSettings, *, client: httpx.AsyncClient, tasks: TaskOwner) -> None:
        self.keys = IssuerKeys(settings.jwks_uri, client=client, tasks=tasks)
        self._settings = settings
        self._headers = _Headers(algorithms=settings.algorithms, strict_check_header=False)

    async def identify(self, bearer: Secret, *, audiences: Iterable[str]) -> Caller:
        """The caller a token was issued to; see `Authenticator.identify`."""
        claims = await self._signed_claims(bearer)
        self._check(claims, audiences)
        grants = Grants.of(_words(claims.get(self._settings.grants_claim)))
        owner = self._owner(claims)
        return Caller(self._name(claims), bearer, grants, authenticated=True, owner=owner, kind="token")

    async def _signed_claims(self, bearer: Secret) -> dict[str, Any]:
        try:
            return self._decoded(bearer, await self.keys.current())
        except (InvalidKeyIdError, BadSignatureError):  # a new key, under a new id or an old one
            newer = await self.keys.newer()
        try:
            return self._decoded(bearer, newer)
        except BadSignatureError:
            raise TokenRejectedError("the token's signature is wrong") from None
        except InvalidKeyIdError:
            if newer is None:
                why = "the keys of the authorization server cannot be had now"
                raise VerificationUnavailableError(why) from None
            raise TokenRejectedError("the token was signed with an unknown key") from None

    def _decoded(self, bearer: Secret, keys: KeySet | None) -> dict[str, Any]:
        # Decoded without keys too: a malformed token is rejected even while no keys are known.
        try:
            return jwt.decode(bearer.reveal(), keys or _NO_KEYS, self._settings.algorithms, self._headers).claims
        except (InvalidKeyIdError, BadSignatureError):
            raise
        except UnsupportedAlgorithmError:
            raise TokenRejectedError("the token's signature algorithm is not accepted") from None
        except (JoseError, *_NOT_A_JWT):
            # `from None`, here and above: the libraries' errors may quote the token.
            raise TokenRejectedError("the token is malformed") from None

    def _check(self, claims: dict[str, Any], audiences: Iterable[str]) -> None:
        """Raise `TokenRejectedError` unless the token is this issuer's, for here and for now (RFC 7519, RFC 9068)."""
        accepted = [*self._settings.audience, *audiences]
        rules = jwt.JWTClaimsRegistry(
            leeway=self._settings.leeway_seconds,  # type: ignore[arg-type]  # it only adds and subtracts
            iss={"essential": True, "value": self._settings.issuer},
            aud={"essential": True, "values": accepted},
            exp={"essential": True},
        )
        try:
            rules.validate(claims)
        except ExpiredTokenError:
            raise TokenRejectedError("the token has expired") from None
        except MissingClaimError as error:
            raise TokenRejectedError(f"the token has no {error.claim}") from None
        except InvalidClaimError as error:
            raise TokenRejectedError(_WRONG.get(error.claim, f"the token's {error.claim} is malformed")) from None
        except _NOT_A_JWT:
            raise TokenRejectedError("the token is malformed") from None

    def _name(self, claims: dict[str, Any]) -> str:
        found = [claims.get(name) for name in (self._settings.name_claim, *_CLIENT_CLAIMS)]
        name = next((value for value in found if isinstance(value, str) and value), "unknown")
        return name[:LONGEST_NAME]

    def _owner(self, claims: dict[str, Any]) -> str | None:
        """The owner by the subject, independent of `name_claim`: the issuer assigns it, and it is unique."""
        found = ((name, claims.get(name)) for name in ("sub", *_CLIENT_CLAIMS))
        named = next(((name, value) for name, value in found if isinstance(value, str) and value), None)
        return owner_of_token(self._settings.issuer, *named) if named is not None else None


_WRONG = {
    "iss": "the token is of another issuer",
    "aud": "the token is for another audience",
    "nbf": "the token is not valid yet",
    "iat": "the token is not valid yet",
}


def _words(claim: object) -> list[str]:
    if isinstance(claim, str):
        return claim.split()
    return [word for word in claim if isinstance(word, str)] if isinstance(claim, list) else []
