"""`audit_names: hashed`: names of callers and their addresses as HMACs, equal for equal names."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from pallas_gateway.identity.caller import ANONYMOUS_NAME

if TYPE_CHECKING:
    from pallas_gateway.audit.chain import Entry

HASHED_FIELDS = ("caller", "address", "owner", "new_owner")
PURPOSE = b"pallas-gateway audit names"
DIGITS = 32


class HashedNames:
    """The HMACs of names, by a key that is derived from a secret."""

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), PURPOSE, hashlib.sha256)

    def hashed(self, entry: Entry) -> Entry:
        """Return the entry with HMACs in place of names; `anonymous` is no name."""
        names = {name: entry[name] for name in HASHED_FIELDS if entry.get(name) not in {None, ANONYMOUS_NAME}}
        return {**entry, **{name: self._of(str(value)) for name, value in names.items()}}

    def _of(self, name: str) -> str:
        digest = hmac.digest(self._key, name.encode("utf-8", "surrogatepass"), hashlib.sha256).hex()
        return f"hmac:{digest[:DIGITS]}"
