"""Tokens of a call: a type that cannot be printed, and what one call may present to whom.

Deliberately no store and no lookup by server: credentials live exactly as long as the call that carries them, so no
two calls can ever see each other's.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

NESTED_CALL_HEADER = "x-pallas-nested-call"
"""Request header by which the gateway recognises calls that its own running calls make."""


class Secret:
    """A string that no repr, format or log record shows; `reveal()` is the only way out."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for the one line that puts it on the wire."""
        return self._value

    def __repr__(self) -> str:
        """Always the same."""
        return "Secret(****)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        """Constant-time comparison with another `Secret`."""
        return isinstance(other, Secret) and hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        """Hash of the value."""
        return hash(self._value)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one call may present: the caller's bearer where a downstream opted in, and its own token to peers."""

    bearer: Secret | None
    nested_call_token: Secret | None


def bearer_of(authorization: str | None) -> Secret | None:
    """The token of an `Authorization: Bearer …` header value (RFC 6750), None for any other scheme or none."""
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    return Secret(token) if scheme.lower() == "bearer" and token else None
