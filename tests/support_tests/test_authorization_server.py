"""The authorization server: what its forge makes."""

import base64
import json
import warnings
from typing import Any

import pytest
from joserfc import jwt
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import KeySet, OctKey

from tests.support.authorization_server import AuthorizationServer
from tests.support.tokens import keys_of


def verified(token: str, keys: Any) -> jwt.Token:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)  # RFC 9864 names Ed25519 what most servers still call EdDSA
        return jwt.decode(token, KeySet.import_key_set(keys), algorithms=["RS256", "ES256", "EdDSA"])


def test_forged_tokens_are_what_they_pretend_to_be() -> None:
    server = AuthorizationServer()
    unsigned = server.mint(alg="none")
    symmetric = server.mint(key=b"x" * 64, header={"kid": "rsa-1"})
    critical = server.mint(header={"crit": ["x"], "x": 1, "typ": None})

    assert header_of(unsigned)["alg"] == "none"
    assert unsigned.endswith(".")
    assert jwt.decode(symmetric, OctKey.import_key(b"x" * 64), algorithms=["HS256"]).header == {
        "alg": "HS256", "typ": "at+jwt", "kid": "rsa-1",
    }  # fmt: skip
    assert header_of(critical) == {"alg": "RS256", "kid": "rsa-1", "crit": ["x"], "x": 1}
    for forged in (unsigned, critical, server.mint(key=keys_of("stranger", 1).rsa)):
        with pytest.raises(JoseError):
            verified(forged, server.jwks())


def header_of(token: str) -> dict[str, Any]:
    header = token.partition(".")[0]
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))
    return decoded
