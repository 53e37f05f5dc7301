"""Signing keys, and a forge for tokens that no server should issue.

joserfc's own `encode` refuses what is not sound (RFC 7515), which is what the forge is for; only signing is its.
"""

import base64
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

ALGORITHMS: dict[type, str] = {RSAKey: "RS256", ECKey: "ES256", OKPKey: "EdDSA", OctKey: "HS256", bytes: "HS256"}


@dataclass(frozen=True)
class Keys:
    """One generation of signing keys, one of each kind; `rsa` signs unless a test says otherwise."""

    rsa: RSAKey
    ec: ECKey
    ed: OKPKey

    def published(self) -> list[dict[str, Any]]:
        return [dict(key.as_dict(private=False)) for key in (self.rsa, self.ec, self.ed)]


@cache
def keys_of(owner: str, generation: int) -> Keys:
    """An owner's keys, named after their kind and generation: `rsa-1`, `ec-1`, `ed-1`.

    The same whenever they are asked for: making an RSA key takes a tenth of a second.
    """
    return Keys(
        RSAKey.generate_key(2048, {"kid": f"rsa-{generation}", "use": "sig"}),
        ECKey.generate_key("P-256", {"kid": f"ec-{generation}", "use": "sig"}),
        OKPKey.generate_key("Ed25519", {"kid": f"ed-{generation}", "use": "sig"}),
    )


def forge(header: Mapping[str, Any], claims: object, key: Key | bytes, alg: str) -> str:
    """A compact JWS of anything at all, signed with `key` by `alg`, whatever the header says of it.

    Entries of `header` and of `claims` that are None are left out. A key of bytes is a shared secret for HS256; joserfc
    refuses those that look like a public key.
    """
    payload = _without_none(claims) if isinstance(claims, Mapping) else claims
    signing_input = f"{_base64url_json(_without_none(header))}.{_base64url_json(payload)}"
    if isinstance(key, bytes):
        signature = hmac.digest(key, signing_input.encode(), "sha256")
    else:
        signature = JWSRegistry.algorithms[alg].sign(signing_input.encode(), key)
    return f"{signing_input}.{base64url(signature)}"


def base64url(value: bytes) -> str:
    """Base64url without padding (RFC 7515 2)."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _without_none(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if value is not None}


def _base64url_json(value: object) -> str:
    return base64url(json.dumps(value).encode())
