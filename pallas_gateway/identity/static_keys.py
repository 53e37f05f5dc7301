"""Static keys: how they look, and the hash that stands in `agents.yaml` in their place."""

from __future__ import annotations

import hashlib
import secrets

KEY_PREFIX = "pgw_"
"""Makes a key recognisable, for people and for scanners that look for leaked ones."""


def new_key() -> str:
    """A key of 256 random bits."""
    return f"{KEY_PREFIX}{secrets.token_urlsafe(32)}"


def hash_of(key: str) -> str:
    """The key's SHA-256 in hexadecimal digits; a key is long and random, so nobody finds it by trying."""
    return hashlib.sha256(key.encode()).hexdigest()
