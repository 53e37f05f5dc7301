"""Static keys, and their hashes in `agents.yaml`."""

from __future__ import annotations

import hashlib
import secrets

KEY_PREFIX = "pgw_"  # recognised by people and by scanners for leaked keys


def new_key() -> str:
    return f"{KEY_PREFIX}{secrets.token_urlsafe(32)}"


def hash_of(key: str) -> str:
    """The key's SHA-256 in hexadecimal digits; a long random key needs no slower hash."""
    return hashlib.sha256(key.encode()).hexdigest()
